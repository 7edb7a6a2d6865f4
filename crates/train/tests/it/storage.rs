//! Tables whose rows are in files, with a cache that is smaller than the tables.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use data::{Dataset, Loader, LoaderOptions, Position, PrepareRequest, Shuffle, Strictness};
use device::cache::MissCurve;
use device::{Cpu, Pool};
use schema::random::CounterRng;
use schema::{CachePolicy, JobConfig, Schedule, ShardingPlan, TableConfig, TableStorage};
use train::embedding::stored_tile;
use train::{Error, RunEvent, RunOutcome, RunRequest, Start};

use crate::processes::files;
use crate::run;

const ROWS: u64 = 400;
const IDS: usize = 16;

/// A job whose table `a` takes 2 MiB with the state of its optimizer.
fn config(optimizer: &str) -> JobConfig {
    let text = format!(
        r#"
[model]
name = "stored"
dense_features = 1
bottom = [64]
top = [8, 1]
interaction = {{ kind = "dot" }}
loss = "bce_with_logits"
tables = [
    {{ name = "a", rows = 8000, dim = 64, features = ["a", "c"] }},
    {{ name = "b", rows = 50, dim = 64, pooling = "mean" }},
]
[optimizer]
sparse = {{ kind = "{optimizer}", learning_rate = 0.05 }}
dense = {{ kind = "adagrad", learning_rate = 0.05 }}
[training]
batch_size = 25
epochs = 2
shuffle_rows = 100
evaluate_every = 9
checkpoint_every = 9
keep_checkpoints = 100
[data]
format = "csv"
hold_out = 0.2
label = {{ column = "y" }}
dense = [{{ column = "u" }}]
categorical = [
    {{ column = "a", kind = "integer", separator = "|" }},
    {{ column = "c", kind = "integer" }},
    {{ column = "b", kind = "integer", separator = "|" }},
]
"#
    );
    JobConfig::parse(&text, &[]).unwrap()
}

