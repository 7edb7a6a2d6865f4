//! Tests for the faults of the published model and its code that are possible here too. The numbers
//! are those of `reference/performance-model.md`, section 2.12. Fault 19 is tested in `cli`, which
//! measures times.

use std::collections::BTreeMap;

use predict::calibration::price::Prices;
use predict::calibration::roofline_scaling::{self, Roof};
use predict::calibration::{Calibration, Waiting, collect, constants};
use predict::cost::{Constants, Source};
use predict::evaluate::replay;
use predict::overheads;
use predict::prediction::{self, Draws};
use predict::program::from_trainer;
use predict::program::from_trainer::ops;
use predict::program::{Action, OVERHEADS, Overhead, Returns, WorkKind};
use predict::recording::Step;
use predict::simulate;
use predict::workload::Workload;
use schema::{FeatureStats, JobConfig, ShardingPlan};
use trace::store::Trace;

use crate::fixture::{HOST, by_hand, step_of};

const DEVICE: (i64, i64) = (0, 7);

/// Builds a step in which one operator launches three works. The first kernel starts late, and the
/// other two queue behind it.
fn three_kernels() -> Trace {
    by_hand(&[
        ("user_annotation", "ProfilerStep#1", HOST, 0, 400, 0),
        ("cpu_op", "aten::a", HOST, 10, 100, 0),
        ("cuda_runtime", "cudaLaunchKernel", HOST, 20, 26, 1),
        ("cuda_runtime", "cuLaunchKernelEx", HOST, 40, 45, 2),
        ("cuda_runtime", "cudaMemsetAsync", HOST, 60, 64, 3),
        ("kernel", "k1", DEVICE, 29, 129, 1),
        ("kernel", "k2", DEVICE, 130, 140, 2),
        ("gpu_memset", "Memset", DEVICE, 141, 142, 3),
        ("cpu_op", "aten::b", HOST, 350, 370, 0),
    ])
}

fn calibrated(step: &Step) -> Calibration {
    let mut calibration = Calibration::default();
    let all: Vec<usize> = (0..step.program.ranks.len()).collect();
    collect::add(&mut calibration, step, &all);
    calibration
}

/// Returns all samples of one kind of overhead, by operator.
fn samples(calibration: &Calibration, overhead: Overhead) -> BTreeMap<&str, Vec<i64>> {
    let mut found: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for (key, samples) in calibration.overheads.iter().filter(|(key, _)| key.class == overhead) {
        found.entry(&key.name).or_default().extend(samples);
    }
    found
}

#[test]
fn fault_1_a_gap_is_only_between_kernels_that_queue() {
    let step = step_of(&[three_kernels()]);
    let constants = Constants { launch_ns: 9_000, queue_gap_ns: 1_000, ..Constants::default() };
    let replay = replay::replay_with_constants(&step, &[0], constants).expect("no cycle");
    let starts: Vec<i64> = (0..3).map(|work| replay.simulation.work_ns(0, work).0).collect();
    // The first kernel waits only for its launch. Every later kernel waits for the kernel before
    // it.
    assert_eq!(starts, [29_000, 130_000, 141_000]);
}

#[test]
fn fault_3_kernels_belong_to_their_calls_not_to_shared_external_ids() {
    let mut trace = three_kernels();
    let rows: Vec<u32> = trace.rows().collect();
    let mut shared = Trace::default();
    for row in rows {
        let slices = &trace.slices;
        let track = trace.track(row).clone();
        let (pid, tid) =
            (track.pid.number().expect("a number"), track.tid.number().expect("a number"));
        let category = &trace.categories[usize::from(slices.category[row as usize])].name;
        let span = (slices.start(row), slices.end(row));
        let slice = trace::store::NewSlice::new(category, trace.name(row), (pid, tid), span);
        let correlation = slices.correlation(row);
        shared.push(&trace::store::NewSlice { correlation, external_id: Some(1), ..slice });
    }
    std::mem::swap(&mut trace, &mut shared);
    let step = step_of(&[trace]);
    let rank = &step.program.ranks[0];
    let launches = rank.threads[0].actions.iter().filter_map(|action| match action {
        Action::Call(call) => Some(call.launches.clone()),
        _ => None,
    });
    assert_eq!(launches.collect::<Vec<_>>(), [vec![0], vec![1], vec![2]]);
    assert!(rank.works.iter().all(|work| step.program.text(work.op) == "aten::a"));
}

