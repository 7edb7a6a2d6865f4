//! Checks that the critical paths of real traces cover every window without gaps.

use analyze::classify::ClassRule;
use analyze::critical_path::{Path, PathCategory};
use analyze::{Classifier, JobFacts, Scope, WindowRule, what_if};

use crate::fixture;
use crate::graph::TRACES;

fn check_tiles(name: &str, job: &JobFacts<'_>, path: &Path) {
    let mut at = path.window_start_ns;
    for one in path.segments(job.path_job()) {
        assert!(one.start_ns == at && one.end_ns > at, "{name}: {one:?} at {at}");
        at = one.end_ns;
    }
    assert_eq!(at, path.window_end_ns, "{name}");
    let parts: i64 = path.parts.iter().map(|part| part.duration_ns).sum();
    assert_eq!(parts, path.window_ns, "{name}");
}

#[test]
fn parts_sum_to_every_window_of_every_trace() {
    let classifier = Classifier::new(ClassRule::Category);
    for name in &TRACES {
        let Some(job) = fixture::job(name) else { return };
        for rule in [WindowRule::All, WindowRule::Steps, WindowRule::Hta] {
            let scopes: Vec<_> =
                job.traces.iter().map(|trace| Scope::new(trace, rule, &classifier)).collect();
            let job = JobFacts::new(&scopes);
            let found = job.paths();
            for (scope, path) in scopes.iter().zip(&found.ranks) {
                check_tiles(name, &job, path);
                assert_eq!(path.window_start_ns, scope.window.start, "{name}");
                assert_eq!(path.window_ns, scope.window.length(), "{name}");
            }
            assert_eq!(found.job.is_some(), scopes.len() > 1);
            found.job.iter().for_each(|path| check_tiles(name, &job, path));
            if rule == WindowRule::All {
                println!("{name}");
                print(&found.ranks[0]);
            }
        }
    }
}

fn print(path: &Path) {
    for part in &path.parts {
        println!("    {:?} {} {:?}", part.category, part.duration_ns, part.window_pct);
    }
    for one in path.contributors.iter().take(8) {
        let name: String = one.name.chars().take(60).collect();
        println!("        {:?} {name} {} {}", one.category, one.count, one.duration_ns);
    }
}

#[test]
fn dlrm8_waits_for_rank_7_most_often() {
    let Some(job) = fixture::job("dlrm8/dlrm_kineto.tar.gz") else { return };
    let scopes = crate::collectives::scopes(&job);
    let job = JobFacts::new(&scopes);
    let found = job.stragglers();
    let last: Vec<_> = found.ranks.iter().map(|one| (one.rank, one.times_last)).collect();
    assert_eq!(last[..4], [(7, 5), (5, 2), (4, 1), (0, 0)]);
    let caused: Vec<_> = found.ranks.iter().map(|one| one.caused_delay_ns / 1000).collect();
    assert_eq!(caused[..4], [1309, 101, 14, 0]);
    let path = job.paths();
    for one in &path.ranks {
        println!("rank {:?}", one.rank);
        print(one);
    }
    let hops = path.job.as_ref().expect("ranks");
    print(hops);
    for one in &found.arrivals {
        println!("{one:?}");
    }
    for one in &found.ranks {
        println!("{one:?}");
    }
    let waits = |path: &Path| {
        let segments = path.segments(job.path_job());
        let waiting = segments.iter().filter(|s| s.category == PathCategory::CommunicationWait);
        waiting.map(|one| (one.peer, one.end_ns - one.start_ns)).collect::<Vec<_>>()
    };
    // Rank 7 arrived last at the first collective because its window began last, so that collective
    // has no cause. The later collectives have causes of their own.
    let causes: Vec<_> = found.arrivals.iter().map(|one| one.cause).collect();
    assert_eq!(causes[0], None);
    assert_eq!(causes[1..5], [Some(PathCategory::UntracedHost); 4]);
    assert_eq!(causes[5..], [Some(PathCategory::HostOperator); 3]);
    // The job's path never waits for a peer, because it continues on the peer instead.
    assert_eq!(waits(hops), []);
    assert!(waits(&path.ranks[7]).iter().all(|(peer, _)| peer.is_some_and(|peer| peer != 7)));
}

#[test]
fn an_edit_by_one_changes_nothing_and_free_gemms_save_at_most_their_time() {
    let Some(job) = fixture::job("linear/linear_kineto.json.gz") else { return };
    let scopes = crate::collectives::scopes(&job);
    let job = JobFacts::new(&scopes);
    let same = what_if::answer_questions(&job, &[what_if::parse("kernel=~. x1").expect("edit")]);
    assert!(same.windows.iter().all(|window| window.saving_ns == 0));
    assert!(same.parts.iter().all(|part| part.duration_ns == part.new_duration_ns));
    let free = what_if::answer_questions(&job, &[what_if::parse("kernel=~gemm x0").expect("edit")]);
    let window = &free.windows[0];
    assert!(window.saving_ns >= 0 && window.saving_ns <= free.edits[0].old_ns);
}

#[test]
fn a_blocking_copy_is_not_host_time() {
    // Calls of `cudaMemcpyAsync` to pageable memory last up to 42 ms here. Nearly all of that is
    // waiting for the stream that computes the copied data.
    let Some(job) = fixture::job("trace_diff/test.json.gz") else { return };
    let scopes = crate::collectives::scopes(&job);
    let job = JobFacts::new(&scopes);
    let rows = job.paths().ranks[0].rows(job.path_job());
    let of_copies = rows.iter().filter(|row| row.name == "cudaMemcpyAsync");
    let spent: i64 = of_copies
        .filter(|row| row.category == PathCategory::RuntimeCall)
        .map(|row| row.duration_ns)
        .sum();
    println!("{spent} ns in copies");
    print(&job.paths().ranks[0]);
    assert!(spent < 40_000_000, "{spent}");
}
