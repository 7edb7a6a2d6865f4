//! Measures what an agent with eight GPUs costs. The CPU time is printed and judged by
//! `bench/compare/agent_cost.py`. The memory is checked in this test.

use std::fs;
use std::time::{Duration, Instant};

use crate::fixture::{Agent, value};

/// Duration for which the cost of the agent is measured.
const LENGTH: Duration = Duration::from_secs(5);
/// Largest resident memory of an agent in bytes.
const RESIDENT_MAX: f64 = 25.0 * 1_048_576.0;

#[test]
fn eight_gpus_take_less_than_25_mib() {
    let line = |gpu| format!("gpu={gpu} util=50 gpm=1 smactive=0.25 power=200000 energy=1000\n");
    let agent = Agent::start("", Some(&(0..8).map(line).collect::<String>()));
    let read = |page: &str| value(page, "rowmill_gpu_reads_total", &["gpu=\"7\""]);
    agent.until("counters", |agent| read(&agent.page("/metrics", "*/*").body));
    let seconds = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", agent.child.id())).unwrap();
        let words: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        // Fields 11 and 12 are user time and system time, in ticks of 10 ms.
        (words[11].parse::<u64>().unwrap() + words[12].parse::<u64>().unwrap()) as f64 * 0.01
    };
    let before = agent.page("/metrics", "*/*").body;
    let (began, worked) = (Instant::now(), seconds());
    std::thread::sleep(LENGTH);
    let share = (seconds() - worked) / began.elapsed().as_secs_f64();
    let page = agent.page("/metrics", "*/*").body;
    let resident = value(&page, "process_resident_memory_bytes", &[]).unwrap();
    println!("8 GPUs: {:.2} % of a core, {:.1} MiB", share * 100.0, resident / 1_048_576.0);
    assert!(resident <= RESIDENT_MAX, "{resident}");
    assert!(read(&page) > read(&before), "it reads on");
}
