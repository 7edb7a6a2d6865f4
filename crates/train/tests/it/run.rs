//! Tests whole runs on a small prepared dataset: on several ranks, resumed, stopped and recorded.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use data::{Dataset, PrepareRequest, Strictness};
use device::{Cpu, WeightsMut};
use schema::random::CounterRng;
use schema::{DataType, JobConfig, Optimizer, Schedule, ShardingPlan, TableConfig};
use train::checkpoint::{Checkpoint, CheckpointWriter, Meta};
use train::parameter::{DenseParameter, TileState, dense_shapes};
use train::state_dict::{self, Dialect};
use train::{Error, RuleChange, RunEvent, RunOutcome, RunRequest, Scorer, Start, TraceRequest};

const ROWS: u64 = 700;

pub fn config() -> JobConfig {
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

pub fn dataset(folder: &Path) -> Arc<Dataset> {
    dataset_of(folder, 5)
}

fn dataset_of(folder: &Path, seed: u64) -> Arc<Dataset> {
    dataset_with(&config(), folder, seed)
}

fn dataset_with(config: &JobConfig, folder: &Path, seed: u64) -> Arc<Dataset> {
    dataset_fitted(config, (folder, seed), None)
}

fn dataset_fitted(
    config: &JobConfig,
    (folder, seed): (&Path, u64),
    fitted: Option<&data::Fitted>,
) -> Arc<Dataset> {
    std::fs::create_dir_all(folder).unwrap();
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
    let inputs = [file.to_str().unwrap().to_owned()];
    let request = PrepareRequest {
        inputs: &inputs,
        config: &config.data,
        fitted,
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

pub fn request(folder: &Path, dataset: &Arc<Dataset>, plan: ShardingPlan) -> RunRequest {
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
        rule_change: RuleChange::Refuse,
        bucket_bytes: 200,
        schedule: Schedule::SERIAL,
        trace: None,
        orders: train::run::TraceInbox::default(),
        stop: Arc::new(AtomicBool::new(false)),
    }
}

pub fn plan(make: fn(&[TableConfig], u32) -> ShardingPlan, ranks: u32) -> ShardingPlan {
    make(&config().model.tables, ranks)
}

fn bits(outcome: &RunOutcome) -> (u64, u64, u64) {
    let evaluation = outcome.evaluation.as_ref().unwrap();
    (outcome.step, outcome.loss.to_bits(), evaluation.loss.to_bits())
}

#[test]
fn a_run_resumed_from_any_checkpoint_ends_with_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request = request(&folder.path().join("whole"), &dataset, plan(ShardingPlan::mixed, 2));
    let whole = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
    assert_eq!(whole.step, 2 * (ROWS * 8 / 10).div_ceil(32));
    let checkpoints = train::checkpoint::list(&request.run_folder).unwrap();
    assert!(checkpoints.len() > 4, "{checkpoints:?}");
    for (i, checkpoint) in checkpoints.into_iter().enumerate() {
        request.run_folder = folder.path().join(format!("resumed-{i}"));
        request.start = Start::Checkpoint(checkpoint);
        let resumed = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
        assert_eq!(bits(&resumed), bits(&whole), "from checkpoint {i}");
    }
}

#[test]
fn a_checkpoint_resumes_under_another_plan() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request =
        request(&folder.path().join("one"), &dataset, plan(ShardingPlan::table_wise, 1));
    let whole = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
    let middle = train::checkpoint::list(&request.run_folder).unwrap().swap_remove(2);
    request.start = Start::Checkpoint(middle);
    request.plan = plan(ShardingPlan::row_wise, 3);
    request.run_folder = folder.path().join("three");
    let resharded = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
    let (a, b) = (whole.evaluation.unwrap(), resharded.evaluation.unwrap());
    assert!((a.loss - b.loss).abs() < 1e-5, "{a:?} against {b:?}");
    assert!(a.auc > 0.6, "{a:?}");
}

#[test]
fn a_stopped_run_saves_a_checkpoint_and_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request =
        request(&folder.path().join("run"), &dataset, plan(ShardingPlan::column_wise, 2));
    let whole = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
    request.run_folder = folder.path().join("stopped");
    let stop = Arc::clone(&request.stop);
    let stopped = train::run(&request, Cpu::open, &mut |event| {
        if let RunEvent::Stepped { step: 10, .. } = event {
            stop.store(true, Ordering::Relaxed);
        }
    })
    .unwrap();
    assert!(stopped.interrupted && stopped.step == 10, "{stopped:?}");
    request.stop = Arc::new(AtomicBool::new(false));
    request.start = Start::Checkpoint(stopped.checkpoint.unwrap());
    let finished = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
    assert_eq!(bits(&finished), bits(&whole));
}

