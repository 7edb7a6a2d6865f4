//! Whole runs on a small prepared dataset: any number of ranks, resumed anywhere, stopped,
//! recorded.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use data::{Dataset, PrepareRequest, Strictness};
use schema::random::CounterRng;
use schema::{JobConfig, ShardingPlan, TableConfig};
use train::{Error, Event, Outcome, RunRequest, Scorer, Start, TraceRequest};

const ROWS: u64 = 700;

fn config() -> JobConfig {
    let text = r#"
[model]
name = "small"
dense_features = 2
bottom = [8, 4]
top = [8, 1]
interaction = { kind = "dot" }
loss = "bce_with_logits"
tables = [{ name = "a", rows = 50, dim = 4 }, { name = "b", rows = 9, dim = 4, pooling = "mean" }]
[optimizer]
sparse = { kind = "rowwise_adagrad", learning_rate = 0.1 }
dense = { kind = "adagrad", learning_rate = 0.05 }
[schedule]
warmup_steps = 5
decay_start_step = 10
decay_steps = 40
decay_power = 2.0
decay_floor = 0.1
[training]
batch_size = 32
epochs = 2
shuffle_rows = 100
log_every = 7
checkpoint_every = 6
keep_checkpoints = 100
[data]
format = "csv"
hold_out = 0.2
label = { column = "y" }
dense = [{ column = "u", transform = "standardise" }, { column = "v" }]
categorical = [{ column = "a", kind = "integer" }, { column = "b", separator = "|" }]
"#;
    JobConfig::parse(text, &[]).unwrap()
}

fn dataset(folder: &Path) -> Arc<Dataset> {
    dataset_of(folder, 5)
}

fn dataset_of(folder: &Path, seed: u64) -> Arc<Dataset> {
    let rng = CounterRng::new(seed, 0);
    let mut text = "y,u,v,a,b\n".to_owned();
    for row in 0..ROWS {
        let rng = rng.child(row);
        let (a, b) = (rng.below(0, 40), rng.below(1, 9));
        let y = u8::from(rng.unit(2) < 0.2 + 0.6 * f64::from(u8::from(a % 2 == 0)));
        let (u, v) = (rng.normal(3), rng.normal(4));
        text += &format!("{y},{u:.3},{v:.3},{a},x{b}|x{}\n", rng.below(5, 4));
    }
    let file = folder.join("rows.csv");
    std::fs::write(&file, text).unwrap();
    let config = config();
    let inputs = [file.to_str().unwrap().to_owned()];
    let request = PrepareRequest {
        inputs: &inputs,
        config: &config.data,
        fitted: None,
        hold_out: 0.2,
        out: &folder.join("prepared"),
        row_group_rows: 64,
        strictness: Strictness::Stop,
        threads: 1,
        generator: None,
        begin: data::Begin::Restart,
    };
    Arc::new(data::prepare(&request, &mut |_| {}).unwrap().dataset)
}

fn request(folder: &Path, dataset: &Arc<Dataset>, plan: ShardingPlan) -> RunRequest {
    let (train_rows, held_out) = dataset.split(0.2);
    RunRequest {
        config: config(),
        plan,
        train: Arc::clone(dataset),
        train_rows,
        evaluation: Some((Arc::clone(dataset), held_out)),
        run_folder: folder.to_owned(),
        threads: 1,
        start: Start::Fresh,
        trace: None,
        stop: Arc::new(AtomicBool::new(false)),
    }
}

fn plan(make: fn(&[TableConfig], u32) -> ShardingPlan, ranks: u32) -> ShardingPlan {
    make(&config().model.tables, ranks)
}

fn bits(outcome: &Outcome) -> (u64, u64, u64) {
    let evaluation = outcome.evaluation.as_ref().unwrap();
    (outcome.step, outcome.loss.to_bits(), evaluation.loss.to_bits())
}

#[test]
fn a_run_resumed_from_any_checkpoint_ends_with_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request = request(&folder.path().join("whole"), &dataset, plan(ShardingPlan::mixed, 2));
    let whole = train::run(&request, &mut |_| {}).unwrap();
    assert_eq!(whole.step, 2 * (ROWS * 8 / 10).div_ceil(32));
    let checkpoints = train::checkpoint::list(&request.run_folder).unwrap();
    assert!(checkpoints.len() > 4, "{checkpoints:?}");
    for (i, checkpoint) in checkpoints.into_iter().enumerate() {
        request.run_folder = folder.path().join(format!("resumed-{i}"));
        request.start = Start::Checkpoint(checkpoint);
        let resumed = train::run(&request, &mut |_| {}).unwrap();
        assert_eq!(bits(&resumed), bits(&whole), "from checkpoint {i}");
    }
}