#[test]
fn fault_4_operators_that_overlap_on_a_thread_are_read_and_none_is_dropped() {
    let step = step_of(&[by_hand(&[
        ("user_annotation", "ProfilerStep#1", HOST, 0, 100, 0),
        ("cpu_op", "aten::a", HOST, 10, 40, 0),
        ("cpu_op", "aten::inside", HOST, 30, 45, 0),
        ("cpu_op", "aten::last", HOST, 60, 90, 0),
    ])]);
    let names = step.program.ranks[0].threads[0].actions.iter().filter_map(|action| match action {
        Action::Begin(mark) => Some(step.program.text(mark.name)),
        _ => None,
    });
    assert_eq!(names.collect::<Vec<_>>(), ["ProfilerStep#", "aten::a", "aten::last"]);
}

#[test]
fn fault_5_and_9_every_way_to_launch_is_a_call_with_a_price_of_its_own() {
    let calibration = calibrated(&step_of(&[three_kernels()]));
    let calls = samples(&calibration, Overhead::RuntimeCall);
    let expected: BTreeMap<&str, Vec<i64>> = [
        ("cuLaunchKernelEx", vec![5_000]),
        ("cudaLaunchKernel", vec![6_000]),
        ("cudaMemsetAsync", vec![4_000]),
    ]
    .into();
    assert_eq!(calls, expected);
}

#[test]
fn fault_6_operators_with_one_launch_have_no_launch_gaps() {
    let calibration = calibrated(&step_of(&[by_hand(&[
        ("user_annotation", "ProfilerStep#1", HOST, 0, 100, 0),
        ("cpu_op", "aten::one", HOST, 10, 40, 0),
        ("cuda_runtime", "cudaLaunchKernel", HOST, 20, 26, 1),
        ("kernel", "k", DEVICE, 29, 39, 1),
        ("cpu_op", "aten::none", HOST, 60, 90, 0),
    ])]));
    assert!(samples(&calibration, Overhead::BetweenLaunches).is_empty());
    assert_eq!(samples(&calibration, Overhead::HostOnly), [("aten::none", vec![30_000])].into());
}

#[test]
fn fault_7_the_tail_counts() {
    let mut calibration = Calibration::default();
    let key = predict::calibration::Key {
        class: Overhead::HostOnly,
        name: "aten::b".to_owned(),
        detail: String::new(),
    };
    calibration.overheads.insert(key, [vec![1_000; 99], vec![101_000]].concat());
    let step = step_of(&[three_kernels()]);
    let costs =
        Prices::new(&calibration).price(&step.program, &step.recorded.setting(&step.program));
    let total = costs.ranks[0].actions[0].iter().map(|cost| cost.ns).sum::<i64>();
    assert_eq!(total, 2_000);
    let samples = calibration.overheads.into_values().next().expect("samples");
    assert_eq!(overheads::trimmed(samples), vec![1_000; 99]);
}

#[test]
fn overheads_that_depend_on_sizes_or_ranks_are_named() {
    let sized = |detail: &str| predict::calibration::Key {
        class: Overhead::HostOnly,
        name: "aten::b".to_owned(),
        detail: detail.to_owned(),
    };
    let mut calibration = Calibration::default();
    calibration.overheads.insert(sized("16"), vec![10, 11, 12, 11, 10, 12]);
    calibration.overheads.insert(sized("32"), vec![20, 21, 22, 21, 20, 22]);
    let found = overheads::by_size(&calibration, 3.0);
    assert_eq!((found.len(), found[0].least.as_str(), found[0].most.as_str()), (1, "16", "32"));
    calibration.overheads.insert(sized("32"), vec![10, 11, 12, 11, 10, 13]);
    assert!(overheads::by_size(&calibration, 3.0).is_empty());

    let rows = |ns: i64| {
        let mut calibration = Calibration::default();
        calibration.overheads.insert(sized(""), vec![ns, ns + 1, ns + 2]);
        overheads::summarize_overheads(&format!("rank {ns}"), &calibration, 0)
    };
    let exceptions = overheads::exceptions(&[rows(10), rows(30)].concat(), 3.0);
    assert_eq!((exceptions.len(), exceptions[0].most.as_str()), (1, "rank 30"));
    assert!(overheads::exceptions(&[rows(10), rows(11)].concat(), 3.0).is_empty());
}

