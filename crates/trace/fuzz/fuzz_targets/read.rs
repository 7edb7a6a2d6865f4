//! Feeds arbitrary bytes to all text readers. No reader may panic, loop forever or read out of
//! bounds.
//!
//! Run `cargo +nightly fuzz run read` in `crates/trace`, with some small traces as the initial
//! corpus.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = trace::open::parse(bytes);
    let _ = trace::execution_trace::read_text(bytes);
    let _ = trace::chakra::read_bytes(bytes);
});