/// A run that trains nothing must not look like a successful run.
#[test]
fn a_run_without_one_full_batch_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request =
        request(&folder.path().join("run"), &dataset, plan(ShardingPlan::table_wise, 1));
    request.config.training.batch_size = 1000;
    request.config.training.drop_last = true;
    let refused = train::run(&request, Cpu::open, &mut |_| {}).map_err(|error| error.to_string());
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
        let refused = train::run(&request, Cpu::open, &mut |event| {
            steps += u64::from(matches!(event, RunEvent::Stepped { .. }));
        });
        assert!(matches!(refused, Err(Error::Io { .. })), "{refused:?}");
        assert_eq!(steps, 0);
    }
}

#[test]
fn a_stop_interrupts_an_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request =
        request(&folder.path().join("run"), &dataset, plan(ShardingPlan::column_wise, 2));
    let whole = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
    for (name, evaluate_every, steps) in [("between", Some(10), 10), ("end", None, whole.step)] {
        request.run_folder = folder.path().join(name);
        request.start = Start::Fresh;
        request.config.training.evaluate_every = evaluate_every;
        request.stop = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&request.stop);
        let mut batches = 0;
        let stopped = train::run(&request, Cpu::open, &mut |event| {
            if let RunEvent::Evaluating { .. } = event {
                batches += 1;
                stop.store(true, Ordering::Relaxed);
            }
        })
        .unwrap();
        assert_eq!((stopped.step, stopped.interrupted, batches), (steps, true, 1), "{name}");
        assert_eq!(stopped.evaluation, None);
        request.start = Start::Checkpoint(stopped.checkpoint.unwrap());
        request.stop = Arc::new(AtomicBool::new(false));
        let finished = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
        assert_eq!(bits(&finished), bits(&whole));
    }
}

#[test]
fn a_scorer_reproduces_the_evaluation_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let request = request(&folder.path().join("run"), &dataset, plan(ShardingPlan::row_wise, 2));
    let outcome = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
    let mut scorer = Scorer::load(&outcome.checkpoint.unwrap(), Cpu::new(2)).unwrap();
    let (_, held_out) = dataset.split(0.2);
    let evaluation = scorer.evaluate(&dataset, held_out, &mut |_, _| {}).unwrap();
    let expected = outcome.evaluation.unwrap();
    assert_eq!(evaluation.samples, expected.samples);
    assert!((evaluation.loss - expected.loss).abs() < 1e-6, "{evaluation:?} {expected:?}");
}

/// Mapped tables must give the same bits as loaded tables, in all data types and tilings.
#[test]
fn mapped_and_loaded_tables_evaluate_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let (_, held_out) = dataset.split(0.2);
    for (plan_of, data_type) in [
        (ShardingPlan::table_wise as fn(&[TableConfig], u32) -> ShardingPlan, DataType::F32),
        (ShardingPlan::row_wise, DataType::F16),
        (ShardingPlan::mixed, DataType::Bf16),
        (ShardingPlan::mixed, DataType::F32),
    ] {
        let run_folder = folder.path().join("run");
        let mut config = config();
        // Table 0 has more rows than a batch has ids, so its mapped rows are copied one by one.
        config.model.tables[0].rows = 500;
        config.model.tables.iter_mut().for_each(|table| table.data_type = data_type);
        let plan = plan_of(&config.model.tables, 3);
        let mut request = request(&run_folder, &dataset, plan);
        request.config = config;
        let checkpoint = train::run(&request, Cpu::open, &mut |_| {}).unwrap().checkpoint.unwrap();
        let [loaded, mapped] = [Scorer::load, Scorer::open].map(|scorer| {
            let mut scorer = scorer(&checkpoint, Cpu::new(2)).unwrap();
            scorer.evaluate(&dataset, held_out.clone(), &mut |_, _| {}).unwrap()
        });
        assert_eq!(loaded.loss.to_bits(), mapped.loss.to_bits(), "{data_type:?}");
        assert_eq!(loaded.auc.to_bits(), mapped.auc.to_bits(), "{data_type:?}");
        std::fs::remove_dir_all(&run_folder).unwrap();
    }
}

