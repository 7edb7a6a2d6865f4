//! Every plan with every optimizer and every schedule on ranks that are processes.
//!
//! Open MPI starts this test program once for each number of ranks. The processes then train all
//! cases one after the other, because starting them takes longer than a run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm::Communicator;
use comm::mpi::{MpiLibrary, PIECE_BYTES, launcher};
use data::Dataset;
use device::Cpu;
use schema::{Optimizer, Schedule, ShardingPlan};
use testkit::ProgramOutput;
use train::RunRequest;

use crate::processes::{RunRecord, as_process};
use crate::rank_steps::{PLANS, overlapped};
use crate::run::{dataset, plan, request};

/// Environment variable with the folder of the data and of all runs. It makes this test program a
/// rank of the matrix.
const FOLDER: &str = "ROWMILL_TEST_FOLDER";
/// The matrix has 54 cases for each number of ranks. One in this many runs every day, with one
/// overlap alone and with all.
const SAMPLED: usize = 17;
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn processes_follow_a_single_rank_under_every_schedule() {
    testkit::has_time("processes with all plans, optimizers and schedules");
    for ranks in [2, 4] {
        let test = "process_matrix::a_rank_that_a_launcher_started";
        let Some(mut command) = testkit::launch_test(testkit::OPEN_MPI, ranks, test) else {
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        dataset(folder.path());
        let output = ProgramOutput::collect(command.env(FOLDER, folder.path()));
        let output = output.expect_code(0, "the ranks of the matrix");
        let summary = output.stdout.lines().find(|line| line.contains("cases agree")).unwrap();
        // The test harness begins the line with the name of the test.
        println!("{}", summary.rsplit(" ... ").next().unwrap());
    }
}

/// Trains the cases of the matrix, in a process that a launcher started.
#[test]
fn a_rank_that_a_launcher_started() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let launcher = launcher::detect(|name| std::env::var(name).ok()).unwrap();
    let library = MpiLibrary::search(Some(launcher.kind)).unwrap();
    let mpi = Arc::new(library.start(PIECE_BYTES).unwrap());
    let mut world = Communicator::over(Arc::clone(&mpi) as _);
    // A rank that waits for a failed one ends with an error.
    world.set_timeout(Some(TIMEOUT));
    let dataset = Arc::new(Dataset::open(&folder.join("prepared")).unwrap());
    MatrixRank { folder: &folder, dataset, world: &mut world }.check();
    world.barrier().unwrap();
    mpi.finalize().unwrap();
}

/// A plan with an optimizer.
#[derive(Clone, Copy)]
struct MatrixCase {
    optimizer: Optimizer,
    /// Position in [`PLANS`].
    plan: usize,
}

/// One of the MPI processes. All of them train every combination of plan and optimizer together,
/// one after the other.
struct MatrixRank<'a> {
    folder: &'a Path,
    dataset: Arc<Dataset>,
    world: &'a mut Communicator,
}

impl MatrixRank<'_> {
    /// Checks that all schedules write the same bytes, and that losses follow those of a single
    /// rank.
    fn check(&mut self) {
        let has_time = testkit::has_time("the other cases");
        let (began, ranks) = (Instant::now(), self.world.world_size());
        let (mut cases, mut runs, mut largest_difference) = (0, 0, 0.0_f64);
        for (number, optimizer) in Optimizer::ALL.into_iter().enumerate() {
            let bound = if optimizer == Optimizer::Sgd { 1e-6 } else { 1e-5 };
            let is_case_wanted = |plan: &usize| {
                has_time || (number * PLANS.len() + plan + 2 * ranks).is_multiple_of(SAMPLED)
            };
            let is_wanted = |(at, schedule): &(usize, Schedule)| {
                has_time || *schedule == Schedule::PIPELINED || *at == number
            };
            let mut alone = None;
            for plan in (0..PLANS.len()).filter(is_case_wanted) {
                let case = MatrixCase { optimizer, plan };
                let what = format!("{optimizer}, {ranks} processes, plan {plan}");
                let serial = self.train(case, Schedule::SERIAL);
                for (_, schedule) in overlapped().enumerate().filter(is_wanted) {
                    assert!(self.train(case, schedule) == serial, "{what}, {schedule}");
                    runs += 1;
                }
                cases += 1;
                // Only rank 0 has the results of a run.
                let Some(serial) = serial else { continue };
                assert_eq!((serial.losses.len(), serial.checkpoints.len()), (50, 2), "{what}");
                let alone = alone.get_or_insert_with(|| self.train_alone(optimizer));
                for (got, expected) in serial.losses.iter().zip(&alone.losses) {
                    let difference = ((got - expected) / expected).abs();
                    assert!(difference < bound, "{what}: {got} {expected}");
                    largest_difference = largest_difference.max(difference);
                }
            }
        }
        if self.world.rank().0 == 0 {
            println!(
                "{cases} cases agree on {ranks} processes: {runs} overlapped runs have the bytes \
                 of serial ones, and losses differ from a single rank's by {:.1e} of their value \
                 at most; {:.0?}",
                largest_difference,
                began.elapsed()
            );
        }
    }

    /// Trains a case on all processes. Returns the results on rank 0.
    fn train(&mut self, case: MatrixCase, schedule: Schedule) -> Option<RunRecord> {
        let plan = plan(PLANS[case.plan], self.world.world_size() as u32);
        let request = self.request(case, schedule, plan);
        let comm = self.world.split(0).unwrap();
        let folder = request.run_folder.clone();
        RunRecord::collect(&folder, |observe| as_process(comm, request, observe))
    }

    /// Trains on a single rank, in this process.
    fn train_alone(&self, optimizer: Optimizer) -> RunRecord {
        let case = MatrixCase { optimizer, plan: PLANS.len() };
        let request = self.request(case, Schedule::SERIAL, plan(ShardingPlan::table_wise, 1));
        let run = |observe: &mut dyn FnMut(train::RunEvent<'_>)| {
            train::run(&request, Cpu::open, observe).map(Some)
        };
        RunRecord::collect(&request.run_folder, run).unwrap()
    }

    fn request(&self, case: MatrixCase, schedule: Schedule, plan: ShardingPlan) -> RunRequest {
        let name = format!("{}-{}-{schedule}", case.optimizer, case.plan);
        let mut request = request(&self.folder.join(name), &self.dataset, plan);
        request.schedule = schedule;
        let training = &mut request.config.training;
        (training.steps, training.epochs, training.log_every) = (Some(50), 3, 1);
        (training.evaluate_every, training.checkpoint_every) = (Some(20), Some(30));
        let optimizers = &mut request.config.optimizer;
        for optimizer in [&mut optimizers.sparse, &mut optimizers.dense] {
            (optimizer.kind, optimizer.learning_rate) = (case.optimizer, 0.02);
            // A large epsilon keeps rounding of sums near 0 from deciding the direction of a step.
            optimizer.epsilon = 1e-3;
        }
        request
    }
}
