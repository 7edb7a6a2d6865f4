//! Runs other programs, without a shell, for a limited time.

use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Timeout of a program.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest size of an output in bytes. Slurm describes a job in some kilobytes.
const OUTPUT_MAX: u64 = 1 << 30;

/// Largest number of bytes that are kept of what a program writes to stderr.
const MESSAGE_MAX: u64 = 16 << 10;
/// Timeout of the end of stderr after the end of a program, whose children may keep it open.
const MESSAGE_PATIENCE: Duration = Duration::from_secs(1);

/// Runs a program that errors call `name`, with `input` as its stdin. Returns its stdout.
///
/// # Errors
/// The reason if the program cannot be run, does not end its output within a minute, or fails. A
/// failure has the last line of its stderr.
pub fn run(command: &mut Command, name: &str, input: &[u8]) -> Result<Vec<u8>, String> {
    let stdin = if input.is_empty() { Stdio::null() } else { Stdio::piped() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
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
    let (sender, message) = mpsc::channel();
    if let Some(mut errors) = child.stderr.take() {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = errors.by_ref().take(MESSAGE_MAX).read_to_end(&mut bytes);
            let _ = sender.send(bytes);
            // The program would wait for somebody to read the rest.
            let _ = io::copy(&mut errors, &mut io::sink());
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
        let message = message.recv_timeout(MESSAGE_PATIENCE).unwrap_or_default();
        let message = String::from_utf8_lossy(&message);
        let last = message.lines().rfind(|line| !line.trim().is_empty());
        let last = last.map(|line| format!(": {}", line.trim())).unwrap_or_default();
        return Err(format!("{name}: {status}{last}"));
    }
    Ok(bytes)
}
