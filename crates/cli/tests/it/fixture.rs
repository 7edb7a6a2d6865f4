//! A small training job on a few thousand generated rows, and functions that run the binary on it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use testkit::{Folder, ProgramOutput};

/// Number of rows in the training file.
pub const ROWS: u64 = 4000;

/// Locality statistics in the format that `dlrm_datasets` publishes.
pub const STATS: &str = include_str!("../../../schema/src/distribution/reuse/example.txt");

const JOB: &str = r#"
[model]
name = "small"
dense_features = 2
bottom = [8, 4]
top = [8, 1]
interaction = { kind = "dot" }
loss = "bce_with_logits"
tables = [{ name = "a", rows = 50, dim = 4 }, { name = "b", rows = 20, dim = 4, pooling = "mean" }]

[optimizer]
sparse = { kind = "rowwise_adagrad", learning_rate = 0.1 }
dense = { kind = "adagrad", learning_rate = 0.05 }

[training]
batch_size = 32
epochs = 2
shuffle_rows = 500
log_every = 20
checkpoint_every = 25

[data]
format = "csv"
hold_out = 0.2
label = { column = "y" }
dense = [{ column = "u" }, { column = "v", transform = "standardise" }]
categorical = [{ column = "a", kind = "integer" }, { column = "b", separator = "|" }]
"#;

/// A temporary folder with the files `job.toml` and `train.csv`, in which commands run.
pub struct Place(Folder);

impl std::ops::Deref for Place {
    type Target = Folder;

    fn deref(&self) -> &Folder {
        &self.0
    }
}

impl Place {
    /// Creates a folder with the small job and its training data.
    pub fn new() -> Self {
        let folder = Folder::new();
        folder.write("job.toml", JOB);
        folder.write("train.csv", rows(ROWS));
        Self(folder)
    }

    /// Returns the command that runs the binary in the folder, with `words` as arguments.
    pub fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rowmill"));
        command.args(words.split_whitespace()).current_dir(self.root());
        command
    }

    /// Runs the binary with `words` as arguments and returns its output.
    pub fn run(&self, words: &str) -> ProgramOutput {
        ProgramOutput::collect(&mut self.command(words))
    }

    /// Runs the binary, which must end with exit code 0.
    pub fn done(&self, words: &str) -> ProgramOutput {
        self.run(words).expect_code(0, words)
    }

    /// Runs the binary, which must end with exit code 2. The binary must print all texts of
    /// `expected` to stderr, and nothing to stdout.
    pub fn refused(&self, words: &str, expected: &[&str]) {
        let output = self.run(words).expect_code(2, words);
        for text in expected {
            assert!(output.stderr.contains(text), "{words}: no {text:?} in\n{}", output.stderr);
        }
        assert_eq!(output.stdout, "", "{words}");
    }
}

/// Flips one byte in the middle of the largest file of a checkpoint. Returns the name of the file.
pub fn damage(checkpoint: &Path) -> String {
    let entries = fs::read_dir(checkpoint).unwrap().map(|entry| entry.unwrap().path());
    let file = entries
        .filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap();
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 3;
    bytes[last] ^= 0x40;
    fs::write(&file, bytes).unwrap();
    file.file_name().unwrap().to_string_lossy().into_owned()
}

/// Generates rows whose label depends on all four columns.
fn rows(count: u64) -> String {
    let mut text = "y,u,v,a,b\n".to_owned();
    for row in 0..count {
        let draw = |salt: u64| {
            let x = (row * 7 + salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33
        };
        let (a, b) = (draw(1) % 50, draw(2) % 20);
        let (u, v) = ((draw(3) % 1000) as f64 / 500.0 - 1.0, (draw(4) % 100) as f64);
        let score = u + if a % 2 == b % 2 { 1.0 } else { -1.0 } + (v - 50.0) / 50.0;
        let noise = (draw(5) % 1000) as f64 / 500.0 - 1.0;
        let label = u8::from(score + noise > 0.0);
        writeln!(text, "{label},{u},{v},{a},k{b}|k{}", (b + 1) % 20).unwrap();
    }
    text
}

/// Sends SIGINT, as Ctrl-C does. The command `kill` is not used, because on a busy machine a short
/// command would end before `kill` starts.
pub fn interrupt(child: &Child) {
    let child = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(child, rustix::process::Signal::INT).unwrap();
}