#[test]
fn a_checkpoint_of_one_plan_goes_on_under_another() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request =
        request(&folder.path().join("one"), &dataset, plan(ShardingPlan::table_wise, 1));
    let whole = train::run(&request, &mut |_| {}).unwrap();
    let middle = train::checkpoint::list(&request.run_folder).unwrap().swap_remove(2);
    request.start = Start::Checkpoint(middle);
    request.plan = plan(ShardingPlan::row_wise, 3);
    request.run_folder = folder.path().join("three");
    let resharded = train::run(&request, &mut |_| {}).unwrap();
    let (a, b) = (whole.evaluation.unwrap(), resharded.evaluation.unwrap());
    assert!((a.loss - b.loss).abs() < 1e-5, "{a:?} against {b:?}");
    assert!(a.auc > 0.6, "{a:?}");
}

#[test]
fn a_stopped_run_saves_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request =
        request(&folder.path().join("run"), &dataset, plan(ShardingPlan::column_wise, 2));
    let whole = train::run(&request, &mut |_| {}).unwrap();
    request.run_folder = folder.path().join("stopped");
    let stop = Arc::clone(&request.stop);
    let stopped = train::run(&request, &mut |event| {
        if let Event::Stepped { step: 10, .. } = event {
            stop.store(true, Ordering::Relaxed);
        }
    })
    .unwrap();
    assert!(stopped.interrupted && stopped.step == 10, "{stopped:?}");
    request.stop = Arc::new(AtomicBool::new(false));
    request.start = Start::Checkpoint(stopped.checkpoint.unwrap());
    let finished = train::run(&request, &mut |_| {}).unwrap();
    assert_eq!(bits(&finished), bits(&whole));
}

/// The loader would say that no batch is full; a run that trains nothing must not look like one
/// that did.
#[test]
fn a_run_without_one_full_batch_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request =
        request(&folder.path().join("run"), &dataset, plan(ShardingPlan::table_wise, 1));
    request.config.training.batch_size = 1000;
    request.config.training.drop_last = true;
    let refused = train::run(&request, &mut |_| {}).map_err(|error| error.to_string());
    let text = refused.unwrap_err();
    assert!(text.contains("1000 does not fill one batch from 560 rows"), "{text}");
    assert!(train::checkpoint::list(&request.run_folder).unwrap().is_empty());
}

#[test]
fn folders_that_cannot_be_written_are_refused_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let plan = plan(ShardingPlan::row_wise, 2);
    let good = request(&folder.path().join("run"), &dataset, plan.clone());
    let no_run = request(&file, &dataset, plan);
    let trace = Some(TraceRequest { folder: file.join("trace"), steps: 3..6 });
    for request in [no_run, RunRequest { trace, ..good }] {
        let mut steps = 0;
        let refused = train::run(&request, &mut |event| {
            steps += u64::from(matches!(event, Event::Stepped { .. }));
        });
        assert!(matches!(refused, Err(Error::Io { .. })), "{refused:?}");
        assert_eq!(steps, 0);
    }
}

#[test]
fn a_stop_ends_an_evaluation_too() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request =
        request(&folder.path().join("run"), &dataset, plan(ShardingPlan::column_wise, 2));
    let whole = train::run(&request, &mut |_| {}).unwrap();
    for (name, evaluate_every, steps) in [("between", Some(10), 10), ("end", None, whole.step)] {
        request.run_folder = folder.path().join(name);
        request.start = Start::Fresh;
        request.config.training.evaluate_every = evaluate_every;
        request.stop = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&request.stop);
        let mut batches = 0;
        let stopped = train::run(&request, &mut |event| {
            if let Event::Evaluating { .. } = event {
                batches += 1;
                stop.store(true, Ordering::Relaxed);
            }
        })
        .unwrap();
        assert_eq!((stopped.step, stopped.interrupted, batches), (steps, true, 1), "{name}");
        assert_eq!(stopped.evaluation, None);
        request.start = Start::Checkpoint(stopped.checkpoint.unwrap());
        request.stop = Arc::new(AtomicBool::new(false));
        let finished = train::run(&request, &mut |_| {}).unwrap();
        assert_eq!(bits(&finished), bits(&whole));
    }
}

