//! Compares the owners of real device work with the results of an independent parser.

use std::collections::BTreeMap;

use analyze::attribution::{self, OwnerMethod};
use analyze::classify::{ClassRule, Classifier};
use analyze::{Scope, WindowRule, tree};
use trace::store::Trace;

use crate::tree::dlrm8;

pub fn whole(trace: &Trace) -> Scope<'_> {
    Scope::new(trace, WindowRule::All, &Classifier::new(ClassRule::Category))
}

#[test]
fn dlrm8_launches_2116_pieces_of_work_and_128_are_older() {
    let Some(job) = dlrm8() else { return };
    let (mut pairs, mut orphans) = (0, Vec::new());
    for trace in &job.traces {
        let scope = whole(trace);
        let found = attribution::attribute_device_work(&scope, &tree::build(trace));
        pairs += scope.device_rows.iter().filter(|row| scope.links().call(**row).is_some()).count();
        for coverage in found.coverage(&scope) {
            match coverage.method {
                OwnerMethod::Correlation => {}
                OwnerMethod::Orphan => {
                    orphans.push((trace.rank, coverage.count, coverage.device_ns));
                }
                other => panic!("rank {}: {other:?}", trace.rank),
            }
        }
    }
    assert_eq!(pairs, 2116);
    assert_eq!(orphans, [(1, 64, 203_000), (3, 64, 176_000)]);
}

#[test]
fn dlrm8_top_operators_own_the_recorded_device_time() {
    let Some(job) = dlrm8() else { return };
    let mut by_name: BTreeMap<&str, (i64, u64)> = BTreeMap::new();
    let mut leaf = 0;
    for trace in &job.traces {
        let (scope, tree) = (whole(trace), tree::build(trace));
        let found = attribution::attribute_device_work(&scope, &tree);
        for row in tree.top_operators(trace) {
            let work = found.inclusive(&tree, row);
            let sum = by_name.entry(trace.name(row)).or_default();
            sum.0 += work.device_ns / 1000;
            sum.1 += work.count;
        }
        for row in trace.rows().filter(|row| trace.name(*row) == "record_param_comms") {
            leaf += found.exclusive(&tree, row).device_ns / 1000;
        }
    }
    let mut top: Vec<(i64, u64, &str)> =
        by_name.into_iter().map(|(name, (us, count))| (us, count, name)).collect();
    top.sort_unstable_by(|a, b| b.cmp(a));
    let autograd = "autograd::engine::evaluate_function: ";
    let short = |name: &str| name.replace(autograd, "").replace("torch::autograd::", "");
    let top: Vec<String> =
        top.iter().take(14).map(|(us, n, name)| format!("{us} {n} {}", short(name))).collect();
    let expected = [
        "26516 8 All2All_Pooled_Req",
        "10948 144 AccumulateGrad",
        "8439 24 c10d::alltoall_base_",
        "3238 88 All2All_Pooled_WaitBackward",
        "1161 176 AddmmBackward0",
        "959 140 CppNode<SplitLookupFunction_adagrad_Op>",
        "613 120 CppNode<SplitLookupFunction_Dense_Op>",
        "561 88 aten::linear",
        "493 128 aten::addcdiv_",
        "443 128 aten::addcmul_",
        "396 128 aten::sqrt",
        "396 112 fbgemm::permute_2D_sparse_data",
        "361 120 aten::binary_cross_entropy_with_logits",
        "348 72 IndexBackward0",
    ];
    assert_eq!(top, expected);
    assert_eq!(leaf, 48_542);
}
