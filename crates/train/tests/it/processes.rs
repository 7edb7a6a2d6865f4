//! Tests ranks that each open the data themselves, like processes, but exchange messages over the
//! in-process transport.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use device::Cpu;
use schema::{Optimizer, ShardingPlan, TableConfig};
use train::run::{PreparedRun, Processes, follow};
use train::{Error, RunOutcome, RunRequest};

use crate::run::{dataset, plan, request};

/// Runs each request on the rank with its index. Each rank opens the data itself.
pub fn as_processes(requests: Vec<RunRequest>) -> Vec<Result<Option<RunOutcome>, Error>> {
    let ends = comm::world(requests.len() as u32);
    std::thread::scope(|scope| {
        let run = |(rank, (request, comm)): (usize, (RunRequest, comm::Communicator))| {
            scope.spawn(move || {
                let processes = Processes { comm, timeout: Duration::from_secs(60), native: false };
                if rank == 0 {
                    PreparedRun::begin(request)?.lead(Cpu::open, processes, &mut |_| {}).map(Some)
                } else {
                    follow(&request, Cpu::open, processes).map(|_| None)
                }
            })
        };
        let ranks: Vec<_> = requests.into_iter().zip(ends).enumerate().map(run).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Reads the bytes of every file of a checkpoint.
pub fn files(checkpoint: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(checkpoint).unwrap();
    let file = |path: std::path::PathBuf| {
        (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap())
    };
    entries.map(|entry| file(entry.unwrap().path())).collect()
}

#[test]
fn issue_28_ranks_that_read_their_own_data_write_the_same_checkpoint() {
    type Make = fn(&[TableConfig], u32) -> ShardingPlan;
    let makes: [Make; 5] = [
        ShardingPlan::table_wise,
        ShardingPlan::row_wise,
        ShardingPlan::column_wise,
        ShardingPlan::mixed,
        crate::checkpoint::with_replicas,
    ];
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    for (i, kind) in Optimizer::ALL.into_iter().enumerate() {
        // Each optimizer runs on a single number of ranks, which limits the duration of the test.
        let ranks = [1, 2, 4][i % 3];
        for (j, make) in makes.into_iter().enumerate() {
            let asked = |name: &str| {
                let run = folder.path().join(format!("{name}-{i}-{j}"));
                let mut request = request(&run, &dataset, plan(make, ranks));
                request.config.training.steps = Some(20);
                request.config.training.evaluate_every = Some(8);
                request.config.optimizer.sparse.kind = kind;
                request
            };
            let threads = train::run(&asked("threads"), Cpu::open, &mut |_| {}).unwrap();
            let requests = (0..ranks).map(|_| asked("processes")).collect();
            let led = as_processes(requests).swap_remove(0).unwrap().unwrap();
            assert_eq!(led.evaluation, threads.evaluation, "{kind} {ranks} {j}");
            let (a, b) = (threads.checkpoint.unwrap(), led.checkpoint.unwrap());
            assert!(files(&a) == files(&b), "{kind} {ranks} {j}");
        }
    }
}

#[test]
fn issue_28_ranks_with_different_requests_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let run = folder.path().join("run");
    let two = || request(&run, &dataset, plan(ShardingPlan::table_wise, 2));
    let mut others = [two(), two(), two()];
    others[0].config.training.batch_size = 31;
    others[1].plan = plan(ShardingPlan::row_wise, 2);
    others[2].train_rows.end -= 1;
    for (other, expected) in others.into_iter().zip(["configuration", "sharding plan", "data"]) {
        for result in as_processes(vec![two(), other]) {
            let error = result.unwrap_err();
            let Error::OtherRequest { rank: 1, subject } = error else { panic!("{error}") };
            assert_eq!(subject, expected);
        }
    }
    let mut elsewhere = two();
    elsewhere.run_folder = folder.path().join("elsewhere");
    for result in as_processes(vec![two(), elsewhere]) {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::NotShared { rank: 1, .. }), "{error}");
    }
    let left: Vec<_> = std::fs::read_dir(&run).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("shared-")), "{left:?}");
}