/// Every bag of `b` has two ids. A `sequence_length` of 1 truncates them to one, and 3 keeps both.
#[test]
fn runs_with_sequences_resume_score_and_count_truncated_ids() {
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
        let whole = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
        assert_eq!(whole.ids_left_out, left_out, "{length}");
        assert!(whole.evaluation.as_ref().unwrap().auc > 0.6, "{whole:?}");
        let middle = train::checkpoint::list(&request.run_folder).unwrap().swap_remove(2);
        request.run_folder = folder.path().join("resumed");
        request.start = Start::Checkpoint(middle);
        let resumed = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
        assert_eq!(bits(&resumed), bits(&whole), "{length}");
        let mut scorer = Scorer::open(&resumed.checkpoint.unwrap(), Cpu::new(2)).unwrap();
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
fn a_run_folder_is_locked_by_one_run_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let request = request(&folder.path().join("run"), &dataset, plan(ShardingPlan::table_wise, 1));
    let mut second = None;
    train::run(&request, Cpu::open, &mut |event| {
        if let RunEvent::Stepped { step: 2, .. } = event {
            second = Some(train::run(&request, Cpu::open, &mut |_| {}));
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
    let outcome = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
    request.start = Start::Checkpoint(outcome.checkpoint.unwrap());
    request.config.model.top = vec![4, 1];
    let refused = train::run(&request, Cpu::open, &mut |_| {}).unwrap_err().to_string();
    assert!(refused.ends_with("model.top: the checkpoint has [8,1], got [4,1]"), "{refused}");
    request.config = config();
    request.config.optimizer.sparse.kind = schema::Optimizer::Sgd;
    let refused = train::run(&request, Cpu::open, &mut |_| {}).unwrap_err().to_string();
    let expected = "optimizer.sparse.kind: the checkpoint has \"rowwise_adagrad\", got \"sgd\"";
    assert!(refused.ends_with(expected), "{refused}");
}

/// Both datasets have the same columns and number of rows, so neither the model nor the position
/// reveals the difference.
#[test]
fn data_of_other_transforms_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let plan = plan(ShardingPlan::table_wise, 1);
    let mut request = request(&folder.path().join("run"), &dataset(folder.path()), plan);
    request.config.training.steps = Some(2);
    let outcome = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
    request.config.training.steps = Some(4);
    request.start = Start::Checkpoint(outcome.checkpoint.unwrap());
    request.train = dataset_of(other.path(), 6);
    let refused = train::run(&request, Cpu::open, &mut |_| {});
    assert!(matches!(refused, Err(Error::OtherTransforms { .. })), "{refused:?}");
    request.train = dataset_of(&folder.path().join("run"), 5);
    assert_eq!(train::run(&request, Cpu::open, &mut |_| {}).unwrap().step, 4);
}

/// Both datasets have equal columns, transforms and numbers of rows, but the rows are different.
#[test]
fn other_rows_under_the_same_transforms_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (began, other) = (dataset(folder.path()), tempfile::tempdir().unwrap());
    let other = dataset_fitted(&config(), (other.path(), 6), Some(began.fitted()));
    assert_eq!(other.rows(), began.rows());
    let plan = plan(ShardingPlan::table_wise, 1);
    let mut request = request(&folder.path().join("run"), &began, plan);
    request.config.training.steps = Some(2);
    let outcome = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
    request.start = Start::Checkpoint(outcome.checkpoint.unwrap());
    request.config.training.steps = Some(4);
    let (_, held_out) = other.split(0.2);
    let on = |train: &Arc<Dataset>, evaluation: &Arc<Dataset>| RunRequest {
        train: Arc::clone(train),
        evaluation: Some((Arc::clone(evaluation), held_out.clone())),
        ..request.clone()
    };
    for (request, rows) in [(on(&other, &began), "training"), (on(&began, &other), "held-out")] {
        match train::run(&request, Cpu::open, &mut |_| {}) {
            Err(Error::OtherRows { which, .. }) => assert_eq!(which, rows),
            outcome => panic!("{rows}: {outcome:?}"),
        }
    }
    // A run may resume without the held-out rows, and with the same rows in another folder.
    let elsewhere = tempfile::tempdir().unwrap();
    let same = dataset(elsewhere.path());
    let without = RunRequest { evaluation: None, ..on(&same, &began) };
    assert_eq!(train::run(&without, Cpu::open, &mut |_| {}).unwrap().step, 4);
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
        let refused = train::run(&request, Cpu::open, &mut |_| {}).unwrap_err().to_string();
        let expected = format!(
            "steps to record: expected some of 0..36, which are left of the run, got {}..{}",
            asked.start, asked.end
        );
        assert_eq!(refused, expected);
        assert!(!folder.path().join("trace").exists());
    }
}

