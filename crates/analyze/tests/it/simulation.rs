//! Checks what-ifs against a simulation. A random program is simulated, its trace is analyzed, and
//! the answer to a what-if is compared with a simulation of the changed program.

mod program;
mod simulate;
mod write;

use std::path::PathBuf;

use analyze::classify::ClassRule;
use analyze::what_if::{self, Question};
use analyze::{Classifier, Scope, WindowRule};
use trace::open::{self, ReadRequest};
use trace::store::Job;

use program::Change;

/// A change of one program, with its simulated effect and the predicted effect.
#[derive(Debug)]
struct Outcome {
    seed: u64,
    change: Change,
    before_ns: i64,
    after_ns: i64,
    said_ns: i64,
    /// Share of the window in which the device was busy before the change, in percent.
    busy_pct: f64,
}

impl Outcome {
    /// Returns the error of the prediction relative to the simulated window after the change, in
    /// percent.
    fn error_pct(&self) -> f64 {
        100.0 * (self.said_ns - self.after_ns) as f64 / self.after_ns as f64
    }
}

/// Returns the time from the first start to the last end over the rows of all ranks.
fn length(program: &program::Program, runs: &[simulate::Run]) -> i64 {
    let spans = runs.iter().zip(&program.ranks).map(|(run, rank)| run.span(rank.skew_ns));
    let whole = spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).expect("a rank");
    whole.1 - whole.0
}

fn outcome(seed: u64) -> Outcome {
    let (program, change) = program::draw(seed);
    let changed = change.applied(&program);
    let (runs, changed_runs) = (simulate::run(&program), simulate::run(&changed));
    let job = read(seed, &program, &runs);
    let classifier = Classifier::new(ClassRule::Category);
    let scope = |trace| Scope::new(trace, WindowRule::All, &classifier);
    let scopes: Vec<Scope<'_>> = job.traces.iter().map(scope).collect();
    let questions = change.questions();
    let questions: Vec<Question> =
        questions.iter().map(|text| what_if::parse(text).expect("a question")).collect();
    let said = what_if::answer_questions(&analyze::JobFacts::new(&scopes), &questions);
    let all = said.windows.last().expect("a window");
    let busy: i64 = runs[0].device.iter().map(|row| row.end - row.start).sum();
    let before_ns = length(&program, &runs);
    Outcome {
        seed,
        change,
        before_ns,
        after_ns: length(&changed, &changed_runs),
        said_ns: all.new_window_ns,
        busy_pct: 100.0 * busy as f64 / before_ns as f64,
    }
}

/// Writes the traces of a run and reads them back.
fn read(seed: u64, program: &program::Program, runs: &[simulate::Run]) -> Job {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("simulated-{seed}"));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut paths = Vec::new();
    for (rank, run) in runs.iter().enumerate() {
        let path = folder.join(format!("rank{rank}.json"));
        let text = write::kineto(program, rank, run).to_string();
        std::fs::write(&path, text).expect("a trace");
        paths.push(path);
    }
    let job = open::read(&ReadRequest { paths, threads: 1 }).expect("a trace");
    std::fs::remove_dir_all(&folder).expect("removed");
    job
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |ns: i64| ns as f64 / 1e6;
        let (before, after, said) = (ms(self.before_ns), ms(self.after_ns), ms(self.said_ns));
        write!(
            f,
            "program {}, {:?}: {before:.3} → {after:.3} ms, said {said:.3} ({:+.2} %), device busy \
             {:.0} %",
            self.seed,
            self.change,
            self.error_pct(),
            self.busy_pct
        )
    }
}

/// Returns the absolute errors of some outcomes in ascending order.
fn errors<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Vec<f64> {
    let mut errors: Vec<f64> = outcomes.map(|one| one.error_pct().abs()).collect();
    errors.sort_by(f64::total_cmp);
    errors
}

#[test]
fn issue_24_what_ifs_predict_the_measured_change() {
    let mut outcomes: Vec<Outcome> = (0..1000).map(outcome).collect();
    outcomes.sort_by(|a, b| b.error_pct().abs().total_cmp(&a.error_pct().abs()));
    outcomes.iter().take(10).for_each(|worst| println!("{worst}"));
    let is_device_bound = |one: &&Outcome| one.busy_pct >= 90.0;
    for (what, errors) in [
        ("all", errors(outcomes.iter())),
        ("the device binds", errors(outcomes.iter().filter(is_device_bound))),
        ("the host binds", errors(outcomes.iter().filter(|one| !is_device_bound(one)))),
    ] {
        let at = |share: f64| errors[((errors.len() - 1) as f64 * share) as usize];
        let (count, median, most) = (errors.len(), at(0.5), at(0.95));
        println!("{what}: {count} programs, median {median:.3} %, 95 % below {most:.3} %");
        assert!(count >= 200 && median <= 1.0 && most <= 5.0, "{what}: {median}, {most}");
    }
}

/// Seeds of the programs whose what-ifs have the largest errors, with an upper bound of each error
/// in percent. In eight of these programs two threads launch work, whose order a change may alter.
const WORST: [(u64, f64); 10] = [
    (279, 26.0),
    (274, 21.0),
    (311, 15.0),
    (897, 15.0),
    (472, 13.0),
    (774, 10.0),
    (111, 10.0),
    (447, 9.0),
    (414, 9.0),
    (122, 8.0),
];

#[test]
fn issue_24_the_worst_what_ifs_get_no_worse() {
    for (seed, most_pct) in WORST {
        let outcome = outcome(seed);
        assert!(outcome.error_pct().abs() <= most_pct, "{outcome}");
    }
}

#[test]
fn an_edit_by_a_factor_of_one_changes_nothing() {
    for seed in 0..20 {
        let (program, _) = program::draw(seed);
        let same = Change::Kernels(1.0).applied(&program);
        let lengths = [&program, &same].map(|one| length(one, &simulate::run(one)));
        assert_eq!(lengths[0], lengths[1], "program {seed}");
    }
}
