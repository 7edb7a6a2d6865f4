//! `rowmill-hub demo`: a hub with the rows of a simulated fleet, and a real training whose agent
//! sends its steps. All of it runs on this machine, and ends with the program.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arrow_array::{StringArray, UInt64Array};
use serde::Serialize;

use crate::columns::RowTable;
use crate::config::parse_time;
use crate::error::Error;
use crate::log::say;
use crate::simulate::{SimulateOptions, simulate};
use crate::store::{HOUR_S, Partition, StoreFolder, column};
use crate::tokens::{TokenRole, create_token};

/// Days of the simulated past. The report compares a day with the same day of the week before.
const PAST: Duration = Duration::from_secs(9 * 86_400);
/// Seconds of the interval of a simulated row.
const SIMULATED_S: u32 = 300;
/// Seconds of the interval of a row of the real agent.
const AGENT_S: u32 = 2;
/// Name of the host with the real training.
const HOST: &str = "this-machine";
/// Id of the run of the real training, its workflow and configuration, and its number of rows. The
/// agent reads the id as it reads that of `torchrun`.
const RUN: &str = "demo";
const WORKFLOW: &str = "demo-training";
const MODEL: &str = "dlrm-ddp";
const ROWS: &str = "20000";
/// Longest time until the hub listens and until a program has ended.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest time until the first step of the training is stored.
const TRAINING_PATIENCE: Duration = Duration::from_secs(300);
const TICK: Duration = Duration::from_millis(200);

/// The options of a demonstration.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoOptions {
    /// New folder for everything that the demonstration writes
    #[arg(long, value_name = "FOLDER", default_value = "rowmill-demo")]
    pub folder: PathBuf,
    /// Loopback address of the hub; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9470")]
    pub listen: SocketAddr,
    /// Time after which the demonstration ends, once the page is there [default: at Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    pub length: Option<Duration>,
    /// Hosts of the simulated fleet, with eight GPUs each
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub hosts: u64,
    /// Do not open the page in a browser
    #[arg(long)]
    pub no_browser: bool,
}

/// A program of the demonstration, which is ended on drop.
struct DemoProgram {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl DemoProgram {
    /// Starts a program that writes its messages to `NAME.log` in the folder.
    fn start(name: &'static str, command: &mut Command, folder: &Path) -> Result<Self, Error> {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).map_err(Error::io(&log, "create"))?;
        let copy = file.try_clone().map_err(Error::io(&log, "open"))?;
        let command = command.stdin(Stdio::null()).stdout(file).stderr(copy);
        let program = PathBuf::from(command.get_program());
        let child = command.spawn().map_err(Error::io(&program, "start"))?;
        Ok(Self { name, child, log })
    }

    /// Checks that the program has not ended.
    fn check(&mut self) -> Result<(), Error> {
        let ended = self.child.try_wait().map_err(Error::io(&self.log, "wait for"))?;
        let Some(status) = ended else { return Ok(()) };
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(3)..].join("\n");
        Err(Error::Value {
            what: format!("{} of the demonstration", self.name),
            expected: "a running program",
            got: format!("{status}; {} ends with\n{last}", self.log.display()),
        })
    }
}

