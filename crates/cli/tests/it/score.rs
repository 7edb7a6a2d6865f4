//! Tests of `score` with memory-mapped tables. A stream must be answered row by row, and damage
//! must be reported when a damaged row is first read.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use testkit::ProgramOutput;

use crate::fixture::Place;

/// A running `score --follow -` that waits for rows on its standard input.
struct Following {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Following {
    fn start(place: &Place, words: &str) -> Self {
        let mut command = place.command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    fn write(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).unwrap();
        self.input.flush().unwrap();
    }

    /// Returns the next line of the output. If no line arrives, the test hangs, which counts as a
    /// failure.
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    fn end(self) -> ProgramOutput {
        let Self { child, input, output } = self;
        drop((input, output));
        ProgramOutput::from(child.wait_with_output().unwrap())
    }
}

#[test]
fn a_stream_gets_line_by_line_the_scores_of_the_file() {
    let place = Place::new();
    place.done("train job.toml --train train.csv --run run");
    let text = fs::read_to_string(place.path("train.csv")).unwrap();
    let whole = place.done("score run train.csv").stdout;
    let mut lines = text.split_inclusive('\n');
    let mut following = Following::start(&place, "score run --follow -");
    following.write(lines.next().unwrap());
    let mut waits = Vec::new();
    for (line, expected) in lines.zip(whole.split_inclusive('\n')).take(300) {
        let (start, end) = line.split_at(3);
        following.write(start);
        let begun = Instant::now();
        following.write(end);
        assert_eq!(following.answer(), expected);
        waits.push(begun.elapsed());
    }
    // A row that cannot be read must be answered at once as well, and so must the row after it.
    following.write("1,not a number,3,4,k5\n");
    assert_eq!(following.answer(), "nan\n");
    following.write(text.split_inclusive('\n').nth(1).unwrap());
    assert_eq!(Some(following.answer().as_str()), whole.split_inclusive('\n').next());
    let ran = following.end();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    waits.sort();
    // The median is checked, because the first rows read the tables from disk, and other programs
    // may use the cores for a while.
    assert!(waits[waits.len() / 2] < Duration::from_millis(50), "{waits:?}");
}

/// The score of a row must have the same bits in a batch of any size and at any position in the
/// batch.
#[test]
fn a_score_does_not_depend_on_the_rows_beside_it() {
    let place = Place::new();
    place.done("train job.toml --train train.csv --run run");
    let text = fs::read_to_string(place.path("train.csv")).unwrap();
    let whole = place.done("score run train.csv").stdout;
    let expected: Vec<&str> = whole.lines().collect();
    let lines: Vec<&str> = text.lines().skip(1).collect();
    for size in [1, 2, 3, 7, 31, 32, 33, 100, 1000] {
        let first = 500 - size / 2;
        let mut part = "y,u,v,a,b\n".to_owned();
        lines[first..first + size].iter().for_each(|line| writeln!(part, "{line}").unwrap());
        fs::write(place.path("part.csv"), part).unwrap();
        for threads in [1, 3] {
            let scores = place.done(&format!("score run part.csv --threads {threads}")).stdout;
            let scores: Vec<&str> = scores.lines().collect();
            assert_eq!(scores, expected[first..first + size], "{size} rows, {threads} threads");
        }
    }
}

#[test]
fn damage_is_reported_when_a_row_is_first_read_and_truncation_during_scoring_too() {
    let place = Place::new();
    // The table is large enough to be stored in several pieces with a checksum each.
    let more = "--set model.tables.a.rows=3000000 --set training.steps=20 \
                --set training.checkpoint_every=20";
    place.done(&format!("train job.toml --train train.csv --run run {more}"));
    let folder = place.path("run/checkpoints/step-000000000020");
    let file = folder.join("rank-00000.safetensors");
    let length = fs::metadata(&file).unwrap().len();
    let row = |a: u64| format!("0,1,2,{a},k1|k2\n");
    let mut following = Following::start(&place, "score run --follow -");
    following.write("y,u,v,a,b\n");
    following.write(&row(7));
    let good = following.answer();
    assert!(good.trim().parse::<f64>().is_ok(), "{good}");
    // Each row has 16 bytes, so this row is in a different piece than the first rows.
    let bytes = fs::read(&file).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize + 8;
    let mut spoilt = bytes.clone();
    spoilt[header + 16 * 1_000_000] ^= 0x40;
    let rewrite = |bytes: &[u8]| File::options().write(true).open(&file).unwrap().write_all(bytes);
    rewrite(&spoilt).unwrap();
    following.write(&row(8));
    assert!(following.answer().trim().parse::<f64>().is_ok());
    following.write(&row(1_000_000));
    let ran = following.end();
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let named = "rank-00000.safetensors: table/a/rows/0-";
    assert!(ran.stderr.contains(named) && ran.stderr.contains("checksum"), "{}", ran.stderr);

    rewrite(&bytes).unwrap();
    let mut following = Following::start(&place, "score run --follow -");
    following.write("y,u,v,a,b\n");
    following.write(&row(7));
    assert_eq!(following.answer(), good);
    File::options().write(true).open(&file).unwrap().set_len(length / 2).unwrap();
    following.write(&row(7));
    let ran = following.end();
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let named = format!("rank-00000.safetensors: expected {length} bytes, got {}", length / 2);
    assert!(ran.stderr.contains(&named), "{}", ran.stderr);
}