#[test]
fn a_scorer_gives_the_evaluation_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let request = request(&folder.path().join("run"), &dataset, plan(ShardingPlan::row_wise, 2));
    let outcome = train::run(&request, &mut |_| {}).unwrap();
    let mut scorer = Scorer::load(&outcome.checkpoint.unwrap(), 2).unwrap();
    let (_, held_out) = dataset.split(0.2);
    let evaluation = scorer.evaluate(&dataset, held_out, &mut |_, _| {}).unwrap();
    let expected = outcome.evaluation.unwrap();
    assert_eq!(evaluation.samples, expected.samples);
    assert!((evaluation.loss - expected.loss).abs() < 1e-6, "{evaluation:?} {expected:?}");
}

/// Half of the bags of `b` are longer than their table's sequences, which have one id here and
/// three there.
#[test]
fn runs_with_sequences_resume_and_score_and_count_what_they_leave_out() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let train_rows = 2 * ROWS * 8 / 10;
    for (length, left_out) in [(1, train_rows), (3, 0)] {
        let tables = format!(
            r#"[{{ name = "a", rows = 50, dim = 4 }},
            {{ name = "b", rows = 9, dim = 4, pooling = "none", sequence_length = {length} }}]"#
        );
        let overrides = [("model.tables".to_owned(), tables.replace('\n', ""))];
        let mut request =
            request(&folder.path().join("whole"), &dataset, plan(ShardingPlan::mixed, 2));
        request.config = JobConfig::parse(&config().to_toml().unwrap(), &overrides).unwrap();
        let whole = train::run(&request, &mut |_| {}).unwrap();
        assert_eq!(whole.ids_left_out, left_out, "{length}");
        assert!(whole.evaluation.as_ref().unwrap().auc > 0.6, "{whole:?}");
        let middle = train::checkpoint::list(&request.run_folder).unwrap().swap_remove(2);
        request.run_folder = folder.path().join("resumed");
        request.start = Start::Checkpoint(middle);
        let resumed = train::run(&request, &mut |_| {}).unwrap();
        assert_eq!(bits(&resumed), bits(&whole), "{length}");
        let mut scorer = Scorer::load(&resumed.checkpoint.unwrap(), 2).unwrap();
        let (_, held_out) = dataset.split(0.2);
        let evaluation = scorer.evaluate(&dataset, held_out, &mut |_, _| {}).unwrap();
        let expected = resumed.evaluation.unwrap();
        assert!((evaluation.loss - expected.loss).abs() < 1e-6, "{evaluation:?} {expected:?}");
        for run in ["whole", "resumed"] {
            std::fs::remove_dir_all(folder.path().join(run)).unwrap();
        }
    }
}

#[test]
fn a_run_folder_serves_one_run_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let request = request(&folder.path().join("run"), &dataset, plan(ShardingPlan::table_wise, 1));
    let mut second = None;
    train::run(&request, &mut |event| {
        if let Event::Stepped { step: 2, .. } = event {
            second = Some(train::run(&request, &mut |_| {}));
        }
    })
    .unwrap();
    assert!(matches!(second, Some(Err(Error::RunBusy { .. }))), "{second:?}");
}

#[test]
fn another_models_checkpoint_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request =
        request(&folder.path().join("run"), &dataset, plan(ShardingPlan::table_wise, 1));
    request.config.training.steps = Some(2);
    let outcome = train::run(&request, &mut |_| {}).unwrap();
    request.start = Start::Checkpoint(outcome.checkpoint.unwrap());
    request.config.model.top = vec![4, 1];
    let refused = train::run(&request, &mut |_| {}).unwrap_err().to_string();
    assert!(refused.ends_with("model.top: the checkpoint has [8,1], got [4,1]"), "{refused}");
    request.config = config();
    request.config.optimizer.sparse.kind = schema::Optimizer::Sgd;
    let refused = train::run(&request, &mut |_| {}).unwrap_err().to_string();
    let expected = "optimizer.sparse.kind: the checkpoint has \"rowwise_adagrad\", got \"sgd\"";
    assert!(refused.ends_with(expected), "{refused}");
}

