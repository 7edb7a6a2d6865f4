//! Kills the hub while agents send rows, lose answers and repeat batches.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fleet::proto::{Ack, EntryBatch};
use prost::Message;
use testkit::{Random, has_time};

use crate::fixture::{LENGTH_S, TestHub, WAIT, gpu_batch, hour_before, send_batch};

const AGENTS: u8 = 6;
/// Number of hours over which the rows of an agent are spread, as if it had been cut off.
const HOURS: u64 = 3;
/// Number of rows of an hour.
const HOUR_ROWS: u64 = 3600 / LENGTH_S as u64;

/// Where agents send their rows, and the start of the hour that is current when they begin.
struct HubAddress {
    address: String,
    token: String,
    hour_s: u64,
}

/// Sends batches of random length until `is_over`. Returns the number of entries that
/// the hub acknowledged.
fn send_rows(hub: &HubAddress, agent: u8, is_over: &AtomicBool) -> u64 {
    let HubAddress { address, token, hour_s } = hub;
    let (mut random, mut confirmed) = (Random(u64::from(agent)), 0_u64);
    // The row of each number is always the same, so a repeated batch has equal rows.
    let batch = |first: u64, count: u64| -> EntryBatch {
        let starts = (first..first + count).map(|number| {
            let (hour, place) = (number % HOURS, number / HOURS % HOUR_ROWS);
            // Further rounds use earlier hours, so that no interval has two rows.
            let round = number / (HOURS * HOUR_ROWS);
            hour_s - (hour + 1 + round * HOURS) * 3600 + place * u64::from(LENGTH_S)
        });
        gpu_batch(agent, first, starts)
    };
    // All rows lie within the last day, which the sums cover.
    let limit = HOURS * HOUR_ROWS * 6;
    while confirmed < limit && !is_over.load(Ordering::SeqCst) {
        let count = (1 + random.below(40_u64)).min(limit - confirmed);
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < WAIT, "agent {agent}: no answer");
            if random.below(4_u64) == 0 && confirmed > 0 {
                // Repeats some confirmed entries, as after a lost answer.
                let first = 1 + random.below(confirmed);
                send_batch(address, token, &batch(first, (confirmed - first + 1).min(40)));
            }
            let answer = send_batch(address, token, &batch(confirmed + 1, count));
            let Some(answer) = answer else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            if answer.status == 429 || answer.status == 503 {
                continue;
            }
            assert_eq!(answer.status, 200, "{answer:?}");
            // A kill may cut the body of an answer.
            if Ack::decode(answer.body.as_slice()).is_ok_and(|ack| ack.through == confirmed + count)
            {
                break;
            }
        }
        confirmed += count;
    }
    confirmed
}

fn check(kills: u32, pause: Duration) {
    let mut hub = TestHub::start("commit_ms = 10");
    let is_over = AtomicBool::new(false);
    let (address, token) = (hub.address.clone(), hub.token.clone());
    let to = HubAddress { address, token, hour_s: hour_before(0) };
    let confirmed: BTreeMap<u8, u64> = std::thread::scope(|scope| {
        let (to, is_over) = (&to, &is_over);
        let agents: Vec<_> = (1..=AGENTS)
            .map(|agent| scope.spawn(move || (agent, send_rows(to, agent, is_over))))
            .collect();
        for _ in 0..kills {
            std::thread::sleep(pause);
            hub.kill_and_restart();
        }
        is_over.store(true, Ordering::SeqCst);
        agents.into_iter().map(|agent| agent.join().unwrap()).collect()
    });
    let entries = hub.entries();
    let total: u64 = confirmed.values().sum();
    let merged = hub.merged_files();
    println!("{kills} kills, {total} entries, {} stored, {merged} merged files", entries.len());
    assert!(entries.values().all(|count| *count == 1), "an entry is stored twice");
    assert!(merged > 0 || kills < 20, "no merge was killed");
    for (agent, count) in confirmed {
        let stored = entries.keys().filter(|(queue, _)| queue == &[agent; 16]).count() as u64;
        assert_eq!(stored, count, "agent {agent}");
    }
    let sums = hub.sums("pool");
    assert_eq!(sums["total"]["deployed_s"], (total * u64::from(LENGTH_S)) as f64);
}

#[test]
fn killed_hubs_lose_and_repeat_no_entry() {
    check(4, Duration::from_millis(400));
}

#[test]
fn twenty_kills_under_load_lose_and_repeat_no_entry() {
    if has_time("twenty kills of the hub") {
        check(20, Duration::from_millis(1500));
    }
}