#[test]
fn a_diverged_run_fails_and_names_its_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let run_folder = folder.path().join("run");
    let mut request = request(&run_folder, &dataset, plan(ShardingPlan::row_wise, 2));
    let diverged = |request: &RunRequest| {
        let error = train::run(request, Cpu::open, &mut |_| {}).unwrap_err();
        let Error::Diverged { step, what, checkpoint } = error else { panic!("{error}") };
        let left = train::checkpoint::list(&request.run_folder).unwrap();
        assert_eq!(left.last(), checkpoint.as_ref());
        (step, what, left.len())
    };
    // Train normally at first, then with weights so large that the logits overflow.
    request.config.training.checkpoint_every = Some(1);
    request.config.training.steps = Some(4);
    let good = train::run(&request, Cpu::open, &mut |_| {}).unwrap().checkpoint.unwrap();
    request.start = Start::Checkpoint(good);
    request.config.training.steps = Some(20);
    request.config.schedule = schema::optimizer::LearningRateSchedule::default();
    request.config.optimizer.dense.learning_rate = 1e30;
    let (step, what, left) = diverged(&request);
    assert!(step > 4 && left as u64 == step - 1, "{step}, {left} left");
    let expected = "the loss on the same batch after the step is ";
    assert!(what.starts_with(expected) && what.ends_with("expected a finite number"), "{what}");
    // Make weights overflow in the first step, whose loss is still finite.
    request.start = Start::Fresh;
    request.run_folder = folder.path().join("weights");
    request.config.optimizer.dense.learning_rate = 0.05;
    request.config.optimizer.sparse.learning_rate = 3e38;
    request.config.optimizer.sparse.weight_decay = 1e3;
    request.config.optimizer.sparse.weight_decay_mode = schema::WeightDecayMode::Decoupled;
    let (step, what, left) = diverged(&request);
    assert_eq!((step, left), (1, 0));
    assert!(what.starts_with("table \"a\", row ") && what.contains(": weight is "), "{what}");
}

