//! A hub that runs in a folder of its own, and functions that send batches to it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arrow_array::{BinaryArray, UInt64Array};
use fleet::proto::{BATCHES, Body, CONTENT_TYPE, Entry, EntryBatch, GpuInterval, VERSION};
use hub::columns::RowTable;
use hub::store::{Partition, StoreFolder, column};
use prost::Message;
use serde_json::Value;
use testkit::{Folder, ProgramOutput};

/// Timeout of every wait in the tests, long enough for a loaded machine.
pub const WAIT: Duration = Duration::from_secs(60);
/// Seconds of the intervals of rows.
pub const LENGTH_S: u32 = 1;

/// A running hub, which is killed on drop.
pub struct TestHub {
    pub folder: Folder,
    pub child: Child,
    /// URL at which the hub listens, without its scheme.
    pub address: String,
    pub token: String,
}

/// The status, the head and the body of an HTTP answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u32,
    pub head: String,
    pub body: Vec<u8>,
}

/// Creates a command that runs the hub program.
pub fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_rowmill-hub"))
}

/// Creates a token of a host or viewer, appends its line to the file of tokens, and returns it.
pub fn add_token(folder: &Folder, role: &str, name: &str) -> String {
    let output = ProgramOutput::collect(program().args(["token", "new", role, name]));
    let line = output.stderr.lines().find(|line| line.starts_with(role)).unwrap();
    let path = folder.path("tokens");
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    folder.write("tokens", format!("{before}{line}\n"));
    output.stdout.trim().to_owned()
}

/// Creates a folder with a configuration file and a token, and returns both.
pub fn create_configuration(lines: &str) -> (Folder, String) {
    let folder = Folder::new();
    let token = add_token(&folder, "agent", "*");
    let root = folder.root().display();
    folder
        .write("hub.toml", format!("store = '{root}/store'\ntokens = '{root}/tokens'\n{lines}\n"));
    (folder, token)
}

impl TestHub {
    /// Starts a hub with further lines of configuration.
    pub fn start(lines: &str) -> Self {
        let (folder, token) = create_configuration(&format!("listen = '127.0.0.1:0'\n{lines}"));
        let mut command = program();
        command.args(["serve", "--config"]).arg(folder.path("hub.toml"));
        let (child, address) = wait_for_start(command);
        Self { folder, child, address, token }
    }

    /// Kills the hub with SIGKILL and starts it again at the same address.
    pub fn kill_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let path = self.folder.path("hub.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let listen = format!("listen = '{}'", self.address);
        let lines = text.lines().filter(|line| !line.starts_with("listen"));
        let text: Vec<&str> = std::iter::once(listen.as_str()).chain(lines).collect();
        std::fs::write(&path, text.join("\n")).unwrap();
        let mut command = program();
        command.args(["serve", "--config"]).arg(path);
        (self.child, self.address) = wait_for_start(command);
    }

    /// Sends a batch. Returns `None` if the hub did not answer.
    pub fn send(&self, batch: &EntryBatch) -> Option<Answer> {
        send_batch(&self.address, &self.token, batch)
    }

    /// Returns the groups and totals of the last day.
    pub fn sums(&self, by: &str) -> Value {
        let mut command = program();
        command.args(["sums", "--format", "json", "--since", "24h", "--by", by, "--config"]);
        let output = ProgramOutput::collect(command.arg(self.folder.path("hub.toml")));
        output.expect_code(0, "sums").json()
    }

    /// Returns the hosts with their problems in the last day.
    pub fn status(&self) -> Value {
        let mut command = program();
        command.args(["status", "--format", "json", "--config"]);
        let output = ProgramOutput::collect(command.arg(self.folder.path("hub.toml")));
        output.expect_code(0, "status").json()
    }

    /// Counts the stored copies of each entry by its queue and number.
    pub fn entries(&self) -> BTreeMap<(Vec<u8>, u64), u64> {
        count_entries(&self.folder.path("store"))
    }