impl Drop for DemoProgram {
    fn drop(&mut self) {
        // SIGTERM lets the hub store what it has received. A failure means that it has ended.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(TICK / 4);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the demonstration until its end or until `stop`.
///
/// # Errors
/// If the folder exists, if a program is missing, fails or ends early, or if no step of the
/// training arrives at the hub.
pub fn run(options: &DemoOptions, stop: &Arc<AtomicBool>) -> Result<(), Error> {
    let began = Instant::now();
    let [hub, agent, trainer] = ["rowmill-hub", "rowmill-agent", "rowmill"].map(find_program);
    let (hub, agent, trainer) = (hub?, agent?, trainer?);
    let place = DemoFolder::create(&options.folder, options.listen)?;
    let folder = &place.folder;
    let mut serving = Command::new(&hub);
    serving.arg("serve").arg("--config").arg(folder.join("hub.toml"));
    let mut hub = DemoProgram::start("hub", &mut serving, folder)?;
    let url = wait_for_hub(&mut hub, stop)?;
    say(&format!("hub: {url}, with its files in {}", folder.display()));

    let days = PAST.as_secs() / 86_400;
    say(&format!("simulated fleet: {days} days of {} GPUs", options.hosts * 8));
    place.write_agent(&url)?;
    let mut answering = Command::new(&agent);
    answering.arg("--config").arg(folder.join("agent.toml"));
    let agent = DemoProgram::start("agent", &mut answering, folder)?;
    let mut training = Command::new(&trainer);
    training.args(["train", MODEL, "--synthetic", ROWS, "--threads", "1", "--run"]);
    training.arg(folder.join("run")).args(["--set", "rows_cap=20000", "--set", "epochs=100000"]);
    training.args(["--set", "keep_checkpoints=1"]);
    training.env("KINETO_IPC_SOCKET_DIR", folder.join("sockets"));
    training.env("ROWMILL_WORKFLOW", WORKFLOW).env("TORCHELASTIC_RUN_ID", RUN);
    let training = DemoProgram::start("training", &mut training, folder)?;
    let simulation = SimulateOptions {
        hub: url.clone(),
        token: folder.join("agent.token"),
        ca: None,
        hosts: options.hosts,
        gpus: 8,
        interval: SIMULATED_S,
        seed: 0,
        since: PAST,
        until: None,
        // The past is sent first, then rows at their real pace until `stop`.
        length: None,
        faults: Vec::new(),
        truth: None,
    };
    let flag = Arc::clone(stop);
    let simulated = thread::spawn(move || simulate(&simulation, flag));

    let mut programs = [hub, agent, training];
    let store = StoreFolder::open_for_reading(&folder.join("store"))?;
    let token = fs::read_to_string(folder.join("admin.token")).unwrap_or_default();
    let page = format!("{url}/#token={}", token.trim());
    let (mut stored, mut shown) = (StoredSteps::default(), None);
    let is_over = |shown: Option<Instant>| {
        shown.zip(options.length).is_some_and(|(shown, length)| shown.elapsed() >= length)
    };
    while !stop.load(Ordering::Relaxed) && !simulated.is_finished() && !is_over(shown) {
        programs.iter_mut().try_for_each(DemoProgram::check)?;
        stored = read_steps(&store)?;
        if let Some(run) = stored.run.as_deref().filter(|_| stored.steps > 0 && shown.is_none())
            && has_past(&store)?
        {
            shown = Some(Instant::now());
            print_addresses(&page, folder, &url, run);
            if !options.no_browser {
                open_page(&page);
            }
        }
        if shown.is_none() && began.elapsed() > TRAINING_PATIENCE {
            let what = "rows at the hub".to_owned();
            let steps = stored.steps;
            let got = format!("{steps} steps in {TRAINING_PATIENCE:?}; see {}", folder.display());
            let expected = "steps of the training, and rows of the simulated past";
            return Err(Error::Value { what, expected, got });
        }
        thread::sleep(TICK * 5);
    }
    stop.store(true, Ordering::Relaxed);
    simulated.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let steps = stored.steps;
    say(&format!("{steps} training steps arrived; all programs of the demonstration end now"));
    Ok(())
}

/// Finds a program beside this one.
fn find_program(name: &'static str) -> Result<PathBuf, Error> {
    let own = std::env::current_exe().map_err(Error::io(Path::new(name), "find"))?;
    let program = own.with_file_name(name);
    if program.exists() {
        return Ok(program);
    }
    let got = "no such file".to_owned();
    let what = program.display().to_string();
    let expected = "a program: cargo build --release -p hub -p agent -p rowmill builds all three";
    Err(Error::Value { what, expected, got })
}

/// The folder with the files of a demonstration.
struct DemoFolder {
    folder: PathBuf,
}

impl DemoFolder {
    /// Creates the folder with the tokens and the hub's configuration.
    fn create(folder: &Path, listen: SocketAddr) -> Result<Self, Error> {
        fs::create_dir(folder).map_err(Error::io(folder, "create as a new folder"))?;
        let folder = folder.canonicalize().map_err(Error::io(folder, "find"))?;
        let place = Self { folder };
        let mut hashes = String::new();
        for (role, name, file) in
            [(TokenRole::Agent, "*", "agent.token"), (TokenRole::Admin, "demo", "admin.token")]
        {
            let (token, line) = create_token(role, name)?;
            place.write(file, &format!("{token}\n"))?;
            hashes += &format!("{line}\n");
        }
        place.write("hub.tokens", &hashes)?;
        let [store, tokens] = ["store", "hub.tokens"].map(|name| place.folder.join(name));
        place.write_toml("hub.toml", &DemoHubFile { listen, store, tokens })?;
        Ok(place)
    }

    /// Writes the configuration of the real agent.
    fn write_agent(&self, url: &str) -> Result<(), Error> {
        let [socket_dir, state_dir, audit, token_file] =
            ["sockets", "agent", "agent-audit.json", "agent.token"]
                .map(|name| self.folder.join(name));
        fs::create_dir(&socket_dir).map_err(Error::io(&socket_dir, "create"))?;
        let hub = DemoAgentHub { url, token_file, verbs: ["trace"] };
        let file =
            DemoAgentFile { host: HOST, interval_s: AGENT_S, socket_dir, state_dir, audit, hub };
        self.write_toml("agent.toml", &file)
    }

    fn write_toml(&self, name: &str, file: &impl Serialize) -> Result<(), Error> {
        let path = self.folder.join(name);
        let text = toml::to_string(file).map_err(std::io::Error::other);
        self.write(name, &text.map_err(Error::io(&path, "format"))?)
    }

    /// Writes a file that only this user may read.
    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.folder.join(name);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let mut file = file.map_err(Error::io(&path, "create"))?;
        file.write_all(text.as_bytes()).map_err(Error::io(&path, "write"))
    }
}

/// The configuration of the hub of a demonstration.
#[derive(Serialize)]
struct DemoHubFile {
    listen: SocketAddr,
    store: PathBuf,
    tokens: PathBuf,
}

/// The configuration of the agent of a demonstration.
#[derive(Serialize)]
struct DemoAgentFile<'a> {
    host: &'a str,
    interval_s: u32,
    socket_dir: PathBuf,
    state_dir: PathBuf,
    audit: PathBuf,
    hub: DemoAgentHub<'a>,
}