#[test]
fn fault_8_long_pauses_count_and_threads_are_distinguished() {
    let other = (9, 10);
    let mut trace = three_kernels();
    trace.push(&trace::store::NewSlice::new("cpu_op", "aten::c", other, (200_000, 210_000)));
    let calibration = calibrated(&step_of(&[trace]));
    let between = samples(&calibration, Overhead::BetweenOps);
    // The gap lasts from 100 to 350 µs. The whole gap counts, although another thread works
    // meanwhile and the gap is longer than 200 µs.
    assert_eq!(between["aten::b"], [250_000]);
    assert_eq!(between["aten::c"], [200_000]);
}

#[test]
fn fault_10_a_thread_waits_for_the_other_pass() {
    let backward = "autograd::engine::evaluate_function: MulBackward0";
    let worker = (9, 10);
    let rows = [
        ("user_annotation", "ProfilerStep#1", HOST, 0, 400, 0),
        ("cpu_op", "aten::mul", HOST, 10, 50, 0),
        ("cpu_op", backward, worker, 90, 290, 0),
        ("cpu_op", "aten::add", HOST, 300, 350, 0),
    ];
    let step = step_of(&[by_hand(&rows)]);
    let mut costs = predict::cost::replay(&step.program, &step.recorded, &Constants::default());
    let before = simulate::run(&step.program, &costs).expect("no cycle");
    // If the backward pass takes half as long, the pause of the forward thread must shrink equally.
    let rank = &step.program.ranks[0];
    let at = rank.threads.iter().position(|thread| thread.tid == 10).expect("a worker");
    let own = costs.ranks[0].actions[at].iter_mut().find(|cost| cost.ns == 200_000);
    own.expect("the operator").ns = 100_000;
    let after = simulate::run(&step.program, &costs).expect("no cycle");
    assert_eq!(before.step_ns(0) - after.step_ns(0), 100_000);
}

#[test]
fn fault_11_only_dependent_work_waits() {
    let step = step_of(&[by_hand(&[
        ("user_annotation", "ProfilerStep#1", HOST, 0, 300, 0),
        ("cpu_op", "aten::mm", HOST, 10, 30, 0),
        ("cuda_runtime", "cudaLaunchKernel", HOST, 15, 20, 1),
        ("kernel", "k", DEVICE, 22, 122, 1),
        ("cpu_op", "aten::to", HOST, 40, 41, 0),
        ("cpu_op", "aten::item", HOST, 50, 130, 0),
        ("cuda_runtime", "cudaStreamSynchronize", HOST, 55, 126, 2),
    ])]);
    let calls = step.program.ranks[0].threads[0].actions.iter().filter_map(|action| match action {
        Action::Call(call) => Some((call.returns, call.awaits.clone())),
        _ => None,
    });
    assert_eq!(
        calls.collect::<Vec<_>>(),
        [(Returns::AtOnce, vec![]), (Returns::AfterAwaited, vec![0])]
    );
    let calibration = calibrated(&step);
    assert_eq!(calibration.waits[&Waiting::SyncReturn], [4_000]);
}

#[test]
fn fault_12_and_13_unmeasured_parts_are_reported_as_unknown() {
    let step = step_of(&[three_kernels()]);
    let nothing = Prices::new(&Calibration::default());
    let costs = nothing.price(&step.program, &step.recorded.setting(&step.program));
    let priced = || costs.ranks[0].actions[0].iter().filter_map(|cost| cost.source);
    assert!(priced().count() > 0 && priced().all(|source| source == Source::Unknown));

    // Samples of other sizes, and then of other operators of the class, are used instead. Works
    // with such prices count as modeled.
    let mut other = calibrated(&step);
    for (mut key, samples) in std::mem::take(&mut other.overheads) {
        key.detail.push_str(" of another size");
        other.overheads.insert(key, samples);
    }
    let costs = Prices::new(&other).price(&step.program, &step.recorded.setting(&step.program));
    let sources: Vec<_> = costs.ranks[0].actions[0].iter().filter_map(|cost| cost.source).collect();
    assert!(sources.iter().all(|source| *source == Source::Modeled), "{sources:?}");
}