    /// Counts the files of GPU rows that a merge wrote.
    pub fn merged_files(&self) -> usize {
        let store = StoreFolder::open_for_reading(&self.folder.path("store")).unwrap();
        let hours = store.hours("gpu").unwrap().into_iter();
        let lists = hours.map(|hour| {
            let list = store.list(Partition { hour: Some(hour), table: "gpu" }).unwrap();
            list.parts.iter().filter(|part| part.first < part.last).count()
        });
        lists.sum()
    }
}

impl Drop for TestHub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a hub and waits until it listens. Returns its address.
pub fn wait_for_start(mut command: Command) -> (Child, String) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("rowmill-hub ") {
        assert!(!line.starts_with("error"), "{line}");
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the hub ended: {:?}", child.wait());
    }
    let address = line.trim().split_once("://").unwrap().1.to_owned();
    std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
    (child, address)
}

/// Counts the stored copies of each entry by its queue and number. Events are left out, because the
/// hub itself adds some of them.
pub fn count_entries(store: &std::path::Path) -> BTreeMap<(Vec<u8>, u64), u64> {
    let folder = StoreFolder::open_for_reading(store).unwrap();
    let mut counts = BTreeMap::new();
    for table in RowTable::ALL.map(RowTable::folder).into_iter().filter(|table| *table != "event") {
        let hours = folder.hours(table).unwrap().into_iter().map(Some);
        for hour in hours.chain((table == "order").then_some(None)) {
            let partition = Partition { hour, table };
            let read = folder.read(partition, &["queue", "sequence"], |batch, path| {
                let queues: &BinaryArray = column(batch, "queue", path)?;
                let sequences: &UInt64Array = column(batch, "sequence", path)?;
                for row in 0..batch.num_rows() {
                    let key = (queues.value(row).to_vec(), sequences.value(row));
                    *counts.entry(key).or_default() += 1;
                }
                Ok(())
            });
            read.unwrap();
        }
    }
    counts
}

/// Sends a batch to a hub without TLS. Returns `None` if the hub did not answer.
pub fn send_batch(address: &str, token: &str, batch: &EntryBatch) -> Option<Answer> {
    let body = batch.encode_to_vec();
    let head = format!(
        "POST {BATCHES} HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    ask(address, &[head.as_bytes(), &body].concat())
}

/// Sends the bytes of a request. Returns `None` if the hub did not answer.
pub fn ask(address: &str, request: &[u8]) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(WAIT)).unwrap();
    // The hub may refuse a request before it has read its body.
    let _ = stream.write_all(request);
    read_answer(stream)
}

/// Reads an answer until the connection ends.
pub fn read_answer(mut stream: TcpStream) -> Option<Answer> {
    let mut bytes = Vec::new();
    // A connection that is reset after the answer still delivers the answer.
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head, body: bytes[end + 4..].to_vec() })
}

/// The start of the current hour minus some hours, in seconds since 1970.
pub fn hour_before(hours: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    (now / 3600 - hours) * 3600
}

/// A batch of rows of one GPU, whose numbers are consecutive.
pub fn gpu_batch(queue: u8, first: u64, starts: impl Iterator<Item = u64>) -> EntryBatch {
    let entries = starts.zip(first..).map(|(start_unix_s, sequence)| {
        let row = GpuInterval {
            start_unix_s,
            length_s: LENGTH_S,
            uuid: format!("GPU-{queue}"),
            model: "H100".to_owned(),
            observed_s: f64::from(LENGTH_S),
            sums: BTreeMap::from([("busy_s".to_owned(), 2.0)]),
            ..GpuInterval::default()
        };
        Entry { sequence, body: Some(Body::Gpu(Box::new(row))) }
    });
    EntryBatch {
        version: VERSION,
        host: format!("host-{queue}"),
        queue: vec![queue; 16],
        gone_through: first - 1,
        entries: entries.collect(),
        sent_unix_ms: None,
    }
}

/// The path of a program beside the hub's, if it was built.
pub fn program_beside(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_BIN_EXE_rowmill-hub")).with_file_name(name);
    path.exists().then_some(path)
}
