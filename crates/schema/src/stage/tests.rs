use super::{
    ActionBatch, ActionPart, Overlap, Resource, Schedule, Section, Stage, StageAction, StepGraph,
    dense_buckets,
};
use crate::config::JobConfig;
use crate::model::ModelConfig;
use crate::optimizer::Optimizer;
use crate::plan::ShardingPlan;
use crate::replica_groups::ReplicaGroups;
use crate::table_storage::{CachePolicy, TableStorage};

fn config(interaction: &str) -> JobConfig {
    let text = format!(
        r#"
[model]
name = "small"
dense_features = 2
bottom = [8, 8, 4]
top = [8, 6, 1]
interaction = {interaction}
loss = "bce_with_logits"
tables = [{{ name = "a", rows = 50, dim = 4 }}]
[optimizer]
sparse = {{ kind = "sgd", learning_rate = 0.1 }}
dense = {{ kind = "sgd", learning_rate = 0.1 }}
[training]
batch_size = 32
epochs = 1
[data]
format = "csv"
label = {{ column = "y" }}
dense = [{{ column = "u" }}, {{ column = "v" }}]
categorical = [{{ column = "a", kind = "integer" }}]
"#
    );
    JobConfig::parse(&text, &[]).unwrap()
}

fn model(interaction: &str) -> ModelConfig {
    config(interaction).model
}

/// Two groups, which are made equal after every `sync_every` steps.
fn groups(sync_every: u64) -> ReplicaGroups {
    ReplicaGroups { count: 2.try_into().unwrap(), sync_every: sync_every.try_into().unwrap() }
}

fn in_memory() -> Option<TableStorage> {
    None
}

fn in_files() -> Option<TableStorage> {
    let (tables, folder) = (Vec::new(), "files".into());
    Some(TableStorage { tables, folder, cache_mib: 1, policy: CachePolicy::Lru })
}

fn schedules() -> impl Iterator<Item = Schedule> {
    let alone = Overlap::ALL.map(|overlap| Schedule::SERIAL.with(overlap));
    [Schedule::SERIAL, Schedule::PIPELINED].into_iter().chain(alone)
}

/// Checks the list of two consecutive steps, so that the start of a step's input distribution in
/// the step before it is seen.
#[test]
fn every_action_follows_its_inputs_and_every_exchange_is_finished_once() {
    for (interaction, storage) in [
        (r#"{ kind = "dot" }"#, in_memory as fn() -> Option<TableStorage>),
        (r#"{ kind = "dcn_v2", layers = 2, rank = 3 }"#, in_memory),
        (r#"{ kind = "dot" }"#, in_files),
    ] {
        for schedule in schedules() {
            for (ranks, sparse, groups) in [
                (1, Optimizer::Sgd, ReplicaGroups::SINGLE),
                (2, Optimizer::Sgd, ReplicaGroups::SINGLE),
                (2, Optimizer::Lamb, ReplicaGroups::SINGLE),
                (2, Optimizer::Sgd, groups(1)),
                (2, Optimizer::Lamb, groups(1)),
                (2, Optimizer::Lamb, groups(3)),
            ] {
                let mut config = config(interaction);
                config.optimizer.sparse.kind = sparse;
                config.storage = storage();
                let plan = ShardingPlan::column_wise(&config.model.tables, ranks).in_groups(groups);
                let graph = StepGraph::new(&config, 1 << 20, schedule, &plan);
                let mut complete: Vec<Stage> = Vec::new();
                let mut under_way = Vec::new();
                for action in &graph.actions {
                    let what = format!("{schedule}, {ranks} ranks, {action:?}");
                    for input in &action.inputs {
                        assert!(complete.contains(input), "{what}");
                    }
                    match (action.part, action.batch) {
                        (ActionPart::Start, ActionBatch::Next) => {}
                        (ActionPart::Start, ActionBatch::This) => under_way.push(action.stage),
                        (ActionPart::Whole, _) => complete.push(action.stage),
                        // The step before has started them.
                        (ActionPart::Finish, _)
                            if matches!(
                                action.stage,
                                Stage::InputDistribution | Stage::FetchRows
                            ) =>
                        {
                            complete.push(action.stage);
                        }
                        (ActionPart::Finish, _) => {
                            let started = under_way.iter().position(|&s| s == action.stage);
                            under_way.remove(started.expect(&what));
                            complete.push(action.stage);
                        }
                    }
                }
                assert!(under_way.is_empty(), "{schedule}");
                let mut once = complete.clone();
                once.sort();
                once.dedup();
                assert_eq!(once.len(), complete.len(), "{schedule}: a stage ran twice");
                let has_sums = complete.contains(&Stage::AllReduce(3));
                assert_eq!(has_sums, ranks > 1, "{schedule}");
                let has_terms = complete.contains(&Stage::RowTerms);
                assert_eq!(has_terms, sparse == Optimizer::Lamb, "{schedule}");
                let has_groups = complete.contains(&Stage::GroupExchange);
                assert_eq!(has_groups, !groups.is_single(), "{schedule}");
                let has_fetch = complete.contains(&Stage::FetchRows);
                assert_eq!(has_fetch, config.storage.is_some(), "{schedule}");
                let is_ahead = |action: &StageAction| {
                    action.stage == Stage::FetchRows && action.batch == ActionBatch::Next
                };
                let reads_ahead = graph.actions.iter().any(is_ahead);
                assert_eq!(reads_ahead, has_fetch && schedule.has(Overlap::Input), "{schedule}");
            }
        }
    }
}

#[test]
fn layers_of_one_section_share_buckets_but_at_least_four_remain() {
    let check = |interaction: &str, bytes: usize, expected: &[(Section, usize)]| {
        let buckets = dense_buckets(&model(interaction), bytes);
        let got = buckets.iter().map(|bucket| (bucket.section, bucket.layers.len()));
        assert!(got.eq(expected.iter().copied()), "{buckets:?}");
        let first = buckets.iter().rev().scan(0, |end, bucket| {
            let is_next = bucket.parameters.start == std::mem::replace(end, bucket.parameters.end);
            Some(is_next)
        });
        assert!(first.into_iter().all(|is_next| is_next), "{buckets:?}");
    };
    let (bottom, cross, top) = (Section::Bottom, Section::Interaction, Section::Top);
    let dot = r#"{ kind = "dot" }"#;
    check(dot, 1, &[(top, 1), (top, 1), (top, 1), (bottom, 1), (bottom, 1), (bottom, 1)]);
    check(dot, 1 << 20, &[(top, 2), (top, 1), (bottom, 1), (bottom, 2)]);
    let dcn = r#"{ kind = "dcn_v2", layers = 2, rank = 3 }"#;
    check(dcn, 1 << 20, &[(top, 2), (top, 1), (cross, 2), (bottom, 3)]);
}

#[test]
fn schedules_have_names() {
    for schedule in schedules() {
        assert_eq!(schedule.to_string().parse(), Ok(schedule));
    }
    let two = Schedule::SERIAL.with(Overlap::AllReduce).with(Overlap::Input);
    assert_eq!(two.to_string(), "input,all_reduce");
    for (text, got) in [("input,speed", "speed"), ("input,input", "input,input"), ("", "")] {
        let error = text.parse::<Schedule>().unwrap_err().to_string();
        assert!(error.ends_with(&format!("got {got:?}")), "{error}");
    }
    assert_eq!(Stage::AllReduce(2).to_string(), "all_reduce 2");
    assert_eq!(Stage::Lookup.resource(), Resource::ComputeQueue);
}