#[test]
fn fault_15_text_of_a_trace_is_text() {
    let step = step_of(&[by_hand(&[
        ("user_annotation", "ProfilerStep#1", HOST, 0, 100, 0),
        ("cpu_op", "__import__('os').abort() \u{0}\"<&", HOST, 10, 40, 0),
    ])]);
    let calibration = calibrated(&step);
    let text = calibration.to_json().expect("JSON");
    assert_eq!(Calibration::from_json(&text).expect("a calibration"), calibration);
}

/// Builds three ranks that arrive at a collective 0, 30 and 60 µs after the first arrival.
fn collective() -> Vec<Trace> {
    let one = |rank: u32| {
        let late = i64::from(rank) * 30;
        let name = "ncclKernel_AllReduce_RING_LL_Sum_float(x)";
        let mut trace = by_hand(&[
            ("user_annotation", "ProfilerStep#1", HOST, 0, 200, 0),
            ("cpu_op", "c10d::allreduce_", HOST, 10 + late, 40 + late, 0),
            ("cuda_runtime", "cudaLaunchKernel", HOST, 20 + late, 26 + late, 1),
            ("kernel", name, DEVICE, 30 + late, 100, 1),
        ]);
        trace.rank = rank;
        trace
    };
    (0..3).map(one).collect()
}

#[test]
fn fault_16_and_18_waiting_for_a_rank_is_not_transfer_time() {
    let step = step_of(&collective());
    assert_eq!(step.program.collectives.len(), 1);
    let calibration = calibrated(&step);
    let transfers: Vec<&Vec<i64>> = calibration.transfers.values().collect();
    assert_eq!(transfers, [&[10_000]], "the last rank's kernel");
    // Ranks 0 and 1 both waited in the collective, so its transfer is the time after the arrival of
    // the last rank.
    let replay = replay::replay_step(&step, &[0, 1]).expect("no cycle");
    let transfer = replay.constants.transfer.values().next().expect("a transfer");
    assert!((transfer.fixed_ns - 10_000.0).abs() < 1.0, "{transfer:?}");
}

#[test]
fn fault_18_larger_messages_never_take_less() {
    let points = [(100, 9_000.0), (1_000, 8_000.0), (10_000, 7_500.0)];
    let found = constants::transfer(&points);
    assert_eq!((found.per_byte_ns, found.fixed_ns.round()), (0.0, 8_167.0));
    let found = constants::transfer(&[(0, 5_000.0), (1_000, 6_000.0), (2_000, 7_000.0)]);
    assert!((found.fixed_ns - 5_000.0).abs() < 1e-6 && (found.per_byte_ns - 1.0).abs() < 1e-9);
}

#[test]
fn every_kind_of_overhead_has_a_name_of_its_own() {
    let names: std::collections::BTreeSet<&str> =
        OVERHEADS.iter().map(|overhead| overhead.name()).collect();
    assert_eq!(names.len(), OVERHEADS.len());
}

/// Builds a calibration with a single product of `[512, 512]` and `[512, 512]` matrices, which
/// reached 100 GFLOP/s.
fn one_product() -> Calibration {
    let mut calibration = Calibration::default();
    let key = predict::calibration::Key {
        class: WorkKind::Kernel,
        name: "rowmill_gemm_forward".to_owned(),
        detail: "512x512 float, 512x512 float; 268000000 FLOP, 3150000 B".to_owned(),
    };
    calibration.works.insert(key, vec![2_680_000].into());
    calibration
}

fn config(overrides: &[(&str, &str)]) -> schema::JobConfig {
    let text = include_str!("../../../../configs/dlrm-ddp.toml");
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let overrides: Vec<(String, String)> = overrides.iter().map(pair).collect();
    schema::JobConfig::parse(text, &overrides).expect("a configuration")
}

