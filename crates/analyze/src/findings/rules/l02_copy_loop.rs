//! Rule L02 finds many small copies that are issued one by one where one copy would do.

use crate::facts::calls::Direction;
use crate::facts::job::{Copy, RankFacts};
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{agreeing, bytes, counted, time};

pub(super) const RULE: Rule = Rule {
    id: "L02",
    title: "loop of small copies",
    category: FindingCategory::Launch,
    side: CureSide::Host,
    confidence: Confidence::High,
    limits: &[
        limit("copies", 16.0, "minimum number of copies in a row"),
        limit("bytes", 65_536.0, "maximum median size of the copies in a row"),
        limit("gap_ns", 50_000.0, "a longer pause ends a row of copies"),
        limit("peak_gb_per_s", 25.0, "assumed bandwidth of one large copy, GB/s"),
    ],
    page: page!("L02"),
    detect: Detect::Rank(detect),
};

/// Assumed latency of one copy, in addition to the time that its bytes take.
const COPY_NS: i64 = 5_000;

/// A copy with its launch call and the name of the operator that issued it.
type Issued<'a> = (&'a Copy, u32, &'a str);

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let runs = runs(rank, limits);
    let copies: usize = runs.iter().map(Vec::len).sum();
    let lost: i64 = runs.iter().map(|run| lost(rank, run, limits)).sum();
    let longest = runs.iter().max_by_key(|run| run.len())?;
    let moved: u64 = runs.iter().flatten().map(|(copy, ..)| copy.bytes).sum();
    let per_step = rank.count_per_step(copies);
    let what = format!(
        "{} per step of {} each (mean) {} issued one by one, in runs of {} or more with less \
         than {} between a call and the next, up to {} in a row by {}; the calls take longer than \
         the bytes.",
        counted(per_step, "copy"),
        bytes(moved / copies.max(1) as u64),
        agreeing(per_step, "is", "are"),
        limits.value("copies"),
        time(limits.ns("gap_ns")),
        longest.len(),
        longest[0].2
    );
    let advice = match longest[0].0.direction {
        Direction::OnDevice => {
            "Copy them by one kernel (torch._foreach_copy_) or keep them in one flat tensor. \
             DistributedDataParallel need not copy gradients with gradient_as_bucket_view=True, nor \
             buffers with broadcast_buffers=False."
        }
        _ => {
            "Assemble the data on one side and copy it once (torch.stack, cat or one flat buffer), or \
             build it on the device."
        }
    };
    // The first copy of each run remains, and carries the bytes of the others.
    let behind_first = || runs.iter().flat_map(|run| &run[1..]);
    let calls: Vec<u32> = behind_first().map(|(_, call, _)| *call).collect();
    let rows: Vec<u32> = behind_first().map(|(copy, ..)| copy.row).collect();
    let edits = vec![
        rank.edit(super::l01_tiny_kernels::host_rows(rank, &calls), Action::Scale(0.0)),
        rank.edit(rows, Action::ShortenTo(0)),
    ];
    let all: Vec<u32> = runs.iter().flatten().map(|(copy, ..)| copy.row).collect();
    let found = RuleFindings::new(what, advice)
        .number("copies_per_step", rank.count_per_step(copies))
        .number("runs_per_step", rank.count_per_step(runs.len()))
        .number("bytes_mean", moved as f64 / copies.max(1) as f64)
        .number("lost_per_step_ns", rank.per_step(lost) as f64)
        .about(longest[0].2);
    Some(found.shown_by(rank.collect_evidence(all)).saves(lost, edits))
}

/// Returns runs of small copies that follow each other closely on one thread, with the same
/// direction and issuer.
fn runs<'a>(rank: &'a RankFacts<'_>, limits: &RuleLimits<'_>) -> Vec<Vec<Issued<'a>>> {
    let track = |call: u32| rank.scope.trace.slices.track[call as usize];
    let issuer = |call: u32| rank.range_around(call).map_or("a loop", |row| rank.name(row));
    let mut issued: Vec<Issued<'_>> = rank
        .copies()
        .iter()
        .filter_map(|copy| Some((copy, copy.call?)))
        // A graph launches all its copies with one call, so its copies do not count.
        .filter(|(_, call)| rank.scope.links().work(*call).len() == 1)
        .map(|(copy, call)| (copy, call, issuer(call)))
        .collect();
    issued.sort_by_key(|(_, call, _)| (track(*call), rank.start(*call), *call));
    let follows = |a: &Issued<'_>, b: &Issued<'_>| {
        let pause = rank.start(b.1) - rank.end(a.1);
        let is_same = (a.0.direction, a.2) == (b.0.direction, b.2) && track(a.1) == track(b.1);
        is_same && pause < limits.ns("gap_ns")
    };
    let is_long = |run: &&[Issued<'_>]| {
        let mut sizes: Vec<u64> = run.iter().map(|(copy, ..)| copy.bytes).collect();
        sizes.sort_unstable();
        run.len() as f64 >= limits.value("copies")
            && (sizes[sizes.len() / 2] as f64) < limits.value("bytes")
    };
    issued.chunk_by(follows).filter(is_long).map(<[_]>::to_vec).collect()
}

fn lost(rank: &RankFacts<'_>, run: &[Issued<'_>], limits: &RuleLimits<'_>) -> i64 {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return 0 };
    let moved: u64 = run.iter().map(|(copy, ..)| copy.bytes).sum();
    let ideal = (moved as f64 / limits.value("peak_gb_per_s").max(1e-3)) as i64 + COPY_NS;
    (rank.end(last.1) - rank.start(first.1) - ideal).max(0)
}
