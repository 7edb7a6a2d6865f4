//! Measurements in a process of their own, so that their peak memory is their own.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;

use serde::de::DeserializeOwned;

use setup::error::{Error, RunError};

/// Runs `rowmill-bench` with `arguments`, on so many threads; what it printed as JSON.
pub fn run<T: DeserializeOwned>(threads: usize, arguments: &[&OsStr]) -> Result<T, Error> {
    let binary = std::env::current_exe().map_err(Error::io("rowmill-bench", "find"))?;
    let threads = threads.to_string();
    let mut command = Command::new(&binary);
    command.args(["--format", "json", "--threads", &threads]).args(arguments);
    let output = command.output().map_err(Error::io(&binary, "start"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(RunError::Measurement { said }.into());
    }
    serde_json::from_slice(&output.stdout).map_err(Error::from)
}

/// Makes the operating system keep `bytes` of free memory ready, by touching and freeing them.
///
/// The host of a virtual machine takes back what nobody uses for seconds and fetches it again at
/// the first touch, at several times the price: a property of the host, not of what is measured.
pub fn prepare_memory(bytes: u64) {
    drop(std::hint::black_box(vec![1u8; usize::try_from(bytes).unwrap_or_default()]));
}

/// Peak resident memory without file pages; 0 if the operating system does not report it.
pub fn peak_anonymous() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let peak = kilobytes("VmHWM:").unwrap_or_default();
    peak.saturating_sub(kilobytes("RssFile:").unwrap_or_default()) << 10
}
