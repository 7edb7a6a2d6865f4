//! Writes the text of a trace of any size, by repeating the events of a smaller trace at later
//! times.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use setup::error::Error;

/// Keys of the numbers that grow with each repetition. Times grow so that the repetitions follow
/// each other, and correlation ids grow so that launches stay unique.
const SHIFTED: [&str; 2] = ["\"ts\": ", "\"correlation\": "];

/// Size of a write in bytes. The page cache stores a file in units of its write size, and reads
/// larger units faster. Large writes give the same units as copying or downloading a file.
const BLOCK: usize = 1 << 20;

/// A piece of text that ends before a number that grows, with the whole part of the number and its
/// kind.
struct TextPiece<'a> {
    text: &'a str,
    number: u64,
    is_time: bool,
}

/// Reads the uncompressed text of a trace.
pub fn read_events(path: &Path) -> Result<String, Error> {
    let file = File::open(path).map_err(Error::io(path, "read"))?;
    let mut text = Vec::new();
    let read = trace::packed::unpacked(file).and_then(|mut file| file.read_to_end(&mut text));
    read.map_err(Error::io(path, "read"))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Writes `source` with its events repeated until the file has at least `size` bytes.
pub fn repeat(
    source: &str,
    size: u64,
    to: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let (head, events, tail) = split(source);
    let (pieces, rest) = pieces(events);
    let times = || pieces.iter().filter(|piece| piece.is_time).map(|piece| piece.number);
    // Rows at time 0 or on another clock must not enlarge the shift between repetitions.
    let first = times().filter(|time| *time > 0).min().unwrap_or_default();
    let span = times().max().unwrap_or_default().saturating_sub(first) + 1;
    let ids = pieces.iter().filter(|piece| !piece.is_time).map(|piece| piece.number).max();
    let ids = ids.unwrap_or_default() + 1;
    let mut out =
        BufWriter::with_capacity(BLOCK, File::create(to).map_err(Error::io(to, "create"))?);
    let mut write = || -> io::Result<()> {
        out.write_all(head.as_bytes())?;
        let mut done = (head.len() + tail.len()) as u64;
        for repetition in 0.. {
            if repetition > 0 {
                if done >= size || events.trim().is_empty() {
                    break;
                }
                out.write_all(b",")?;
            }
            for piece in &pieces {
                let by = repetition * if piece.is_time { span } else { ids };
                write!(out, "{}{}", piece.text, piece.number + by)?;
            }
            out.write_all(rest.as_bytes())?;
            done += events.len() as u64;
            progress(done);
        }
        out.write_all(tail.as_bytes())?;
        out.flush()?;
        // Wait until the disk has written everything, so that writing does not disturb the
        // measurement.
        out.get_ref().sync_all()
    };
    write().map_err(Error::io(to, "write"))
}

/// Splits a trace into the text before its first event, the events, and the text after the last
/// event.
fn split(source: &str) -> (&str, &str, &str) {
    let key = source.find("\"traceEvents\"").unwrap_or_default();
    let start = source[key..].find('[').map_or(0, |at| key + at + 1);
    let end = start + list_length(&source.as_bytes()[start..]);
    (&source[..start], &source[start..end], &source[end..])
}

/// Returns the number of bytes before the bracket that closes the list. `text` begins inside that
/// list.
fn list_length(text: &[u8]) -> usize {
    let (mut depth, mut in_text, mut escaped) = (0usize, false, false);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => depth += 1,
            b']' if !in_text && depth == 0 => return at,
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    text.len()
}

fn pieces(events: &str) -> (Vec<TextPiece<'_>>, &str) {
    let mut pieces = Vec::new();
    let mut rest = events;
    let mut searched = 0;
    while let Some(found) = rest[searched..].find("\": ").map(|at| searched + at + 3) {
        let key = SHIFTED.iter().find(|key| rest[..found].ends_with(*key));
        let digits = rest[found..].bytes().take_while(u8::is_ascii_digit).count();
        let number = rest[found..found + digits].parse();
        match (key, number) {
            (Some(key), Ok(number)) => {
                let is_time = *key == SHIFTED[0];
                pieces.push(TextPiece { text: &rest[..found], number, is_time });
                rest = &rest[found + digits..];
                searched = 0;
            }
            _ => searched = found,
        }
    }
    (pieces, rest)
}

/// Creates one step of a job in the layout of PyTorch's profiler. The step contains operators,
/// their launches, kernels with all arguments, and the flow arrows between them.
pub fn typical() -> String {
    const OPERATORS: usize = 1000;
    let mut events = Vec::with_capacity(OPERATORS * 5 + 1);
    let step = 40 * OPERATORS;
    events.push(format!(
        r#"  {{
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 4321, "tid": 4321,
    "ts": 5000000.000, "dur": {step}.000,
    "args": {{
      "External id": 1, "Record function id": 0, "Ev Idx": 0
    }}
  }}"#
    ));
    for i in 0..OPERATORS {
        events.push(operator(i));
    }
    format!(
        "{{\n  \"schemaVersion\": 1,\n  \"deviceProperties\": [\n    {{\"id\": 0, \"name\": \"typical\", \
         \"numSms\": 108}}\n  ],\n  \"traceEvents\": [\n{}\n  ],\n  \"traceName\": \"typical\"\n}}\n",
        events.join(",\n")
    )
}