fn dataset(config: &JobConfig, folder: &Path) -> Arc<Dataset> {
    let rng = CounterRng::new(3, 0);
    let mut text = "y,u,a,c,b\n".to_owned();
    for row in 0..ROWS {
        let rng = rng.child(row);
        let ids = |first: u64, count: usize, rows: u64| {
            let ids: Vec<String> =
                (0..count as u64).map(|id| rng.below(first + id, rows).to_string()).collect();
            ids.join("|")
        };
        let y = rng.below(0, 2);
        text += &format!(
            "{y},{:.3},{},{},{}\n",
            rng.normal(1),
            ids(10, IDS, 8000),
            ids(40, 1, 8000),
            ids(50, 3, 50)
        );
    }
    let file = folder.join("rows.csv");
    fs::write(&file, text).unwrap();
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

fn storage(folder: &Path, policy: CachePolicy) -> TableStorage {
    let (tables, folder) = (vec!["a".to_owned()], folder.join("files"));
    fs::create_dir_all(&folder).unwrap();
    TableStorage { tables, folder, cache_mib: 1, policy }
}

/// Returns the files of a checkpoint, except its manifest, which has the configuration.
fn tensors(outcome: &RunOutcome) -> BTreeMap<String, Vec<u8>> {
    let mut files = files(outcome.checkpoint.as_ref().unwrap());
    files.remove("manifest.json").unwrap();
    files
}

struct Case {
    folder: tempfile::TempDir,
    request: RunRequest,
}

impl Case {
    fn new(optimizer: &str, plan: fn(&[TableConfig], u32) -> ShardingPlan, ranks: u32) -> Self {
        let (folder, config) = (tempfile::tempdir().unwrap(), config(optimizer));
        let dataset = dataset(&config, folder.path());
        let plan = plan(&config.model.tables, ranks);
        let mut request = run::request(&folder.path().join("run"), &dataset, plan);
        request.threads = 2;
        request.config = config;
        Self { folder, request }
    }

    fn run(&self, name: &str, storage: Option<TableStorage>, start: Start) -> RunOutcome {
        train::run(&self.request_of(name, storage, start), Cpu::open, &mut |_| {}).unwrap()
    }

    /// Returns the request of a run, which reads rows ahead if tables are in files.
    fn request_of(&self, name: &str, storage: Option<TableStorage>, start: Start) -> RunRequest {
        let mut request = self.request.clone();
        request.run_folder = self.folder.path().join(name);
        request.schedule = match &storage {
            Some(_) => Schedule::PIPELINED,
            None => Schedule::SERIAL,
        };
        request.config.storage = storage;
        request.start = start;
        // Runs must not share the flag that stops them.
        request.stop = Arc::new(AtomicBool::new(false));
        request
    }

    /// Returns a checkpoint of a run, counted from the first one.
    fn checkpoint(&self, run: &str, number: usize) -> Start {
        let run = self.folder.path().join(run);
        Start::Checkpoint(train::checkpoint::list(&run).unwrap().swap_remove(number))
    }
}

#[test]
fn tables_in_files_train_to_the_bytes_of_tables_in_memory() {
    type Plan = fn(&[TableConfig], u32) -> ShardingPlan;
    // Two batches of 80 samples do not fit into the cache, so their rows are not read ahead.
    let cases: [(&str, Plan, u32, CachePolicy, usize); 4] = [
        ("rowwise_adagrad", ShardingPlan::table_wise, 1, CachePolicy::Lru, 25),
        ("adam", ShardingPlan::table_wise, 1, CachePolicy::Lfu, 25),
        ("adagrad", ShardingPlan::row_wise, 2, CachePolicy::Lru, 25),
        ("adagrad", ShardingPlan::table_wise, 1, CachePolicy::Lfu, 80),
    ];
    for (optimizer, plan, ranks, policy, batch_size) in cases {
        let mut case = Case::new(optimizer, plan, ranks);
        case.request.config.training.batch_size = batch_size;
        let storage = Some(storage(case.folder.path(), policy));
        let memory = case.run("memory", None, Start::Fresh);
        let mut serial = case.request_of("serial", storage.clone(), Start::Fresh);
        serial.schedule = Schedule::SERIAL;
        let serial = train::run(&serial, Cpu::open, &mut |_| {}).unwrap();
        let stored = case.run("stored", storage.clone(), Start::Fresh);
        for stored in [&serial, &stored] {
            assert!(tensors(&memory) == tensors(stored), "{optimizer}");
            assert_eq!(memory.loss.to_bits(), stored.loss.to_bits());
            assert_eq!(memory.evaluation, stored.evaluation);
            let [cache] = &stored.caches[..] else { panic!("{:?}", stored.caches) };
            assert_eq!(cache.table, "a");
            if ranks == 1 {
                assert!(cache.slots < 8000 && cache.written_back > 0 && cache.bytes_read > 0);
            }
            assert!(cache.missed > 0 && cache.missed < cache.unique, "{cache:?}");
            let ids = (batch_size * (IDS + 1)) as u64;
            assert_eq!(2 * ids > cache.slots, batch_size == 80, "{ids} ids, {cache:?}");
        }
        assert!(memory.caches.is_empty());
        // A run goes on from a checkpoint of the other kind.
        let resumed = case.run("resumed", storage, case.checkpoint("memory", 0));
        assert!(tensors(&memory) == tensors(&resumed), "{optimizer}, resumed in files");
        let resumed = case.run("resumed-in-memory", None, case.checkpoint("stored", 0));
        assert!(tensors(&memory) == tensors(&resumed), "{optimizer}, resumed in memory");
    }
}

/// Counts of training and of the simulator on the same batches.
#[test]
fn simulated_caches_miss_the_rows_that_training_misses() {
    for policy in [CachePolicy::Lru, CachePolicy::Lfu] {
        let mut case = Case::new("adam", ShardingPlan::table_wise, 1);
        let training = &mut case.request.config.training;
        (training.evaluate_every, training.checkpoint_every) = (None, None);
        let storage = Some(storage(case.folder.path(), policy));
        let request = case.request_of("stored", storage, Start::Fresh);
        let stored = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
        let [live] = &stored.caches[..] else { panic!("{:?}", stored.caches) };

        let (config, training) = (&request.config, &request.config.training);
        let held = &request.plan.tiles()[..1];
        let [Some(shape)] = stored_tile::cache_shapes(config, held)[..] else { unreachable!() };
        let mut curve = MissCurve::new(&[shape.slots()], policy);
        let shuffle = Shuffle { seed: training.seed, buffer_rows: training.shuffle_rows };
        let options = LoaderOptions {
            batch_size: training.batch_size,
            shuffle: Some(shuffle),
            drop_last: training.drop_last,
            rows: request.train_rows.clone(),
            start: Position::default(),
            epochs: Some(training.epochs),
            batches: None,
        };
        let (host, plan) = (Pool::new(1), train::run::feature_plan(&config.model));
        let mut ids = Vec::new();
        for batch in Loader::start(&request.train, &plan, options).unwrap() {
            let sparse = batch.unwrap().batch.sparse;
            // The features 0 and 1, `a` and `c`, share the table whose cache is simulated.
            ids = [0, 1].map(|feature| &sparse.values[sparse.feature(feature)]).concat();
            curve.take(&host, &ids);
        }
        // Before a checkpoint is saved, the last batch is looked up again.
        curve.take(&host, &ids);
        let simulated = curve.points()[0].counts.unwrap();
        assert_eq!(
            (live.unique, live.missed, live.conflicts, live.evicted, live.written_back),
            (
                simulated.unique,
                simulated.missed,
                simulated.conflicts,
                simulated.evicted,
                simulated.written_back
            ),
            "{policy:?}"
        );
        assert!(live.evicted > 0, "{live:?}");
    }
}

/// Returns the path by which this process can open the file of rows in `folder`, which has no name.
fn open_file_of_rows(folder: &Path) -> PathBuf {
    let begin = folder.join(".rowmill-");
    let is_rows = |path: &PathBuf| {
        fs::read_link(path)
            .is_ok_and(|to| to.to_string_lossy().starts_with(&*begin.to_string_lossy()))
    };
    let files = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    files.into_iter().find(is_rows).unwrap()
}

#[test]
fn a_damaged_file_of_rows_ends_the_run_and_no_wrong_row_is_trained() {
    let case = Case::new("adam", ShardingPlan::table_wise, 1);
    let storage = storage(case.folder.path(), CachePolicy::Lru);
    let memory = case.run("memory", None, Start::Fresh);
    let flip_a_bit_of_each_block = |path: &Path| {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        for block in 0..file.metadata().unwrap().len() / 4096 {
            let (mut byte, at) = ([0], 4096 * block + block % 3000);
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1 << (block % 8)], at).unwrap();
        }
    };
    let cut = |path: &Path| OpenOptions::new().write(true).open(path).unwrap().set_len(0).unwrap();
    for name in ["flipped", "cut"] {
        let damage: &dyn Fn(&Path) = if name == "cut" { &cut } else { &flip_a_bit_of_each_block };
        let request = case.request_of(name, Some(storage.clone()), Start::Fresh);
        let error = train::run(&request, Cpu::open, &mut |event| {
            if matches!(event, RunEvent::Stepped { step: 12, .. }) {
                damage(&open_file_of_rows(&storage.folder));
            }
        });
        let error = error.unwrap_err();
        let folder = storage.folder.display().to_string();
        let text = error.to_string();
        assert!(text.contains(&folder), "{text}");
        let is_named = matches!(error.cause(), Error::StoredRows { table, .. } if table == "a");
        // A write beyond the end of a cut file fills the hole with zeros, which are named, too.
        assert!(is_named || name == "cut" && text.contains("read rows in"), "{text}");
        // The checkpoint before the damage is whole.
        let resumed =
            case.run(&format!("{name}-on"), Some(storage.clone()), case.checkpoint(name, 0));
        assert!(tensors(&memory) == tensors(&resumed), "{name}");
    }
}