fn ops(config: &JobConfig, pooling: u32) -> Vec<Vec<schema::Op>> {
    let plan = ShardingPlan::table_wise(&config.model.tables, 1);
    let features = FeatureStats::uniform(&config.model, pooling);
    ops::list_ops(Workload { config, plan: &plan, features: &features }).expect("a workload")
}

fn lookup(pooling: u32) -> schema::Op {
    let config = config(&[]);
    let is_lookup = |op: &schema::Op| matches!(op, schema::Op::EmbeddingForward { .. });
    let ops = ops(&config, pooling).remove(0);
    ops.into_iter().find(is_lookup).expect("a lookup")
}

#[test]
fn fault_2_a_lookup_reads_every_row_of_a_bag() {
    let (samples, tables, dim) = (2048u64, 8, 128);
    for pooling in [1, 8, 100] {
        let ids = samples * tables * u64::from(pooling);
        let bytes = 8 * ids + 4 * dim * ids + 4 * dim * samples * tables;
        assert_eq!(lookup(pooling).work().bytes, bytes);
    }
}

#[test]
fn fault_14_unknown_kernels_are_reported_instead_of_failing() {
    let config = config(&[]);
    let ops = ops(&config, 1);
    let program = from_trainer::build_program(&ops, 1.0);
    let draws = Draws::new(2, 0);
    // The calibration contains only one product, so lookups follow from the roofline and count as
    // modeled.
    let found = prediction::predict_never_run(&program, &one_product(), draws).expect("no cycle");
    assert!(found.rows[0].step_ns > 0 && found.rows[0].modeled_pct > 10.0, "{:?}", found.rows);
    // Without any calibration, every part must be reported as unknown.
    let found =
        prediction::predict_never_run(&program, &Calibration::default(), draws).expect("no cycle");
    assert_eq!((found.rows[0].step_ns, found.rows[0].unknown_pct), (0, 100.0));
}

/// The published model was trained and tested on the same shapes, and its predictions for other
/// shapes were unbounded.
#[test]
fn fault_17_extrapolated_kernels_follow_the_roofline_and_count_as_modeled() {
    let known = [
        ("512x64 float, 64x64 float; 4190000 FLOP, 279000 B", 60_000.0),
        ("512x512 float, 512x512 float; 268000000 FLOP, 3150000 B", 2_680_000.0),
        ("512x1024 float, 1024x1024 float; 1070000000 FLOP, 8390000 B", 8_900_000.0),
    ];
    let roof = Roof::from_works(known.iter().copied());
    // The roof is the best rate of the recorded products: 120 FLOP and 4.65 bytes per nanosecond.
    for (m, n, k) in [(1u64, 1u64, 4096u64), (8192, 8192, 8192), (65_536, 1, 16), (512, 512, 512)] {
        let (flops, bytes) = (2 * m * n * k, 4 * (m * k + k * n + m * n));
        let detail = format!("{m}x{k} float, {n}x{k} float; {flops} FLOP, {bytes} B");
        let ns = roofline_scaling::scaled(&known, &detail, roof).expect("a roofline");
        let least = (flops as f64 / (1_070e6 / 8.9e6)).max(bytes as f64 / (279_000.0 / 60_000.0));
        assert!(ns >= 0.999 * least && ns < 10.0 * least, "{detail}: {ns} ns, at least {least}");
    }
    // The middle shape is left out and predicted from the other two, so it is tested on unused
    // data.
    let others = [known[0], known[2]];
    let ns =
        roofline_scaling::scaled(&others, known[1].0, Roof::from_works(others.iter().copied()));
    let error = ns.expect("a roofline") / known[1].1 - 1.0;
    assert!(error.abs() < 0.35, "{error}");
    let config = config(&[]);
    let ops = ops(&config, 1);
    let program = from_trainer::build_program(&ops, 1.0);
    let draws = Draws::new(2, 0);
    let found = prediction::predict_never_run(&program, &one_product(), draws).expect("no cycle");
    assert_eq!(found.rows[0].measured_pct, 0.0);
}