fn operator(i: usize) -> String {
    const NAMES: [(&str, &str); 4] = [
        ("aten::addmm", "ampere_sgemm_128x64_tn"),
        (
            "aten::add",
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)",
        ),
        (
            "aten::relu",
            "void at::native::vectorized_elementwise_kernel<4, at::native::relu_kernel(at::TensorIteratorBase&)>(int, at::detail::Array<char*, 2>)",
        ),
        (
            "aten::cat",
            "void at::native::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*, at::native::CatArrInputTensorMetadata<float, unsigned int, 128, 1>)",
        ),
    ];
    let (operator, kernel) = NAMES[i % NAMES.len()];
    let (start, id, correlation) = (5_000_001 + 40 * i, i + 2, i + 9000);
    let mut text = String::new();
    // Writing to a `String` cannot fail, so the result is ignored.
    let _ = write!(
        text,
        r#"  {{
    "ph": "X", "cat": "cpu_op", "name": "{operator}", "pid": 4321, "tid": 4321,
    "ts": {start}.125, "dur": 31.250,
    "args": {{
      "External id": {id}, "Record function id": {id}, "Concrete Inputs": ["", "", "1"], "Input type": ["float", "float", "Scalar"], "Input Strides": [[512, 1], [512, 1], []], "Input Dims": [[2048, 512], [2048, 512], []], "Ev Idx": {id}
    }}
  }},
  {{
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4321, "tid": 4321,
    "ts": {launch}.250, "dur": 6.500,
    "args": {{
      "External id": {id}, "cbid": 211, "correlation": {correlation}
    }}
  }},
  {{
    "ph": "s", "id": {correlation}, "pid": 4321, "tid": 4321, "ts": {launch}.250,
    "cat": "ac2g", "name": "ac2g"
  }},
  {{
    "ph": "X", "cat": "kernel", "name": "{kernel}", "pid": 0, "tid": 7,
    "ts": {begin}.500, "dur": 22.375,
    "args": {{
      "External id": {id}, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {correlation}, "registers per thread": 32, "shared memory": 0, "blocks per SM": 9.481482, "warps per SM": 37.925926, "grid": [1024, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 59
    }}
  }},
  {{
    "ph": "f", "id": {correlation}, "pid": 0, "tid": 7, "ts": {begin}.500,
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }}"#,
        launch = start + 12,
        begin = start + 20,
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_events_follow_each_other_under_new_ids() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long.json");
        // Lists after the events must not be read as events.
        let source = typical().replace("\"traceName\"", "\"ERROR\": [\"a ] b\"], \"traceName\"");
        repeat(&source, 3 * source.len() as u64 - 1000, &path, &mut |_| {}).unwrap();
        let long = trace::open::parse(&std::fs::read(&path).unwrap()).unwrap();
        let short = trace::open::parse(source.as_bytes()).unwrap();
        assert_eq!(long.event_count(), 3 * short.event_count());
        let count = short.slices.len() as u32;
        let later = |row: u32| long.slices.start(row + count) - long.slices.start(row);
        assert!((0..count).all(|row| later(row) == later(0) && later(0) > 39_000_000));
        let id = |row| long.slices.correlation(row);
        assert!(id(count + 2) > id(2) && id(2).is_some());
    }
}