#[test]
fn recorded_steps_become_one_trace_per_rank() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request =
        request(&folder.path().join("run"), &dataset, plan(ShardingPlan::row_wise, 2));
    request.trace = Some(TraceRequest { folder: folder.path().join("trace"), steps: 3..6 });
    let mut traced = Vec::new();
    train::run(&request, Cpu::open, &mut |event| {
        if let RunEvent::Traced { paths, steps } = event {
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

/// The loss of a step is computed with the weights before it, so it cannot reveal that the last
/// step made weights non-finite.
#[test]
fn the_last_step_of_a_run_is_checked_before_it_is_saved() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    for (number, ranks) in [1, 2].into_iter().enumerate() {
        let run = folder.path().join(number.to_string());
        let mut request = request(&run, &dataset, plan(ShardingPlan::row_wise, ranks));
        request.config.optimizer.dense.learning_rate = 1e30;
        request.config.training.steps = Some(1);
        request.config.training.checkpoint_every = None;
        request.evaluation = None;
        let error = train::run(&request, Cpu::open, &mut |_| {}).unwrap_err();
        assert!(matches!(error, Error::Diverged { step: 1, checkpoint: None, .. }), "{error}");
        let expected = "step 1: the loss on the same batch after the step is ";
        assert!(error.to_string().starts_with(expected), "{error}");
        assert!(train::checkpoint::list(&run).unwrap().is_empty());
    }
}

#[test]
fn weights_clamped_by_a_16_bit_table_fail_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    for (data_type, rate) in [(DataType::F16, 1e9), (DataType::Bf16, 3.4e38)] {
        let run = folder.path().join(format!("{data_type:?}"));
        let mut request = request(&run, &dataset, plan(ShardingPlan::table_wise, 1));
        request.config.model.tables[0].data_type = data_type;
        request.config.optimizer.sparse.kind = Optimizer::Adagrad;
        request.config.optimizer.sparse.learning_rate = rate;
        request.config.schedule = schema::optimizer::LearningRateSchedule::default();
        request.config.training.steps = Some(1);
        request.evaluation = None;
        let error = train::run(&request, Cpu::open, &mut |_| {}).unwrap_err().to_string();
        let name = format!("{data_type:?}").to_uppercase();
        let ends =
            format!(", the largest {name} number; larger weights were clamped; no checkpoint");
        assert!(error.starts_with("step 1: table \"a\", row "), "{error}");
        assert!(error.contains(&ends), "{error}");
        assert!(train::checkpoint::list(&run).unwrap().is_empty());
    }
}

/// Copies a checkpoint to another run and changes it with `damage`.
fn write_damaged(
    request: &RunRequest,
    checkpoint: &Path,
    damage: impl Fn(&mut [TileState], &mut [DenseParameter]),
) -> PathBuf {
    let saved = Checkpoint::open(checkpoint).unwrap();
    let (config, manifest) = (&request.config, saved.manifest());
    let kinds = (config.optimizer.sparse.kind, config.optimizer.dense.kind);
    let whole = ShardingPlan::table_wise(&config.model.tables, 1);
    let tile = |tile: &schema::Tile| {
        let name = &config.model.tables[tile.table.index()].name;
        saved.read_tile(name, tile, kinds.0).unwrap()
    };
    let mut tiles: Vec<TileState> = whole.tiles().iter().map(tile).collect();
    let shapes = dense_shapes(&config.model);
    let zeros = |(name, shape): &(String, Vec<usize>)| DenseParameter::zeros(name, shape, kinds.1);
    let mut dense: Vec<DenseParameter> = shapes.iter().map(zeros).collect();
    saved.read_dense(&mut dense).unwrap();
    damage(&mut tiles, &mut dense);
    let run = request.run_folder.join("damaged");
    let writer = CheckpointWriter::begin(&run, manifest.step, &config.model.tables).unwrap();
    let tables = writer.write_rank(schema::Rank(0), &tiles, kinds.0).unwrap();
    let records = vec![tables, writer.write_dense(&dense, kinds.1).unwrap()];
    let meta = Meta {
        samples: manifest.samples,
        config,
        plan: &whole,
        row_scope: saved.row_scope(),
        fitted: manifest.fitted.clone(),
        position: manifest.position.clone(),
        data: train::checkpoint::SeenData::default(),
    };
    writer.commit(&meta, records).unwrap().folder
}

#[test]
fn a_checkpoint_with_a_non_finite_value_is_refused_with_its_position() {
    type Spoil = fn(&mut [TileState], &mut [DenseParameter]);
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request =
        request(&folder.path().join("run"), &dataset, plan(ShardingPlan::table_wise, 1));
    request.config.training.steps = Some(2);
    let good = train::run(&request, Cpu::open, &mut |_| {}).unwrap().checkpoint.unwrap();
    request.config.training.steps = Some(4);
    let weight: Spoil = |tiles, _| {
        let WeightsMut::F32(values) = tiles[0].weight.view_mut() else { panic!() };
        values[4 * 7 + 2] = f32::NAN;
    };
    let state: Spoil = |tiles, _| tiles[1].state[3] = f32::INFINITY;
    let bias: Spoil = |_, dense| dense[1].weight[5] = f32::NEG_INFINITY;
    let sum: Spoil = |_, dense| dense[0].state[3] = f32::NAN;
    for (damage, place, scores) in [
        (weight, "table \"a\", row 7, column 2: weight is NaN", false),
        (state, "table \"b\", row 3, column 0: state is inf", true),
        (bias, "bottom.0.bias, row 5, column 0: weight is -inf", false),
        (sum, "bottom.0.weight, row 1, column 1: state is NaN", true),
    ] {
        let damaged = write_damaged(&request, &good, damage);
        let expected = format!("{}: {place}, expected a finite number", damaged.display());
        let saved = Checkpoint::open(&damaged).unwrap();
        let out = folder.path().join("exported");
        let change = RuleChange::Refuse;
        let exported = state_dict::export_optimizer(&saved, Dialect::Torchrec, &out, change);
        assert_eq!(exported.unwrap_err().to_string(), expected);
        assert!(!out.exists());
        request.start = Start::Checkpoint(damaged.clone());
        let refused = train::run(&request, Cpu::open, &mut |_| {}).unwrap_err().to_string();
        assert_eq!(refused, expected);
        match Scorer::load(&damaged, Cpu::new(2)) {
            // The scorer does not read optimizer states, so it cannot notice their damage.
            Ok(_) => assert!(scores, "{place}"),
            Err(error) => assert_eq!((error.to_string(), scores), (expected, false)),
        }
    }
}

/// Finite weights may still give NaN probabilities, and the evaluation must then fail.
#[test]
fn a_model_without_probabilities_is_not_evaluated() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request =
        request(&folder.path().join("run"), &dataset, plan(ShardingPlan::table_wise, 1));
    request.config.training.steps = Some(2);
    let good = train::run(&request, Cpu::open, &mut |_| {}).unwrap().checkpoint.unwrap();
    let damaged = write_damaged(&request, &good, |_, dense| {
        dense.iter_mut().for_each(|parameter| parameter.weight.fill(1e30));
    });
    let mut scorer = Scorer::load(&damaged, Cpu::new(1)).unwrap();
    let (_, held_out) = dataset.split(0.2);
    let refused = scorer.evaluate(&dataset, held_out, &mut |_, _| {}).unwrap_err().to_string();
    let expected = "140 samples, the first 0: expected a probability, got NaN";
    assert!(refused.ends_with(expected), "{refused}");
    request.start = Start::Checkpoint(damaged);
    let refused = train::run(&request, Cpu::open, &mut |_| {}).unwrap_err();
    assert!(matches!(refused, Error::Diverged { step: 2, .. }), "{refused}");
    assert!(refused.to_string().contains("step 2: held-out data: 140 samples"), "{refused}");
}