#[test]
fn a_stopped_run_with_tables_in_files_goes_on_to_the_same_bytes() {
    let case = Case::new("adam", ShardingPlan::table_wise, 1);
    let storage = Some(storage(case.folder.path(), CachePolicy::Lru));
    let memory = case.run("memory", None, Start::Fresh);
    let request = case.request_of("stopped", storage.clone(), Start::Fresh);
    let stopped = train::run(&request, Cpu::open, &mut |event| {
        if matches!(event, RunEvent::Stepped { step: 5, .. }) {
            request.stop.store(true, Ordering::Relaxed);
        }
    });
    let stopped = stopped.unwrap();
    assert!(stopped.interrupted && stopped.step < 9, "{}", stopped.step);
    let resumed = case.run("resumed", storage, case.checkpoint("stopped", 0));
    assert!(tensors(&memory) == tensors(&resumed));
}

#[test]
fn a_batch_beyond_the_cache_ends_the_run_with_its_size() {
    let mut case = Case::new("adam", ShardingPlan::table_wise, 1);
    case.request.config.training.batch_size = 320;
    case.request.config.storage = Some(storage(case.folder.path(), CachePolicy::Lru));
    let error = train::run(&case.request, Cpu::open, &mut |_| {}).unwrap_err();
    assert!(matches!(error.cause(), Error::CacheFull { .. }), "{error}");
    assert!(error.to_string().contains("distinct rows"), "{error}");
}

#[test]
fn plans_that_a_cache_cannot_serve_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |optimizer: &str, plan: ShardingPlan| {
        let mut config = config(optimizer);
        config.storage = Some(storage(folder.path(), CachePolicy::Lru));
        let error = stored_tile::check::<Cpu>(&config, &plan).unwrap_err();
        error.to_string()
    };
    let tables = config("adam").model.tables;
    let text = refused("rowwise_adagrad", ShardingPlan::column_wise(&tables, 2));
    assert!(text.contains("splits columns"), "{text}");
    let mut config = config("adam");
    config.storage = Some(storage(folder.path(), CachePolicy::Lru));
    let plan = ShardingPlan::table_wise(&tables, 1);
    let error = stored_tile::check::<device::backend::Cuda>(&config, &plan);
    assert!(error.unwrap_err().to_string().contains("on CPUs"));
    fs::remove_dir(folder.path().join("files")).unwrap();
    let error = stored_tile::check::<Cpu>(&config, &plan).unwrap_err();
    assert!(error.to_string().contains("expected an existing folder"), "{error}");
}
