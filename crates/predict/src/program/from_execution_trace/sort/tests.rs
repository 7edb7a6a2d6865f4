use std::collections::BTreeMap;

use super::{PASS, Sort, looked_up, updated};
use crate::calibration::launches::{ApiCall, LaunchedWork};
use crate::program::from_execution_trace::scaled_calls::Scale;
use crate::program::{Returns, WorkKind};

fn call(kernel: &str) -> ApiCall {
    let kind = if kernel == "Memset (Device)" { WorkKind::Set } else { WorkKind::Kernel };
    let launches = match kernel {
        "" => Vec::new(),
        name => vec![LaunchedWork {
            kind,
            name: name.to_owned(),
            details: BTreeMap::from([("detail".to_owned(), 1)]),
            bytes: None,
            stream: 7,
            collective: None,
        }],
    };
    ApiCall { name: "call".to_owned(), launches, awaits: Vec::new(), returns: Returns::AtOnce }
}

fn kernels(sort: Sort, before: &[&str]) -> Vec<String> {
    let calls = before.iter().map(|kernel| (call(kernel), Scale::ONE)).collect();
    let after = sort.adapted(calls);
    let name = |(call, _): &(ApiCall, Scale)| call.launches.first().map(|work| work.name.clone());
    after.iter().map(|call| name(call).unwrap_or_default()).collect()
}

const ONE_BLOCK: &str = "cub::DeviceRadixSortSingleTileKernel<cub::DeviceRadixSortPolicy<long, int";

#[test]
fn more_keys_than_a_block_holds_are_sorted_by_passes() {
    let few = Sort { keys: 2_304, bits: 26 };
    assert_eq!(
        kernels(few, &["linearize", ONE_BLOCK, "update"]),
        ["linearize", ONE_BLOCK, "update"]
    );
    let many = Sort { keys: 2_305, bits: 26 };
    let found = kernels(many, &["linearize", ONE_BLOCK, "update"]);
    // 26 bits take four passes of eight bits. Each pass sets memory once, and the histogram sets it
    // twice.
    assert_eq!(found.iter().filter(|name| *name == "Memset (Device)").count(), 6);
    assert_eq!(found.iter().filter(|name| *name == ONE_BLOCK).count(), 4);
    assert!(found[3].contains("HistogramKernel") && found[4].contains("ExclusiveSumKernel"));
    assert_eq!(found.len(), 14);
}

#[test]
fn few_keys_are_sorted_in_one_block_where_passes_were_recorded() {
    let pass = format!("cub::{PASS}<cub::DeviceRadixSortPolicy<long, int");
    let histogram = "cub::DeviceRadixSortHistogramKernel<cub::DeviceRadixSortPolicy<long, int";
    let set = "Memset (Device)";
    let recorded = ["linearize", "", set, set, "", histogram, "", set, &pass, "", set, &pass, "x"];
    let few = Sort { keys: 100, bits: 26 };
    assert_eq!(kernels(few, &recorded), ["linearize", "", &pass, "x"]);
    let many = Sort { keys: 9_000, bits: 26 };
    assert_eq!(kernels(many, &recorded), recorded);
}

#[test]
fn four_byte_keys_fit_one_block_longer_than_eight_byte_keys() {
    let short = ONE_BLOCK.replace("<long", "<int");
    assert_eq!(kernels(Sort { keys: 4_864, bits: 26 }, &[&short]), std::slice::from_ref(&short));
    assert_eq!(kernels(Sort { keys: 4_865, bits: 26 }, &[&short]).len(), 12);
}

#[test]
fn an_update_belongs_to_the_lookup_of_its_optimizer() {
    let adagrad = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function";
    assert_eq!(looked_up(adagrad).as_deref(), Some("rowwise_adagrad"));
    let dense = "fbgemm::dense_embedding_codegen_lookup_function";
    assert_eq!(looked_up(dense).as_deref(), Some("dense"));
    let update = "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>";
    assert_eq!(updated(update).as_deref(), Some("rowwise_adagrad"));
    let update = "torch::autograd::CppNode<SplitLookupFunction_Dense_Op>";
    assert_eq!(updated(update).as_deref(), Some("dense"));
    assert_eq!(updated("autograd::engine::evaluate_function: x"), None);
}
