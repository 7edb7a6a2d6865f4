//! Reports what the reader could not read. For each kind of loss, it describes which analyses are
//! affected and what the user should do.

use trace::store::{Loss, LossCount};

use super::issue::{Issue, IssueKind, Severity};
use crate::facts::job::RankFacts;

const MISSING: &str = "what could not be read is missing from every figure";
const COPY: &str = "let the job finish writing; copy the file again; compare its size";
const UPDATE: &str =
    "a fault of the program that wrote the file: update PyTorch and its profiler library";

pub(super) fn issues(rank: &RankFacts<'_>) -> Vec<Issue> {
    let trace = rank.scope.trace;
    let issue = |(loss, counted): (Loss, &LossCount)| {
        let (matters, hint) = remedy(loss);
        let kind = IssueKind { id: "losses", severity: severity(loss), matters, hint };
        let first = counted.first.first().cloned().unwrap_or_default();
        let place = match (first.is_empty(), counted.count) {
            (true, _) => String::new(),
            (false, 1) => format!(" ({first})"),
            (false, _) => format!(" (the first: {first})"),
        };
        let what = format!("{} × {}{place}", counted.count, noun(loss));
        let issue = kind.issue(Some(trace.rank), counted.count, what).at(first);
        Issue { loss: Some(loss), ..issue }
    };
    trace.losses.iter().map(issue).collect()
}

fn severity(loss: Loss) -> Severity {
    match loss {
        Loss::LostFile | Loss::BehindTheEnd => Severity::Broken,
        Loss::Truncated
        | Loss::Damaged
        | Loss::BrokenEvent
        | Loss::NoTime
        | Loss::OtherCapture
        | Loss::NegativeDuration
        | Loss::RefutedDuration => Severity::Warning,
        _ => Severity::Info,
    }
}

/// Returns the noun for a kind of loss, with what the reader did about it.
fn noun(loss: Loss) -> &'static str {
    match loss {
        Loss::Truncated => "file that ends early",
        Loss::Damaged => "damaged file",
        Loss::LostFile => "file that cannot be read",
        Loss::BrokenEvent => "event that is not a JSON object, left out",
        Loss::NoTime => "event without its time, left out",
        Loss::BadNumber => "number that cannot be read, left out",
        Loss::NegativeDuration => "negative duration, taken as 0",
        Loss::RefutedDuration => "duration that other rows contradict, cut",
        Loss::Unpaired => "begin without an end, or end without a begin, left out",
        Loss::BrokenText => "text with bad characters, repaired",
        Loss::InvalidUtf8 => "text that is not UTF-8, repaired",
        Loss::UnknownPhase => "event of a phase that no analysis reads, left out",
        Loss::ManyCategories => "category beyond the first 255, merged into one",
        Loss::BehindTheEnd => "event behind the end of the trace, not read",
        Loss::TextBehindTheEnd => "text behind the end of the trace, not read",
        Loss::BrokenHeader => "header field of an unexpected form, kept unchanged",
        Loss::OtherCapture => "other recording of the same rank, left out",
        Loss::RankConflict => "file without a rank of its own, numbered by its name",
        Loss::DuplicateNode => "node with the id of another node, left out",
        Loss::DanglingParent | Loss::CyclicParent => "node without a parent, taken as a root",
    }
}

/// Returns which analyses a kind of loss affects, and what the user should do.
fn remedy(loss: Loss) -> (&'static str, &'static str) {
    match loss {
        Loss::Truncated | Loss::Damaged | Loss::LostFile | Loss::BrokenEvent => (MISSING, COPY),
        Loss::NoTime | Loss::BadNumber | Loss::DuplicateNode => (MISSING, UPDATE),
        Loss::NegativeDuration => ("these rows count with a duration of 0", UPDATE),
        Loss::RefutedDuration => {
            ("these rows count only until another row contradicts their duration", UPDATE)
        }
        Loss::Unpaired => (MISSING, "begin and end each range within the recording"),
        Loss::BrokenText | Loss::InvalidUtf8 => {
            ("names and arguments may differ from those of the program", UPDATE)
        }
        Loss::UnknownPhase => (MISSING, "nothing to do: these events contain no times of the job"),
        Loss::ManyCategories => (
            "rows of these categories cannot be distinguished",
            "give the file that the profiler wrote",
        ),
        Loss::BehindTheEnd => (MISSING, "give each recording a file of its own"),
        Loss::TextBehindTheEnd => (
            "nothing to do if a program appended the text on purpose",
            "compare the size of the file with the original",
        ),
        Loss::BrokenHeader => {
            ("properties of devices, ranks or the base time may be unknown", UPDATE)
        }
        Loss::OtherCapture => (
            "no figure includes the recordings that were left out",
            "give one recording of each rank; compare two with rowmill trace diff",
        ),
        Loss::RankConflict => (
            "collectives may be matched between the wrong ranks",
            "give one file per rank, and name the files by rank, such as rank-3.json",
        ),
        Loss::DanglingParent | Loss::CyclicParent => {
            ("the tree of operators may lack levels", UPDATE)
        }
    }
}

/// Returns the title of a finding about one kind of loss.
pub(crate) fn title(loss: Loss) -> &'static str {
    match loss {
        Loss::Truncated => "the recording ends early",
        Loss::Damaged => "the file is damaged",
        Loss::LostFile => "files could not be read",
        Loss::BrokenEvent | Loss::BadNumber => "events could not be read",
        Loss::NoTime => "events without a time were left out",
        Loss::NegativeDuration => "durations below zero",
        Loss::RefutedDuration => "durations that other rows contradict",
        Loss::Unpaired => "ranges without a begin or an end",
        Loss::BrokenText | Loss::InvalidUtf8 => "texts were repaired",
        Loss::UnknownPhase => "events of unknown phases",
        Loss::ManyCategories => "too many categories",
        Loss::BehindTheEnd => "events behind the end of the trace",
        Loss::TextBehindTheEnd => "text behind the end of the trace",
        Loss::BrokenHeader => "header fields of an unexpected form",
        Loss::OtherCapture => "a rank was recorded several times",
        Loss::RankConflict => "files without a rank of their own",
        Loss::DuplicateNode | Loss::DanglingParent | Loss::CyclicParent => "nodes were repaired",
    }
}
