//! Explains in one line how the steps, the window and the critical path of a rank fit together.

use crate::facts::job::{JobFacts, RankFacts};
use crate::graph::critical_path::{CategoryPart, Party, by_party};
use crate::text::time;

/// Returns the parts of the critical path of the rank with the longest steps, and one line that
/// relates its steps, window and path. The parts and the line are empty if there are no ranks.
pub(super) fn summarize_step(job: &JobFacts<'_>) -> (Vec<CategoryPart>, String) {
    let longest = |at: &usize| (job.ranks[*at].step_ns(), std::cmp::Reverse(*at));
    let Some(at) = (0..job.ranks.len()).max_by_key(longest) else { return Default::default() };
    let rank = &job.ranks[at];
    let path = job.paths().ranks[at].parts.clone();
    if rank.scope.window.length() == 0 {
        return (path, String::new());
    }
    let whose = match job.ranks.len() {
        1 => String::new(),
        _ => format!("rank {}, the slowest: ", rank.rank()),
    };
    let words = format!(
        "{whose}{}; {}{}",
        window(rank),
        shares(&path, rank.scope.window.length()),
        device(rank)
    );
    (path, words)
}

/// Describes the window and the steps in it.
fn window(rank: &RankFacts<'_>) -> String {
    let window = &rank.scope.window;
    let whole = time(window.length());
    let steps = &window.steps;
    let inside: i64 = steps.iter().map(|step| step.end - step.start).sum();
    if steps.is_empty() {
        return format!("a window of {whole} without named steps");
    }
    let mean = time(inside / steps.len() as i64);
    let (count, plural) = (steps.len(), if steps.len() == 1 { "step" } else { "steps" });
    if steps.iter().any(|step| !step.is_whole) {
        return format!(
            "{count} {plural} of {mean} (mean), not all recorded whole, in a window of {whole}"
        );
    }
    match window.length() - inside {
        ..=-1 => {
            format!("{count} {plural} of {mean} (mean), which overlap, in a window of {whole}")
        }
        beside @ 1.. => format!(
            "{count} {plural} of {mean} (mean) and {} beside them make a window of {whole}",
            time(beside)
        ),
        _ => format!("{count} {plural} of {mean} (mean) make a window of {whole}"),
    }
}

fn shares(path: &[CategoryPart], window_ns: i64) -> String {
    let total = path.iter().map(|part| part.duration_ns).sum::<i64>().max(1) as f64;
    let covered_pct = 100.0 * total / window_ns as f64;
    let covered = match covered_pct {
        99.95..100.05 => "all".to_owned(),
        part @ 100.05.. => format!("{part:.1} %"),
        part => format!("only {part:.1} %"),
    };
    let parties = by_party(path.iter().map(|part| (part.category, part.duration_ns)));
    let named = parties.into_iter().filter(|(_, ns)| *ns > 0).map(|(party, ns)| {
        let name = match party {
            Party::Host => "host",
            Party::Device => "device",
            Party::Peers => "waiting for other ranks",
        };
        format!("{:.1} % {name}", 100.0 * ns as f64 / total)
    });
    let named = named.collect::<Vec<_>>().join(", ");
    format!("its critical path covers {covered} of the window: {named}")
}

/// Describes the steps of the devices if they are longer than the host's, because they then
/// determine the length of the job.
fn device(rank: &RankFacts<'_>) -> String {
    rank.scope.device_span.map_or_else(String::new, |(start, end)| {
        format!(
            "; the device needs {} for the same steps, {} each, and decides how long the job takes",
            time(end - start),
            time((end - start) / rank.step_count())
        )
    })
}
