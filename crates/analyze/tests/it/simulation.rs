//! What-ifs against the truth: a random program is simulated, its trace is analysed, and what a
//! what-if says of a change is held against a simulation of the changed program.

mod program;
mod simulate;
mod write;

use std::path::PathBuf;

use analyze::classify::ClassRule;
use analyze::graph::measured;
use analyze::what_if::{self, Question};
use analyze::{Classifier, Scope, WindowRule, collectives};
use trace::open::{self, Request};
use trace::store::Job;

use program::Change;

/// A change of one program: what it brought and what was said.
#[derive(Debug)]
struct Outcome {
    seed: u64,
    change: Change,
    before_ns: i64,
    after_ns: i64,
    said_ns: i64,
    /// Of the program's device, before: how much of the window it was busy.
    busy_pct: f64,
}

impl Outcome {
    /// Of the window after the change, in percent.
    fn error_pct(&self) -> f64 {
        100.0 * (self.said_ns - self.after_ns) as f64 / self.after_ns as f64
    }
}

/// From the first start to the last end of all ranks' rows.
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
    let graph = measured::of(&scopes, &collectives::of(&scopes));
    let questions = change.questions();
    let questions: Vec<Question> =
        questions.iter().map(|text| what_if::parse(text).expect("a question")).collect();
    let said = what_if::of(&scopes, &graph, &questions);
    if std::env::var_os("SIMULATION_SHOW").is_some() {
        println!("{:?}\n{:?}", program.machine, graph.evidence);
        said.windows.iter().for_each(|one| println!("{one:?}"));
        let of_first = said.parts.iter().filter(|part| part.rank == Some(0));
        of_first.for_each(|one| println!("{one:?}"));
        println!("{:?}", analyze::skew::of(&scopes[0]));
        let (g, t) = (&graph.graph, &graph.times);
        for edge in g.edges() {
            let (from, to) =
                (graph.origins[edge.source.index()], graph.origins[edge.target.index()]);
            if edge.kind == analyze::graph::EdgeKind::Launch && edge.weight > 100_000 {
                let name = |o: measured::Origin| {
                    o.row.map(|row| {
                        (o.scope, scopes[0].trace.name(row).to_owned(), scopes[0].trace.stream(row))
                    })
                };
                println!(
                    "LAUNCH {:?} → {:?} weight {} at {} into: {:?}",
                    name(from),
                    name(to),
                    edge.weight,
                    (t.start[edge.target.index()]) as f64 / 1e6,
                    g.edges_into(edge.target)
                        .map(|(_, e)| (e.kind, e.weight, t.end[e.source.index()] as f64 / 1e6))
                        .collect::<Vec<_>>()
                );
            }
        }
        for run in &runs {
            println!("works {}", run.device.len());
        }
    }
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

/// The traces of a run, written and read back.
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
    let job = open::read(&Request { paths, threads: 1 }).expect("a trace");
    if std::env::var_os("SIMULATION_SHOW").is_none() {
        std::fs::remove_dir_all(&folder).expect("removed");
    }
    job
}

#[test]
fn issue_24_what_ifs_say_what_the_change_brings() {
    let programs: u64 = std::env::var("SIMULATION_PROGRAMS").map_or(200, |n| n.parse().unwrap());
    let first: u64 = std::env::var("SIMULATION_FIRST").map_or(0, |n| n.parse().unwrap());
    let mut outcomes: Vec<Outcome> = (first..first + programs).map(outcome).collect();
    outcomes.sort_by(|a, b| a.error_pct().abs().total_cmp(&b.error_pct().abs()));
    let at =
        |share: f64| outcomes[((outcomes.len() - 1) as f64 * share) as usize].error_pct().abs();
    for one in outcomes.iter().rev().take(40) {
        println!(
            "{:5} {:22} {:9.3} → {:9.3} ms, said {:9.3} ({:+6.2} %), busy {:.0} %",
            one.seed,
            format!("{:?}", one.change),
            one.before_ns as f64 / 1e6,
            one.after_ns as f64 / 1e6,
            one.said_ns as f64 / 1e6,
            one.error_pct(),
            one.busy_pct
        );
    }
    println!("median {:.3} %, 95 % below {:.3} %, most {:.3} %", at(0.5), at(0.95), at(1.0));
    assert!(at(0.5) <= 1.0, "{}", at(0.5));
    assert!(at(0.95) <= 5.0, "{}", at(0.95));
}
