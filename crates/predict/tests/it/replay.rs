//! The recorded step of eight ranks, played again.

use analyze::classify::ClassRule;
use analyze::{Classifier, Scope, WindowRule};
use predict::evaluate::replay;
use predict::recording;

use crate::fixture;

#[test]
fn play() {
    let Some(job) = fixture::job("dlrm8/dlrm_kineto.tar.gz") else { return };
    let classifier = Classifier::new(ClassRule::Category);
    let scopes: Vec<Scope<'_>> =
        job.traces.iter().map(|trace| Scope::new(trace, WindowRule::All, &classifier)).collect();
    let job = recording::Job::new(&scopes, |rows| fixture::sizes(&scopes, rows));
    let spans: Vec<_> = scopes.iter().map(|scope| recording::spans(scope).1[0]).collect();
    let step = job.step(&spans).expect("a step");
    let replay = replay::of(&step, &[0, 1, 2, 3]).expect("a replay");
    println!("{:#?} {}", replay.constants, replay.constants.count());
    for row in &replay.ranks {
        println!("{row:?}");
    }
    for rank in &step.program.ranks {
        for t in &rank.threads {
            println!("{} {} {} works {}", rank.rank, t.tid, t.actions.len(), rank.works.len());
        }
    }
}

#[test]
fn debug() {
    let Some(job) = fixture::job("dlrm8/dlrm_kineto.tar.gz") else { return };
    let classifier = Classifier::new(ClassRule::Category);
    let scopes: Vec<Scope<'_>> =
        job.traces.iter().map(|trace| Scope::new(trace, WindowRule::All, &classifier)).collect();
    let job = recording::Job::new(&scopes, |rows| fixture::sizes(&scopes, rows));
    let spans: Vec<_> = scopes.iter().map(|scope| recording::spans(scope).1[0]).collect();
    let step = job.step(&spans).expect("a step");
    use predict::program::Action;
    for (rank, rec) in step.program.ranks.iter().zip(&step.recorded.ranks) {
        for (t, times) in rank.threads.iter().zip(&rec.actions) {
            for (i, (a, time)) in t.actions.iter().zip(times).enumerate() {
                match a {
                    Action::Await { signal, wakes } => println!(
                        "rank {} t {} #{i} await {signal} {:?} {time:?}",
                        rank.rank,
                        t.tid,
                        wakes.map(|n| step.program.text(n))
                    ),
                    Action::Signal(signal) => {
                        println!("rank {} t {} #{i} signal {signal} {time:?}", rank.rank, t.tid)
                    }
                    Action::Wait(..) => println!("wait"),
                    Action::Call(c)
                        if rank.rank == 0 && (!c.awaits.is_empty() || c.room.is_some()) =>
                    {
                        let aw: Vec<_> = c
                            .awaits
                            .iter()
                            .map(|w| {
                                (
                                    step.program.text(rank.works[*w as usize].name),
                                    rank.streams[rank.works[*w as usize].stream as usize].number,
                                    rec.works[*w as usize],
                                )
                            })
                            .collect();
                        println!(
                            "  {} {:?} {time:?} room {:?} {aw:?}",
                            step.program.text(c.cost.op),
                            c.returns,
                            c.room
                        );
                    }
                    _ => {}
                }
            }
        }
        if rank.rank == 0 {
            for (w, r) in rank.works.iter().zip(&rec.works) {
                if !w.after.is_empty() {
                    let aw: Vec<_> = w
                        .after
                        .iter()
                        .map(|w| {
                            (
                                step.program.text(rank.works[*w as usize].name),
                                rank.streams[rank.works[*w as usize].stream as usize].number,
                                rec.works[*w as usize],
                            )
                        })
                        .collect();
                    println!(
                        "  W {} s{} {r:?} after {aw:?}",
                        &step.program.text(w.name)[..20],
                        rank.streams[w.stream as usize].number
                    );
                }
            }
        }
    }
    for c in &step.program.collectives {
        println!("{:?} {} ", c.operation, c.bytes);
    }
}

#[test]
fn leave() {
    let Some(job) = fixture::job("dlrm8/dlrm_kineto.tar.gz") else { return };
    let classifier = Classifier::new(ClassRule::Category);
    let scopes: Vec<Scope<'_>> =
        job.traces.iter().map(|trace| Scope::new(trace, WindowRule::All, &classifier)).collect();
    let job = recording::Job::new(&scopes, |rows| fixture::sizes(&scopes, rows));
    let spans: Vec<_> = scopes.iter().map(|scope| recording::spans(scope).1[0]).collect();
    let step = job.step(&spans).expect("a step");
    for row in predict::evaluate::leave_out::of(&step).expect("rows") {
        println!("all {:.2}/{:.2}", row.all_priced_error_pct, row.together_all_priced_error_pct);println!("{} {} {:.2}% base {:.2} together {:.2} one {:.2} trimmed {:.2}", row.rank, row.step_ns, row.error_pct, row.baseline_error_pct, row.together_error_pct, row.one_mean_error_pct, row.trimmed_error_pct);
    }
}

#[test]
fn linear() {
    let Some(job) = fixture::job("linear/linear_kineto.json.gz") else { return };
    let classifier = Classifier::new(ClassRule::Category);
    let scopes: Vec<Scope<'_>> =
        job.traces.iter().map(|trace| Scope::new(trace, WindowRule::All, &classifier)).collect();
    let job = recording::Job::new(&scopes, |rows| fixture::sizes(&scopes, rows));
    let spans: Vec<_> = scopes.iter().map(|scope| recording::spans(scope).1).collect();
    println!("{}", spans[0].len());
    println!("{:?}", predict::evaluate::iterations::of(&job, &spans));
    let step = job.step(&[spans[0][5]]).expect("step");
    let replay = replay::of(&step, &[0]).expect("a replay");
    println!("{:#?} {:?}", replay.constants, replay.ranks);
}