/// Lists the names in the checkpoint folder of a run.
fn names(run: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(run.join("checkpoints")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn newer_checkpoints_are_set_aside_only_after_all_checks() {
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let data = dataset(folder.path());
    let run = folder.path().join("run");
    let good = request(&run, &data, plan(ShardingPlan::row_wise, 2));
    train::run(&good, Cpu::open, &mut |_| {}).unwrap();
    let before = names(&run);
    let start = Start::Checkpoint(train::checkpoint::list(&run).unwrap().swap_remove(1));
    let good = RunRequest { start, ..good };
    let mut refused: Vec<(&str, RunRequest)> = Vec::new();
    let mut damage = |what, damage: &dyn Fn(&mut RunRequest)| {
        let mut request = good.clone();
        damage(&mut request);
        refused.push((what, request));
    };
    damage("model", &|request| request.config.model.top = vec![4, 1]);
    damage("rule", &|request| request.config.optimizer.sparse.kind = Optimizer::Sgd);
    damage("scope", &|request| {
        request.plan = plan(ShardingPlan::column_wise, 2);
        request.config.optimizer.row_scope = schema::SplitRowRule::ColumnTiles;
    });
    damage("transforms", &|request| request.train = dataset_of(other.path(), 6));
    damage("trace", &|request| {
        request.trace = Some(TraceRequest { folder: folder.path().join("t"), steps: 900..901 });
    });
    damage("evaluation", &|request| {
        let mut config = config();
        config.data.categorical.pop();
        let other = dataset_with(&config, &folder.path().join("narrow"), 5);
        request.evaluation = Some((other, 0..10));
    });
    for (what, request) in refused {
        train::run(&request, Cpu::open, &mut |_| {}).expect_err(what);
        assert_eq!(names(&run), before, "{what}");
    }
    let mut moved = Vec::new();
    train::run(&good, Cpu::open, &mut |event| match event {
        RunEvent::SetAside { from, to } => moved.push((from.to_owned(), to.to_owned())),
        RunEvent::Stepped { .. } => assert_eq!(moved.len(), before.len() - 2),
        _ => {}
    })
    .unwrap();
    let aside = train::checkpoint::list_aside(&run).unwrap();
    assert_eq!(aside, moved.iter().map(|(_, to)| to.clone()).collect::<Vec<_>>());
    for (from, to) in moved {
        assert_eq!(to.display().to_string(), format!("{}.aside-1", from.display()));
        Checkpoint::open(&to).unwrap();
    }
}
