use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use fleet::proto::{Body, Entry, GpuInterval};

use super::DiskQueue;

const LIMIT: u64 = 64 << 10;

fn entry(value: u64) -> Entry {
    let interval = GpuInterval { start_unix_s: value, reads: value, ..GpuInterval::default() };
    Entry { sequence: 0, body: Some(Body::Gpu(Box::new(interval))) }
}

fn value(entry: &Entry) -> u64 {
    match &entry.body {
        Some(Body::Gpu(interval)) => interval.reads,
        other => panic!("{other:?}"),
    }
}

fn pairs(queue: &mut DiskQueue) -> Vec<(u64, u64)> {
    let entries = queue.peek(usize::MAX, usize::MAX).unwrap();
    entries.iter().map(|entry| (entry.sequence, value(entry))).collect()
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == "segment")).collect();
    files.sort();
    files
}

#[test]
fn queued_entries_survive_a_kill_and_removed_ones_do_not_return() {
    let folder = tempfile::tempdir().unwrap();
    let mut queue = DiskQueue::open(folder.path(), LIMIT).unwrap();
    let id = queue.id().to_vec();
    queue.append(10, (1..=3).map(entry).collect()).unwrap();
    queue.append(20, (4..=5).map(entry).collect()).unwrap();
    assert_eq!(queue.peek(2, usize::MAX).unwrap().len(), 2);
    assert_eq!(queue.peek(usize::MAX, 1).unwrap().len(), 1, "one at least");
    queue.forget(3).unwrap();
    assert!(DiskQueue::open(folder.path(), LIMIT).is_err(), "one agent has it");
    drop(queue);
    let mut queue = DiskQueue::open(folder.path(), LIMIT).unwrap();
    assert_eq!(pairs(&mut queue), [(4, 4), (5, 5)]);
    assert_eq!((queue.last_start(), queue.len(), queue.id()), (20, 2, id.as_slice()));
    queue.forget(99).unwrap();
    assert_eq!((queue.len(), queue.gone_through()), (0, 5), "no number that was never given");
    drop(queue);
    // The queue is reopened after all its entries were delivered. The numbering of entries must
    // continue.
    let mut queue = DiskQueue::open(folder.path(), LIMIT).unwrap();
    queue.append(30, vec![entry(6)]).unwrap();
    assert_eq!((pairs(&mut queue), queue.last_start()), (vec![(6, 6)], 30));
}

#[test]
fn a_full_queue_drops_and_counts_the_oldest_entries() {
    let folder = tempfile::tempdir().unwrap();
    let mut queue = DiskQueue::open(folder.path(), LIMIT).unwrap();
    for value in (1..=5_000).step_by(10) {
        queue.append(value, (value..value + 10).map(entry).collect()).unwrap();
        assert!(queue.bytes() <= LIMIT, "{value}: {}", queue.bytes());
    }
    let found = pairs(&mut queue);
    let first = found[0].0;
    assert!(first > 3_000 && found.len() as u64 == queue.len(), "{first}");
    assert_eq!((queue.dropped(), queue.gone_through()), (first - 1, first - 1));
    assert!(found.iter().zip(first..=5_000).all(|(pair, n)| *pair == (n, n)));
    let huge = (0..200_000).map(entry).collect();
    assert!(queue.append(1, huge).is_err(), "larger than the queue");
    assert_eq!((queue.dropped(), pairs(&mut queue).len()), (first - 1 + 200_000, found.len()));
}

#[test]
fn a_truncated_record_ends_the_queue_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut queue = DiskQueue::open(folder.path(), LIMIT).unwrap();
    queue.append(10, (1..=4).map(entry).collect()).unwrap();
    drop(queue);
    let path = segments(folder.path()).remove(0);
    let whole = fs::read(&path).unwrap();
    let mut most = 0;
    for length in 0..=whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let mut queue = DiskQueue::open(folder.path(), LIMIT).unwrap();
        let found = pairs(&mut queue);
        assert!(found.iter().zip(1..).all(|(pair, n)| *pair == (n, n)), "{length}: {found:?}");
        assert!(found.len() >= most, "{length}");
        most = found.len();
        queue.append(20, vec![entry(9)]).unwrap();
        assert_eq!(pairs(&mut queue).last().unwrap().1, 9, "{length}");
        drop(queue);
        segments(folder.path()).iter().for_each(|path| fs::remove_file(path).unwrap());
    }
    assert_eq!(most, 4);
}

#[test]
fn a_flipped_byte_never_yields_a_different_row() {
    let folder = tempfile::tempdir().unwrap();
    let mut queue = DiskQueue::open(folder.path(), LIMIT).unwrap();
    queue.append(10, (1..=4).map(entry).collect()).unwrap();
    drop(queue);
    let path = segments(folder.path()).remove(0);
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x41;
        fs::write(&path, &bytes).unwrap();
        let mut queue = DiskQueue::open(folder.path(), LIMIT).unwrap();
        let found = pairs(&mut queue);
        assert!(found.iter().zip(1..).all(|(pair, n)| *pair == (n, n)), "{at}: {found:?}");
        assert!(found.len() < 4);
        drop(queue);
        // Opening the queue truncates a damaged segment, so all segment files are removed before
        // the next round.
        segments(folder.path()).iter().for_each(|path| fs::remove_file(path).unwrap());
    }
}

#[test]
fn a_lost_position_starts_a_new_queue() {
    let folder = tempfile::tempdir().unwrap();
    let mut queue = DiskQueue::open(folder.path(), LIMIT).unwrap();
    let id = queue.id().to_vec();
    queue.append(10, vec![entry(1)]).unwrap();
    drop(queue);
    File::create(folder.path().join("position")).unwrap();
    let mut queue = DiskQueue::open(folder.path(), LIMIT).unwrap();
    assert!(queue.id() != id && pairs(&mut queue).is_empty(), "numbers would be used twice");
}

/// Compares random appends, deliveries and restarts with a list in memory. Every entry must come
/// out once and in order, except the entries that a full queue dropped.
#[test]
fn entries_on_disk_survive_any_sequence_of_kills() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = 4_711_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    let mut queue = DiskQueue::open(folder.path(), LIMIT).unwrap();
    let mut model: VecDeque<(u64, u64)> = VecDeque::new();
    let mut next = 1;
    for _ in 0..600 {
        match random(10) {
            0..=5 => {
                let count = 1 + random(12);
                queue.append(next, (next..next + count).map(entry).collect()).unwrap();
                model.extend((next..next + count).map(|n| (n, n)));
                next += count;
            }
            6..=7 => {
                let entries = queue.peek(1 + random(60) as usize, 1 << 20).unwrap();
                if let Some(last) = entries.last() {
                    queue.forget(last.sequence).unwrap();
                }
            }
            _ => {
                drop(queue);
                queue = DiskQueue::open(folder.path(), LIMIT).unwrap();
            }
        }
        while model.front().is_some_and(|(sequence, _)| *sequence <= queue.gone_through()) {
            model.pop_front();
        }
        assert_eq!(pairs(&mut queue), Vec::from(model.clone()));
    }
}
