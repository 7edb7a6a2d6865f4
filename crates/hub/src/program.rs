//! Runs other programs, without a shell, for a limited time.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Timeout of a program.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest size of an output in bytes. Slurm describes a job in some kilobytes.
const OUTPUT_MAX: u64 = 1 << 30;

/// Runs a program that errors call `name`, with `input` as its stdin. Returns its stdout.
///
/// # Errors
/// The reason if the program cannot be run, fails, or does not end its output within a minute.
pub fn run(command: &mut Command, name: &str, input: &[u8]) -> Result<Vec<u8>, String> {
    let stdin = if input.is_empty() { Stdio::null() } else { Stdio::piped() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("{name}: cannot run: {error}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        let input = input.to_vec();
        // A program that does not read its input may still do its work.
        thread::spawn(move || stdin.write_all(&input));
    }
    let (sender, answer) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = output.take(OUTPUT_MAX).read_to_end(&mut bytes);
            // Nobody waits any more after the timeout.
            let _ = sender.send(read.map(|_| bytes));
        });
    }
    let answer = answer.recv_timeout(PATIENCE);
    if answer.is_err() {
        // A program that has ended by itself meanwhile cannot be killed.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| format!("{name}: {error}"))?;
    let Ok(bytes) = answer else {
        return Err(format!("{name}: no answer within {} s", PATIENCE.as_secs()));
    };
    let bytes = bytes.map_err(|error| format!("{name}: {error}"))?;
    if !status.success() {
        return Err(format!("{name}: {status}"));
    }
    Ok(bytes)
}