/// As many rows in the same columns, so neither the model nor the position tells them apart.
#[test]
fn data_of_other_transforms_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let plan = plan(ShardingPlan::table_wise, 1);
    let mut request = request(&folder.path().join("run"), &dataset(folder.path()), plan);
    request.config.training.steps = Some(2);
    let outcome = train::run(&request, &mut |_| {}).unwrap();
    request.config.training.steps = Some(4);
    request.start = Start::Checkpoint(outcome.checkpoint.unwrap());
    request.train = dataset_of(other.path(), 6);
    let refused = train::run(&request, &mut |_| {});
    assert!(matches!(refused, Err(Error::OtherTransforms { .. })), "{refused:?}");
    request.train = dataset_of(&folder.path().join("run"), 5);
    assert_eq!(train::run(&request, &mut |_| {}).unwrap().step, 4);
}

#[test]
fn a_window_without_a_step_of_the_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request =
        request(&folder.path().join("run"), &dataset, plan(ShardingPlan::table_wise, 1));
    for steps in [36..40, 5..5] {
        let asked = steps.clone();
        request.trace = Some(TraceRequest { folder: folder.path().join("trace"), steps });
        let refused = train::run(&request, &mut |_| {}).unwrap_err().to_string();
        let expected = format!(
            "steps to record: expected some of 0..36, which are left of the run, got {}..{}",
            asked.start, asked.end
        );
        assert_eq!(refused, expected);
        assert!(!folder.path().join("trace").exists());
    }
}

#[test]
fn a_run_that_leaves_the_finite_numbers_ends_with_its_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let run_folder = folder.path().join("run");
    let mut request = request(&run_folder, &dataset, plan(ShardingPlan::row_wise, 2));
    let diverged = |request: &RunRequest| {
        let error = train::run(request, &mut |_| {}).unwrap_err();
        let Error::Diverged { step, what, checkpoint } = error else { panic!("{error}") };
        let left = train::checkpoint::list(&request.run_folder).unwrap();
        assert_eq!(left.last(), checkpoint.as_ref());
        (step, what, left.len())
    };
    // A good start, then weights so large that the logits overflow.
    request.config.training.checkpoint_every = Some(1);
    request.config.training.steps = Some(4);
    let good = train::run(&request, &mut |_| {}).unwrap().checkpoint.unwrap();
    request.start = Start::Checkpoint(good);
    request.config.training.steps = Some(20);
    request.config.schedule = schema::optimizer::LearningRateSchedule::default();
    request.config.optimizer.dense.learning_rate = 1e30;
    let (step, what, left) = diverged(&request);
    assert!(step > 4 && left as u64 == step - 1, "{step}, {left} left");
    assert!(what.starts_with("the loss is "), "{what}");
    // Weights that overflow at once, under a loss that was finite.
    request.start = Start::Fresh;
    request.run_folder = folder.path().join("weights");
    request.config.optimizer.dense.learning_rate = 0.05;
    request.config.optimizer.sparse.learning_rate = 3e38;
    request.config.optimizer.sparse.weight_decay = 1e3;
    request.config.optimizer.sparse.weight_decay_mode = schema::WeightDecayMode::Decoupled;
    assert_eq!(diverged(&request), (1, "weights of table \"a\"".to_owned(), 0));
}

#[test]
fn recorded_steps_become_one_trace_per_rank() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request =
        request(&folder.path().join("run"), &dataset, plan(ShardingPlan::row_wise, 2));
    request.trace = Some(TraceRequest { folder: folder.path().join("trace"), steps: 3..6 });
    let mut traced = Vec::new();
    train::run(&request, &mut |event| {
        if let Event::Traced { paths, steps } = event {
            assert_eq!(steps, 3);
            traced.push(paths.to_vec());
        }
    })
    .unwrap();
    let [paths] = &traced[..] else { panic!("traced {} times", traced.len()) };
    assert_eq!(paths.len(), 4);
    let text = std::fs::read_to_string(folder.path().join("trace/kineto_rank1.json")).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let count = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    assert_eq!((count("ProfilerStep#3"), count("ProfilerStep#6")), (1, 0));
    assert_eq!(count("rowmill::embedding_backward"), 3);
}
