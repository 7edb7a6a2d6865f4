//! Tests ranks that each open the data themselves, like processes, but exchange messages over the
//! in-process transport.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use comm::Communicator;
use data::Dataset;
use device::Cpu;
use schema::{Optimizer, ShardingPlan, TableConfig};
use train::run::{PreparedRun, Processes, follow};
use train::{Error, Evaluation, RunEvent, RunOutcome, RunRequest, Start};

use crate::rank_steps::failing_world;
use crate::run::{dataset, plan, request};

/// Runs each request on the rank with its index. Each rank opens the data itself.
pub fn as_processes(requests: Vec<RunRequest>) -> Vec<Result<Option<RunOutcome>, Error>> {
    let ends = comm::world(requests.len() as u32);
    as_processes_over(ends, requests)
}

fn as_processes_over(
    ends: Vec<Communicator>,
    requests: Vec<RunRequest>,
) -> Vec<Result<Option<RunOutcome>, Error>> {
    std::thread::scope(|scope| {
        let run = |(request, comm)| scope.spawn(move || as_process(comm, request, &mut |_| {}));
        let ranks: Vec<_> = requests.into_iter().zip(ends).map(run).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Takes part in a run as the rank that `comm` belongs to. Rank 0 returns the outcome.
pub fn as_process(
    comm: Communicator,
    request: RunRequest,
    observe: &mut dyn FnMut(RunEvent<'_>),
) -> Result<Option<RunOutcome>, Error> {
    let is_leader = comm.rank().0 == 0;
    let processes = Processes { comm, timeout: Duration::from_secs(60), native: false };
    if is_leader {
        PreparedRun::begin_processes(request)?.lead(Cpu::open, processes, observe).map(Some)
    } else {
        follow(&request, Cpu::open, processes).map(|_| None)
    }
}

/// The results of a run, which may not depend on the schedule.
#[derive(PartialEq)]
pub struct RunRecord {
    /// Mean loss of each interval.
    pub losses: Vec<f64>,
    evaluation: Option<Evaluation>,
    /// The files of each checkpoint, by name.
    pub checkpoints: Vec<BTreeMap<String, Vec<u8>>>,
}

impl RunRecord {
    /// Collects the results of `run`, whose run folder is `folder`. Returns `None` if the rank of
    /// this process does not coordinate the run.
    pub fn collect(
        folder: &Path,
        run: impl FnOnce(&mut dyn FnMut(RunEvent<'_>)) -> Result<Option<RunOutcome>, Error>,
    ) -> Option<Self> {
        let mut losses = Vec::new();
        let outcome = run(&mut |event| {
            if let RunEvent::Interval(interval) = event {
                losses.push(interval.loss);
            }
        });
        let evaluation = outcome.unwrap()?.evaluation;
        let checkpoints = train::checkpoint::list(folder).unwrap();
        let checkpoints = checkpoints.iter().map(|folder| files(folder)).collect();
        Some(Self { losses, evaluation, checkpoints })
    }
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

/// Opens the dataset of each rank anew, so that each counts the pages that it reads.
fn with_own_datasets(requests: &mut [RunRequest]) {
    for request in requests {
        let dataset = Arc::new(Dataset::open(request.train.dir()).unwrap());
        request.train = Arc::clone(&dataset);
        let held_out = request.evaluation.take();
        request.evaluation = held_out.map(|(_, rows)| (dataset, rows));
    }
}

#[test]
fn processes_together_decompress_the_pages_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    // The last two limits end in the middle of an epoch, and of a window.
    for (steps, evaluate_every) in
        [(None, None), (None, Some(5)), (Some(20), None), (Some(9), None)]
    {
        let run = |name: &str, ranks: u32| {
            let run = folder.path().join(format!("{name}-{steps:?}-{evaluate_every:?}"));
            let mut request = request(&run, &dataset, plan(ShardingPlan::row_wise, 4));
            request.config.training.steps = steps;
            request.config.training.evaluate_every = evaluate_every;
            let mut requests = vec![request; ranks as usize];
            with_own_datasets(&mut requests);
            requests
        };
        let one = run("one", 1).swap_remove(0);
        let alone = train::run(&one, Cpu::open, &mut |_| {}).unwrap();
        let four = run("four", 4);
        let datasets: Vec<_> = four.iter().map(|request| Arc::clone(&request.train)).collect();
        let led = as_processes(four).swap_remove(0).unwrap().unwrap();
        assert_eq!(led.evaluation, alone.evaluation);
        assert_eq!(led.ids_outside, alone.ids_outside);
        assert!(files(&alone.checkpoint.unwrap()) == files(&led.checkpoint.unwrap()));
        let pages: Vec<u64> = datasets.iter().map(|dataset| dataset.pages_read()).collect();
        let (all, alone) = (pages.iter().sum::<u64>(), one.train.pages_read());
        println!("{steps:?} {evaluate_every:?}: {pages:?} of {alone} pages");
        assert!(5 * all <= 6 * alone, "{pages:?} of {alone}");
        // Each reads about a quarter, in units of row groups.
        assert!(pages.iter().all(|&pages| 3 * pages <= 2 * alone), "{pages:?} of {alone}");
    }
}

#[test]
fn processes_with_few_samples_write_the_checkpoint_of_threads_and_resume() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    // The 560 rows end with a smaller batch. With batches of 3, one of four ranks has no sample.
    for (batch_size, shuffle_rows) in [(3, 100), (37, 100), (37, 0), (300, 1000)] {
        let asked = |name: &str| {
            let run = folder.path().join(format!("{name}-{batch_size}-{shuffle_rows}"));
            let mut request = request(&run, &dataset, plan(ShardingPlan::mixed, 4));
            let training = &mut request.config.training;
            (training.batch_size, training.shuffle_rows) = (batch_size, shuffle_rows);
            training.checkpoint_every = Some(if batch_size == 300 { 1 } else { 13 });
            request
        };
        let threads = train::run(&asked("threads"), Cpu::open, &mut |_| {}).unwrap();
        let expected = files(&threads.checkpoint.unwrap());
        let led = as_processes(vec![asked("processes"); 4]).swap_remove(0).unwrap().unwrap();
        assert_eq!(led.evaluation, threads.evaluation);
        assert!(files(&led.checkpoint.unwrap()) == expected, "{batch_size} {shuffle_rows}");
        let start = if batch_size == 300 { "step-000000000001" } else { "step-000000000013" };
        let checkpoints = folder.path().join(format!("processes-{batch_size}-{shuffle_rows}"));
        let mut resumed = asked("processes");
        resumed.start = Start::Checkpoint(checkpoints.join("checkpoints").join(start));
        let led = as_processes(vec![resumed; 4]).swap_remove(0).unwrap().unwrap();
        assert!(files(&led.checkpoint.unwrap()) == expected, "{batch_size} {shuffle_rows}");
    }
}

#[test]
fn a_process_that_fails_while_rows_are_exchanged_ends_the_run_of_all() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let asked = |sends: usize| {
        let run = folder.path().join(format!("run-{sends}"));
        let mut request = request(&run, &dataset, plan(ShardingPlan::row_wise, 3));
        request.config.training.steps = Some(12);
        request.config.training.evaluate_every = Some(5);
        request
    };
    let (mut failed, mut in_loader) = (0, 0);
    for sends in (0..).step_by(3) {
        let results = as_processes_over(failing_world(3, sends), vec![asked(sends); 3]);
        if results.iter().all(Result::is_ok) {
            break;
        }
        failed += 1;
        for error in results.into_iter().filter_map(Result::err) {
            let is_communication = matches!(error.cause(), Error::Communication(_));
            assert!(is_communication, "{sends}: {error}");
            in_loader += u32::from(!matches!(error, Error::Stage { .. }));
        }
    }
    assert!(failed > 50 && in_loader > 10, "{failed} {in_loader}");
}
