//! Matches threads to tracks, and finds repetitions of the nodes, by the order in which each thread
//! started its operators.

use super::align;
use super::sequence::{HostSequence, Name, Sequence};

/// An occurrence of a thread's nodes in a track, with the row of each node in thread order.
struct Occurrence {
    rows: Vec<Option<u32>>,
    span: (i64, i64),
}

/// A thread, the track chosen for it, and the complete occurrences of its nodes in order of time.
struct Candidate<'a> {
    thread: &'a Sequence,
    track: Option<&'a Sequence>,
    occurrences: Vec<Occurrence>,
}

/// Smallest share of common names for threads that are too short to have common runs.
const MIN_LIKENESS: f64 = 0.5;

/// Returns the row of each node for each complete repetition, in order of time. If no repetition is
/// complete, only the best repetition is returned.
pub fn repetitions(host: &HostSequence<'_>) -> Vec<Vec<Option<u32>>> {
    let mut threads: Vec<&Sequence> =
        host.threads.iter().filter(|thread| !thread.places.is_empty()).collect();
    // A long thread can hardly match the wrong track, so the longest thread is matched first.
    threads.sort_by_key(|thread| std::cmp::Reverse(thread.places.len()));
    let Some((longest, others)) = threads.split_first() else { return Vec::new() };
    let mut free: Vec<&Sequence> = host.tracks.iter().collect();
    let mut lead = choose(host, longest, &mut free, None);
    if lead.occurrences.is_empty() {
        lead.occurrences.extend(lead.track.and_then(|track| roughly(host, longest, track, None)));
    }
    let Some(first) = lead.occurrences.first() else { return Vec::new() };
    // The other threads must run at the same time as the longest thread, whose match is the most
    // reliable one.
    let within = Some(first.span);
    let others: Vec<Candidate<'_>> =
        others.iter().map(|thread| choose(host, thread, &mut free, within)).collect();
    let wanted = host.node_count();
    let mut repetitions: Vec<(usize, Vec<Option<u32>>)> = Vec::new();
    for occurrence in &lead.occurrences {
        let mut rows = vec![None; host.place_count()];
        place(&mut rows, longest, occurrence);
        for other in &others {
            let Some(track) = other.track else { continue };
            match nearest(&other.occurrences, occurrence.span.0, occurrence.span.1) {
                Some(occurrence) => place(&mut rows, other.thread, occurrence),
                None => {
                    let rough = roughly(host, other.thread, track, Some(occurrence.span));
                    rough.iter().for_each(|rough| place(&mut rows, other.thread, rough));
                }
            }
        }
        repetitions.push((rows.iter().flatten().count(), rows));
    }
    let most = repetitions.iter().map(|(count, _)| *count).max().unwrap_or_default();
    // All complete repetitions are kept. If no repetition is complete, only the best repetition is
    // kept.
    let is_kept = |count: usize| if most == wanted { count == wanted } else { count == most };
    let mut kept: Vec<_> = repetitions
        .into_iter()
        .filter(|(count, _)| is_kept(*count))
        .map(|(_, rows)| rows)
        .collect();
    if most < wanted {
        kept.truncate(1);
    }
    kept
}

fn place(rows: &mut [Option<u32>], thread: &Sequence, occurrence: &Occurrence) {
    for (place, row) in thread.places.iter().zip(&occurrence.rows) {
        rows[*place as usize] = *row;
    }
}

/// A track that may belong to a thread.
struct Choice {
    /// Index of the track among the unassigned tracks.
    at: usize,
    /// Whether the thread occurs completely in the track, and how similar the two are.
    score: (bool, [f64; 2]),
    occurrences: Vec<Occurrence>,
}

