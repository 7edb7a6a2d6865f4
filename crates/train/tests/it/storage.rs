//! Tables whose rows are in files, with a cache that is smaller than the tables.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use data::{Dataset, PrepareRequest, Strictness};
use device::Cpu;
use schema::random::CounterRng;
use schema::{CachePolicy, JobConfig, ShardingPlan, TableConfig, TableStorage};
use train::{Error, RunOutcome, RunRequest, Start};

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
    let tables = vec!["a".to_owned()];
    TableStorage { tables, folder: folder.join("files"), cache_mib: 1, policy }
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
        let mut request = self.request.clone();
        request.run_folder = self.folder.path().join(name);
        request.config.storage = storage;
        request.start = start;
        train::run(&request, Cpu::open, &mut |_| {}).unwrap()
    }
}

#[test]
fn tables_in_files_train_to_the_bytes_of_tables_in_memory() {
    type Plan = fn(&[TableConfig], u32) -> ShardingPlan;
    let cases: [(&str, Plan, u32, CachePolicy); 3] = [
        ("rowwise_adagrad", ShardingPlan::table_wise, 1, CachePolicy::Lru),
        ("adam", ShardingPlan::table_wise, 1, CachePolicy::Lfu),
        ("adagrad", ShardingPlan::row_wise, 2, CachePolicy::Lru),
    ];
    for (optimizer, plan, ranks, policy) in cases {
        let case = Case::new(optimizer, plan, ranks);
        let storage = Some(storage(case.folder.path(), policy));
        let memory = case.run("memory", None, Start::Fresh);
        let stored = case.run("stored", storage.clone(), Start::Fresh);
        assert!(tensors(&memory) == tensors(&stored), "{optimizer}");
        assert_eq!(memory.loss.to_bits(), stored.loss.to_bits());
        assert_eq!(memory.evaluation, stored.evaluation);
        assert!(memory.caches.is_empty());
        let [cache] = &stored.caches[..] else { panic!("{:?}", stored.caches) };
        assert_eq!(cache.table, "a");
        if ranks == 1 {
            assert!(cache.slots < 8000 && cache.written_back > 0 && cache.bytes_read > 0);
        }
        assert!(cache.missed > 0 && cache.missed < cache.unique, "{cache:?}");
        // A run goes on from a checkpoint of the other kind.
        let first = |run: &str| {
            let run = case.folder.path().join(run);
            Start::Checkpoint(train::checkpoint::list(&run).unwrap().swap_remove(0))
        };
        let resumed = case.run("resumed", storage, first("memory"));
        assert!(tensors(&memory) == tensors(&resumed), "{optimizer}, resumed in files");
        let resumed = case.run("resumed-in-memory", None, first("stored"));
        assert!(tensors(&memory) == tensors(&resumed), "{optimizer}, resumed in memory");
    }
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
    let refused = |optimizer: &str, plan: ShardingPlan| {
        let mut config = config(optimizer);
        config.storage = Some(storage(Path::new("unused"), CachePolicy::Lru));
        let error = train::embedding::stored_tile::check::<Cpu>(&config, &plan).unwrap_err();
        error.to_string()
    };
    let tables = config("adam").model.tables;
    let text = refused("rowwise_adagrad", ShardingPlan::column_wise(&tables, 2));
    assert!(text.contains("splits columns"), "{text}");
    let mut config = config("adam");
    config.storage = Some(storage(Path::new("unused"), CachePolicy::Lru));
    let plan = ShardingPlan::table_wise(&tables, 1);
    let error = train::embedding::stored_tile::check::<device::backend::Cuda>(&config, &plan);
    assert!(error.unwrap_err().to_string().contains("on CPUs"));
}
