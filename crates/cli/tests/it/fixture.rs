//! A small job on a few thousand made-up rows, and a way to run the binary on it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// Rows of the training file.
pub const ROWS: u64 = 4000;

/// Locality statistics as `dlrm_datasets` publishes them.
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

/// A folder with `job.toml` and `train.csv`; commands run in it. Removed when dropped.
pub struct Place {
    folder: TempDir,
}

impl Place {
    /// A fresh folder with the small job and its data.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("job.toml"), JOB).unwrap();
        fs::write(folder.path().join("train.csv"), rows(ROWS)).unwrap();
        Self { folder }
    }

    /// A path inside.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The names inside that begin with `start`.
    pub fn names(&self, start: &str) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(start)).collect()
    }

    /// The binary with `words` as arguments, to be run in the folder.
    pub fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rowmill"));
        command.args(words.split_whitespace()).current_dir(self.folder.path());
        command
    }

    /// Runs it.
    pub fn run(&self, words: &str) -> Ran {
        Ran::of(&self.command(words).output().unwrap())
    }

    /// Runs it with exit code 0.
    pub fn done(&self, words: &str) -> Ran {
        let ran = self.run(words);
        assert_eq!(ran.code, Some(0), "rowmill {words}\n{}\n{}", ran.stdout, ran.stderr);
        ran
    }
}

/// What the binary said.
#[derive(Debug)]
pub struct Ran {
    /// Its exit code, if it was not killed.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// The output of a finished process.
    pub fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }

    /// The JSON lines of stdout.
    pub fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The last JSON line of stdout.
    pub fn last(&self) -> Value {
        self.lines().pop().unwrap_or_else(|| panic!("no output\n{}", self.stderr))
    }
}

/// Flips one byte in the middle of the largest file of a checkpoint; the file's name.
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

/// Rows whose label depends on all four columns.
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

/// Random moments that are the same in every run of the test.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Ctrl-C. Not by the command `kill`: until that has started on a busy machine, a short command
/// has ended.
pub fn interrupt(child: &Child) {
    let child = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(child, rustix::process::Signal::INT).unwrap();
}