/// Chooses the track in which a thread occurs, and removes it from the unassigned tracks. A
/// complete occurrence is preferred, and it must overlap the span if one is given.
fn choose<'a>(
    host: &HostSequence<'_>,
    thread: &'a Sequence,
    free: &mut Vec<&'a Sequence>,
    within: Option<(i64, i64)>,
) -> Candidate<'a> {
    let mut best: Option<Choice> = None;
    for (at, track) in free.iter().enumerate() {
        let occurrences = occurrences(host, thread, track);
        let is_timely =
            within.is_none_or(|(start, end)| nearest(&occurrences, start, end).is_some());
        // A complete occurrence counts as fully similar, so no further comparison is needed.
        let is_whole = !occurrences.is_empty() && is_timely;
        let likeness =
            if is_whole { [1.0; 2] } else { align::likeness(&thread.names, &track.names) };
        let score = (is_whole, likeness);
        // Among equally good tracks, the first one is chosen, so that the result is unique.
        let is_better = best.as_ref().is_none_or(|best| score > best.score);
        if (likeness[0] > 0.0 || likeness[1] >= MIN_LIKENESS) && is_better {
            best = Some(Choice { at, score, occurrences });
        }
    }
    match best {
        Some(Choice { at, occurrences, .. }) => {
            Candidate { thread, track: Some(free.remove(at)), occurrences }
        }
        None => Candidate { thread, track: None, occurrences: Vec::new() },
    }
}

/// Finds all occurrences of a thread's names in a track that do not overlap.
fn occurrences(host: &HostSequence<'_>, thread: &Sequence, track: &Sequence) -> Vec<Occurrence> {
    let mut occurrences = Vec::new();
    let mut behind = 0;
    for end in ends(&thread.names, &track.names) {
        let begin = end - thread.names.len();
        // Overlapping occurrences would link one row to two nodes.
        if begin < behind {
            continue;
        }
        behind = end;
        let rows = &track.places[begin..end];
        if let Some(span) = host.span(rows.iter().copied()) {
            occurrences.push(Occurrence { rows: rows.iter().copied().map(Some).collect(), span });
        }
    }
    occurrences
}

/// Returns the end positions of all occurrences of a pattern in a text.
///
/// # Source
/// Knuth, Morris, Pratt: Fast pattern matching in strings, 1977.
fn ends(pattern: &[Name], text: &[Name]) -> Vec<usize> {
    // `borders[n]` is the length of the longest proper prefix of the pattern that also ends at n.
    let mut borders = vec![0; pattern.len()];
    let mut length = 0;
    for at in 1..pattern.len() {
        while length > 0 && pattern[at] != pattern[length] {
            length = borders[length - 1];
        }
        length += usize::from(pattern[at] == pattern[length]);
        borders[at] = length;
    }
    let mut ends = Vec::new();
    let mut length = 0;
    for (at, name) in text.iter().enumerate() {
        while length > 0 && *name != pattern[length] {
            length = borders[length - 1];
        }
        length += usize::from(*name == pattern[length]);
        if length == pattern.len() {
            ends.push(at + 1);
            length = borders[length - 1];
        }
    }
    ends
}

/// Returns the occurrence that overlaps a span the most, if any overlaps it.
fn nearest(occurrences: &[Occurrence], start: i64, end: i64) -> Option<&Occurrence> {
    // Occurrences are disjoint and sorted, so those that overlap the span are neighbors.
    let first = occurrences.partition_point(|one| one.span.1 <= start);
    let overlapping = occurrences[first..].iter().take_while(|one| one.span.0 < end);
    let shared = |one: &&Occurrence| one.span.1.min(end) - one.span.0.max(start);
    overlapping.reduce(|best, next| if shared(&next) > shared(&best) { next } else { best })
}

/// Finds the best incomplete match of a thread in a track. If a span is given, only rows that start
/// within the span are considered.
fn roughly(
    host: &HostSequence<'_>,
    thread: &Sequence,
    track: &Sequence,
    within: Option<(i64, i64)>,
) -> Option<Occurrence> {
    let bounds = within.map(|(start, end)| {
        let behind = |time: i64| track.places.partition_point(|row| host.start(*row) < time);
        (behind(start), behind(end))
    });
    let (from, to) = bounds.unwrap_or((0, track.places.len()));
    let pairs = align::align(&thread.names, &track.names[from..to]);
    let mut rows = vec![None; thread.names.len()];
    for (node, row) in pairs {
        rows[node] = Some(track.places[from + row]);
    }
    let span = host.span(rows.iter().flatten().copied())?;
    Some(Occurrence { rows, span })
}
