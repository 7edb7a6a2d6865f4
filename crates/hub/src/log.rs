//! Writes the hub's messages to stderr.

use std::io::Write;

use fleet::plain::without_controls;

/// Writes a line to stderr. Errors are ignored, because a closed stderr must not stop the hub.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", without_controls(text));
}