/// How the agent of a demonstration reaches the hub, and what the hub may order.
#[derive(Serialize)]
struct DemoAgentHub<'a> {
    url: &'a str,
    token_file: PathBuf,
    verbs: [&'a str; 1],
}

/// Waits until the hub names the URL at which it listens.
fn wait_for_hub(hub: &mut DemoProgram, stop: &AtomicBool) -> Result<String, Error> {
    let began = Instant::now();
    loop {
        let text = fs::read_to_string(&hub.log).unwrap_or_default();
        let ended = text.lines().find_map(|line| line.split_once("listening at "));
        if let Some((_, url)) = ended.filter(|_| text.ends_with('\n')) {
            return Ok(url.to_owned());
        }
        hub.check()?;
        if began.elapsed() > PATIENCE || stop.load(Ordering::Relaxed) {
            let what = "hub of the demonstration".to_owned();
            return Err(Error::Value { what, expected: "a line with its URL", got: text });
        }
        thread::sleep(TICK / 4);
    }
}

/// The training steps that the hub has stored, and their run.
#[derive(Default)]
struct StoredSteps {
    steps: u64,
    run: Option<String>,
}

/// Reads the training steps that the hub has stored. The simulated fleet reports none.
fn read_steps(store: &StoreFolder) -> Result<StoredSteps, Error> {
    let (table, mut stored) = (RowTable::Step.folder(), StoredSteps::default());
    for hour in store.hours(table)? {
        let partition = Partition { hour: Some(hour), table };
        store.read(partition, &["scheduler", "job", "steps"], |batch, path| {
            let texts = |name| column::<StringArray>(batch, name, path);
            let (schedulers, jobs) = (texts("scheduler")?, texts("job")?);
            let counts: &UInt64Array = column(batch, "steps", path)?;
            stored.steps += counts.iter().flatten().sum::<u64>();
            let mut named = (0..batch.num_rows()).filter(|row| !jobs.value(*row).is_empty());
            let run = named.next();
            let run = run.map(|row| format!("{}/{}", schedulers.value(row), jobs.value(row)));
            stored.run = stored.run.take().or(run);
            Ok(())
        })?;
    }
    Ok(stored)
}

/// Whether the simulated rows have reached the present.
fn has_past(store: &StoreFolder) -> Result<bool, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let last = store.hours(RowTable::Gpu.folder())?.last().copied();
    Ok(last >= Some(now.saturating_sub(2 * u64::from(SIMULATED_S)) / HOUR_S))
}

/// Prints the address of the page and further commands.
fn print_addresses(page: &str, folder: &Path, url: &str, run: &str) {
    say(&format!("page: {page}"));
    let folder = folder.display();
    let reach = format!("--hub {url} --token-file {folder}/admin.token");
    say(&format!("report: rowmill fleet report {reach}"));
    say(&format!("training: rowmill fleet job {run} {reach}"));
    say(&format!("hosts: rowmill-hub status --config {folder}/hub.toml"));
}

/// Opens the page if there is a desktop.
fn open_page(page: &str) {
    let has_desktop =
        ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|key| std::env::var_os(key).is_some());
    if has_desktop {
        let mut command = Command::new("xdg-open");
        command.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if !command.status().is_ok_and(|status| status.success()) {
            say("note: xdg-open cannot open a browser; open the page by its address");
        }
    }
}
