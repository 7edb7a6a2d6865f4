//! Runs measurements in separate processes, so that the peak memory of each can be measured.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;

use serde::de::DeserializeOwned;

use setup::error::{Error, RunError};

/// Runs `rowmill-bench` with `arguments` on `threads` threads, and parses the JSON that it prints.
pub fn run<T: DeserializeOwned>(threads: usize, arguments: &[&OsStr]) -> Result<T, Error> {
    let binary = std::env::current_exe().map_err(Error::io("rowmill-bench", "find"))?;
    let threads = threads.to_string();
    let mut command = Command::new(&binary);
    command.args(["--format", "json", "--threads", &threads]).args(arguments);
    let output = command.output().map_err(Error::io(&binary, "start"))?;
    if !output.status.success() {
        let error_output = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(RunError::Measurement { said: error_output }.into());
    }
    serde_json::from_slice(&output.stdout).map_err(Error::from)
}

/// Makes the operating system keep `bytes` of free memory ready, by touching and freeing them.
///
/// The host of a virtual machine takes back memory that is unused for some seconds. Getting it
/// again costs several times as much as an ordinary page fault. This cost is a property of the host
/// and must not affect the measurement.
pub fn prepare_memory(bytes: u64) {
    drop(std::hint::black_box(vec![1u8; usize::try_from(bytes).unwrap_or_default()]));
}

/// Returns the peak of resident memory without file pages, or 0 if the operating system does not
/// report it.
pub fn peak_anonymous() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let peak = kilobytes("VmHWM:").unwrap_or_default();
    peak.saturating_sub(kilobytes("RssFile:").unwrap_or_default()) << 10
}
