//! Tests of steps with launches of the host: they equal steps without a host if launches take no
//! time, and each optimization of TorchRec's pipeline removes what it says.

use plan::launch_plan::{self, DenseLaunches, InputRounds, InputThread, LaunchPlan};
use plan::launched::{AfterLaunch, LaunchQueue, LaunchedStage, simulate};
use predict::calibration::shipped::{JobKind, ShippedOverheads};
use predict::step::host::{DenseUpdateCalls, StageHosts, predict_host, predict_stage_hosts};
use predict::step::{Conditions, Models, StepPricer};
use predict::workload::Workload;
use schema::topology::ProductFormat;
use schema::{FeatureStats, HostLayout, JobConfig, Schedule, ShardingPlan, Topology};

const DCNV2: &str = include_str!("../../../../configs/dlrm-dcnv2.toml");
const MLPERF: &str = include_str!("../../../../configs/dlrm-mlperf.toml");

/// Calls `check` with a pricer for each of several models, plans and schedules.
fn for_each_pricer(mut check: impl FnMut(&StepPricer<'_>, Workload<'_>)) {
    let models = Models::shipped().expect("models");
    let schedules = [
        "serial",
        "pipelined",
        "input",
        "input,all_reduce",
        "pooled,gradient",
        "gradient",
        "all_reduce",
    ];
    for (text, hardware) in [(DCNV2, "16xdgx-h100"), (MLPERF, "dgx-1"), (MLPERF, "2xdgx-a100")] {
        let config = JobConfig::parse(text, &[]).expect("a configuration");
        let topology = Topology::parse(hardware).expect("hardware");
        let ranks = topology.ranks() as usize;
        let hosts = HostLayout::with_ranks_per_host(ranks, 8).expect("hosts");
        let tables = &config.model.tables;
        let plans = [
            ShardingPlan::table_wise(tables, ranks as u32),
            ShardingPlan::table_row_wise(tables, &hosts),
            ShardingPlan::column_wise(tables, ranks as u32),
        ];
        let features = FeatureStats::with_bag_sizes(&config, 1);
        for plan in &plans {
            let workload = Workload { config: &config, plan, features: &features };
            for name in schedules {
                let conditions = Conditions {
                    format: ProductFormat::F16,
                    schedule: name.parse::<Schedule>().expect("a schedule"),
                    ..Conditions::new(&topology, &models)
                };
                let pricer = StepPricer::new(workload, conditions).expect("a price");
                check(&pricer, workload);
            }
        }
    }
}

#[test]
fn launches_of_no_time_give_the_step_without_a_host() {
    for_each_pricer(|pricer, _| {
        let stages =
            launch_plan::list_stages(pricer, &StageHosts::default(), LaunchPlan::IN_GRAPH_ORDER);
        let (launched, plain) = (simulate(&stages).step_ns, pricer.cost().step.mean_ns);
        assert!((launched / plain - 1.0).abs() < 1e-9, "{launched} instead of {plain}");
    });
}

#[test]
fn optimizations_of_the_pipeline_remove_launches_and_waits() {
    let topology = Topology::parse("16xdgx-h100").expect("hardware");
    let host = ShippedOverheads::nearest(&topology.device, JobKind::Recommendation)
        .read()
        .expect("overheads");
    for_each_pricer(|pricer, workload| {
        let hosts = predict_stage_hosts(workload, &host, DenseUpdateCalls::Grouped);
        let stages = |plan: LaunchPlan| launch_plan::list_stages(pricer, &hosts, plan);
        let before = LaunchPlan::TORCHREC;
        let own = LaunchPlan { input: InputThread::Own, ..before };
        let graph = LaunchPlan { dense: DenseLaunches::Graph, ..before };
        let dropped = LaunchPlan { rounds: InputRounds::WithoutSizes, ..before };
        let waits = |stages: &[LaunchedStage]| {
            stages.iter().filter(|stage| stage.then == AfterLaunch::Wait).count()
        };
        let [before, own, graph, dropped] = [before, own, graph, dropped].map(stages);
        assert_eq!((waits(&before), waits(&own), waits(&dropped)), (2, 2, 1));
        let ids = |stages: &[LaunchedStage]| {
            let is_ids = |stage: &&LaunchedStage| stage.queue == LaunchQueue::InputDistribution;
            stages.iter().filter(is_ids).count()
        };
        assert_eq!((ids(&before), ids(&dropped)), (3, 2));
        let [before, own, graph, dropped] =
            [before, own, graph, dropped].map(|stages| simulate(&stages));
        assert!(before.step_ns >= before.host_ns && graph.host_ns < 0.9 * before.host_ns);
        // `rowmill plan` and `rowmill plan simulate` have the same host.
        let predicted_ns = predict_host(workload, &host, DenseUpdateCalls::Grouped).ns;
        assert!((before.host_ns / predicted_ns - 1.0).abs() < 1e-9, "{predicted_ns}");
        assert!(own.host_ns <= before.host_ns);
        for faster in [own, graph, dropped] {
            // Another order of exchanges on the links may cost a little.
            assert!(faster.step_ns <= 1.01 * before.step_ns);
        }
    });
}
