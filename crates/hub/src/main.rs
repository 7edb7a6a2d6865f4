//! The program `rowmill-hub`: serves agents, prints the sums of a store, and creates tokens.

use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Parser, Subcommand};
use fleet::process;
use hub::api::FleetReader;
use hub::audit::AuditLog;
use hub::bucket::BucketConfig;
use hub::config::{HubFile, Pools, Retention, parse_time};
use hub::demo::{self, DemoOptions};
use hub::error::Error;
use hub::grouping::SumQuery;
use hub::log::say;
use hub::metrics::HubCounters;
use hub::notices::{NoticeBoard, NoticeWatch};
use hub::orders::{OrderBoard, analysis};
use hub::outward::OutwardSender;
use hub::poll::SlurmPoll;
use hub::problems::ProblemLog;
use hub::server::{self, HubListener, HubParts, orders};
use hub::simulate::{SimulateOptions, simulate};
use hub::store::StoreFolder;
use hub::store::copies;
use hub::store::ingest::RowStore;
use hub::store::retention;
use hub::sums::Dimension;
use hub::token_file::{self, FollowedTokens};
use hub::tokens::{TokenRole, create_token};
use hub::trees::ResourceTree;
use hub::watch::RunWatch;
use hub::writer::BatchQueue;
use hub::{rollup, status, table};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::sync::watch;

/// Time between two searches for files to merge.
const MAINTENANCE: Duration = Duration::from_secs(30);
/// Interval at which a waiting thread checks whether the hub is ending.
const TICK: Duration = Duration::from_millis(200);
/// Exit code for a wrong configuration or a failed start.
const EXIT_USAGE: u8 = 2;

/// rowmill-hub: the rows of all agents as Parquet files, and the sums of a fleet.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: HubCommand,
}

/// What the program shall do.
#[derive(Debug, Subcommand)]
enum HubCommand {
    /// Take rows from agents and store them
    #[command(after_help = "\
Keys of the file:
  store = \"/var/lib/rowmill-hub\"
  listen = \"0.0.0.0:9470\"                    # [default: 127.0.0.1:9470]
  certificate = \"/etc/rowmill/hub.pem\"       # chain, leaf first; only loopback is served without TLS
  key = \"/etc/rowmill/hub.key\"               # mode 0600
  tokens = \"/etc/rowmill/hub.tokens\"         # lines of `rowmill-hub token new`; read again at changes
  commit_ms = 200                            # shortest time between two commits
  waiting_mib = 64                           # batches that wait; agents send further ones later
  connections = 16384
  [[pool]]                                   # may be repeated; other hosts are in `default`
  name = \"a100\"
  hosts = [\"gpu-a*\", \"gpu-17\"]
  [slurm]                                    # asks Slurm about jobs and nodes
  cluster = \"main\"                         # takes the place of the host
  interval_s = 60
  folder = \"/usr/bin\"                      # of squeue, sinfo and sacct [default: found by PATH]
  accounting = \"1d\"                        # jobs that ended that long before the start; \"0s\": sacct is not used
  [retention]                                # deletes old days; a kind without a time is kept for good
  rows = \"30d\"                               # rows of GPUs, hosts and steps
  minutes = \"90d\"                            # sums of each minute
  hours = \"2y\"                               # sums of each hour
  runs = \"2y\"                                # runs and events
  [access]                                   # off by default
  proxies = [\"127.0.0.1\"]                    # addresses of proxies that authenticate users
  user_header = \"X-Forwarded-User\"           # set by these proxies
  groups_header = \"X-Forwarded-Groups\"       # separated by commas
  hosts = [\"hub.example.org\"]                # names by which browsers reach the hub
  [[access.rule]]                            # the first matching rule with a role counts
  users = [\"anna\"]                           # or groups = [\"ml-*\"]
  role = \"tracer\"                            # viewer, tracer or admin; tokens keep their role
  traces = [\"bob\", \"bot-*\"]                  # other users whose runs they may trace
  [bucket]                                   # copies files to S3; a hub with the feature s3
  name = \"fleet\"                             # keys: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY
  prefix = \"rowmill\"                         # [default: none]
  endpoint = \"https://s3.example.org\"        # [default: AWS]
  region = \"us-east-1\"
  keep_local = \"7d\"                          # rows then leave the local disk [default: never]
  cache_mib = 4096                           # files that queries fetch
  interval_s = 300                           # between two searches for files to copy
  [[outward]]                                # sends sums of each minute; may be repeated
  url = \"http://127.0.0.1:9090/api/v1/write\"
  protocol = \"remote-write\"                  # or otlp, for http://127.0.0.1:4318/v1/metrics
  token_file = \"/etc/rowmill/outward.token\" # bearer token, over https only
  ca = \"/etc/rowmill/ca.pem\"               # in place of the usual certificates
  labels = { cluster = \"main\" }            # added to all samples
  delay_s = 60                               # time after a minute in which its rows may arrive
  groups_max = 2000                          # per minute; others share one group per pool and model
  [traces]                                   # orders for traces, and traces that agents send
  rowmill = \"/usr/bin/rowmill\"               # analyzes them [default: beside rowmill-hub]
  kept = \"30d\"
  size_mib = 512                             # of one trace
  total_mib = 20480                          # of all traces; further ones are refused
  orders_per_day = 200
  periodic_per_day = 100                     # periodic traces that are fetched from agents; 0 for none
  periodic_per_workflow = 4                  # of these, for one workflow of a user
  memory_mib = 4096                          # of one analysis, which may take `timeout`
  timeout = \"300s\"
  [watch]                                    # orders traces by itself; without it, none is ordered
  interval_s = 60                            # length of the intervals that are compared
  history = \"24h\"                            # for the band of a run and of earlier runs like it
  history_min = 20                           # intervals of the history before there is a band
  intervals = 5                              # consecutive ones outside of the band cause an order
  deviations = 5.0                           # half width of the band in standard deviations
  share_min = 0.15                           # and at least this share of the median
  cool_down = \"6h\"                           # between two orders for a workflow of a user
  per_day = 20                               # orders in 24 hours
  steps = 5                                  # to record
  [[watch.schedule]]                         # may be repeated
  workflow = \"image-*\"
  every = \"6h\"
  [notices]                                  # tells owners of idle GPUs; off without this section
  dry_run = true                             # only lists what would be sent and cancelled
  after = \"30m\"                              # observed time without work of a GPU
  again = \"6h\"                               # between two notices about a run
  interval_s = 300                           # between two searches
  per_user = 5                               # notices in 24 hours
  per_day = 200                              # to all users
  webhook = { url = \"https://chat/hook\" }    # also token_file and ca; gets JSON with `text`
  command = [\"mail\", \"-s\", \"Idle GPUs\", \"{user}\"]     # gets the text as its input
  cancel = false                             # cancels jobs of Slurm with dry_run = false
  cancel_after = \"2h\"                        # without work since the notice
  [[notices.except]]                         # may be repeated; each list that is given must match
  users = [\"bot-*\"]                          # also accounts, partitions, workflows
  [logs]                                     # links from runs to their logs
  url = \"https://logs/{scheduler}/{job}\"     # also {user} and {workflow}
  [[model]]                                  # may be repeated; common models have SMs and FLOP/s
  name = \"NVIDIA H100*\"
  sms = 132
  flops = 989e12
  price_per_hour = 2.5

Ctrl-C or SIGTERM ends the hub after the batches that it has received are stored. SIGHUP reads the tokens again.")]
    Serve {
        /// The configuration file
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Print where the GPU hours of the fleet went, from the files alone
    #[command(after_help = "\
Examples:
  rowmill-hub sums --config hub.toml --since 24h
  rowmill-hub sums --config hub.toml --since 7d --by user,workflow --format json")]
    Sums {
        /// The configuration file, for its store and its pools
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// How far to look back, such as 90m, 24h or 7d
        #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_time)]
        since: Duration,
        /// Dimensions of the groups; several are separated by commas
        #[arg(long, value_enum, value_delimiter = ',', default_value = "pool")]
        by: Vec<Dimension>,
        /// Resources whose time is divided; `cpu` has the dimensions pool and host only
        #[arg(long, value_enum, default_value = "gpu")]
        tree: ResourceTree,
        #[arg(long, value_enum, default_value = "table")]
        format: OutputFormat,
    },
    /// Make the files of the bucket known to a store whose disk was lost
    Restore {
        /// The configuration file, for its store and its bucket
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Print the hosts that report rows, with their versions and the problems of their rows
    #[command(after_help = "\
Problems are counted since the time that --since names:
  silent           a row is overdue for five minutes
  clock            the clock of the host differs from the hub's by more than 2 s
  doubled_rows     left out, because they repeat an interval of another row: two agents on a host
  future_rows      begin in the future
Listed in parentheses, because nothing needs to be mended:
  repeated_rows    sent again after a lost answer, and stored once
  late_rows        arrived more than two minutes after their interval
  expired_rows     left out, because they are older than such rows are kept")]
    Status {
        /// The configuration file, for its store
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// How far to look back, such as 90m, 24h or 7d
        #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_time)]
        since: Duration,
        #[arg(long, value_enum, default_value = "table")]
        format: OutputFormat,
    },
    /// Send rows of a made-up fleet to a hub, and print its true sums
    #[command(after_help = "\
Users, workflows, failures and the activity of GPUs follow from the seed and the time. Afterwards, the sums of
the hub must be equal to the true ones.

Examples:
  rowmill-hub simulate --token agent.token --since 7d --interval 600 --for 0s
  rowmill-hub simulate --token agent.token --hosts 1000 --for 10m --faults late,doubled,ahead")]
    Simulate(SimulateOptions),
    /// Show all parts: a hub, a simulated fleet, and a real training under an agent
    #[command(after_help = "\
The page opens where there is a desktop; its address is printed everywhere. Nine days of a simulated fleet come
first. Then a small model trains on one core, and its steps arrive at the hub until Ctrl-C.

Examples:
  rowmill-hub demo
  rowmill-hub demo --folder /tmp/demo --listen 127.0.0.1:0 --no-browser --for 5s")]
    Demo(DemoOptions),
    /// Manage tokens of callers
    #[command(subcommand)]
    Token(TokenCommand),
}

/// What to do with the tokens of callers.
#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Print a new token to stdout, and its line for the file of tokens to stderr
    New {
        #[arg(value_enum)]
        role: TokenRole,
        /// Host whose rows an agent's token may send. A `*` at its end stands for any letters:
        /// `'gpu-*'`, or `'*'` for one token of all hosts. Other tokens are named after their
        /// user. A tracer may trace the runs of this user
        #[arg(value_parser = parse_name)]
        name: String,
    },
}

/// The format in which sums are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OutputFormat {
    Table,
    Json,
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        HubCommand::Serve { config } => serve(&config),
        HubCommand::Restore { config } => restore(&config),
        HubCommand::Sums { config, since, by, tree, format } => {
            let query =
                SumQuery { tree, range: range_until_now(since), ..SumQuery::group(&by, None) };
            print_sums(&config, &query, &by, format)
        }
        HubCommand::Status { config, since, format } => print_status(&config, since, format),
        HubCommand::Simulate(options) => run_simulation(&options),
        HubCommand::Demo(options) => stop_at_signal().and_then(|stop| demo::run(&options, &stop)),
        HubCommand::Token(TokenCommand::New { role, name }) => print_token(role, &name),
    };
    let Err(error) = result else { return ExitCode::SUCCESS };
    error.to_string().lines().for_each(|line| say(&format!("error: {line}")));
    if let Some(hint) = error.hint() {
        say(&format!("hint: {hint}"));
    }
    ExitCode::from(EXIT_USAGE)
}

fn serve(config: &Path) -> Result<(), Error> {
    let file = HubFile::read(config)?;
    process::raise_descriptor_limit();
    abort_at_panic();
    let start = |source| Error::Io { path: config.to_owned(), action: "start a thread", source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(start)?;
    // The configuration is checked before the store is created.
    let (listener, url) = runtime.block_on(HubListener::bind(&file))?;
    let folder = StoreFolder::open(&file.store)?.with_bucket(file.bucket.as_ref())?;
    let folder = Arc::new(folder);
    let reader = FleetReader::new(Arc::clone(&folder), &file);
    let audit = Arc::new(AuditLog::open(&file.store)?);
    let notices = Arc::new(NoticeBoard::open(Arc::clone(&folder), file.notices)?);
    let board = Arc::new(OrderBoard::open(Arc::clone(&folder), file.traces)?);
    let (ended, is_over) = watch::channel(false);
    let tokens = listener.tokens();
    let stop = handle_signals(ended, Arc::clone(&tokens)).map_err(start)?;
    let programs = file.slurm.as_ref().map(|cluster| cluster.folder.clone());
    let (told, log) = (Arc::clone(&notices), Arc::clone(&audit));
    let idle = NoticeWatch::new(told, log, programs, Arc::clone(&stop))?;
    let mut targets = Vec::new();
    for target in file.outward {
        let (folder, pools) = (Arc::clone(&folder), file.pools.clone());
        targets.push(OutwardSender::new(target, folder, pools, Arc::clone(&stop))?);
    }
    let counters = HubCounters::new(targets.iter().map(OutwardSender::counters).collect());
    let counters = Arc::new(counters);
    let rows = RowStore::new(Arc::clone(&folder)).with_retention(file.retention);
    let pause = Duration::from_millis(file.commit_ms);
    let (queue, commits) =
        BatchQueue::start(rows, ProblemLog::new()?, Arc::clone(&counters), pause).map_err(start)?;
    let states = file.store.join("outward");
    let outward: std::io::Result<Vec<_>> =
        targets.into_iter().map(|target| target.start(states.clone())).collect();
    let outward = outward.map_err(start)?;
    let scheduler = match file.slurm {
        None => None,
        Some(cluster) => {
            let poll = SlurmPoll::new(cluster, queue.clone(), Arc::clone(&folder))?;
            Some(poll.start(Arc::clone(&stop)).map_err(start)?)
        }
    };
    let follower = token_file::follow(tokens, Arc::clone(&stop)).map_err(start)?;
    let copies = start_copies(Arc::clone(&folder), file.bucket, Arc::clone(&stop));
    let copies = copies.map_err(start)?;
    let analyses = analysis::start(Arc::clone(&board), Arc::clone(&stop)).map_err(start)?;
    let watch = file.watch.map(|rules| {
        let watch = RunWatch::new(rules, Arc::clone(&folder), Arc::clone(&board));
        watch.start(Arc::clone(&stop))
    });
    let watch = watch.transpose().map_err(start)?;
    let idle = idle.map(NoticeWatch::start).transpose().map_err(start)?;
    let maintenance = start_maintenance(folder, file.pools, file.retention, stop).map_err(start)?;
    say(&format!(
        "rowmill-hub {}: store in {}; listening at {url}",
        env!("CARGO_PKG_VERSION"),
        file.store.display()
    ));
    let routes = server::routes().into_iter().chain(orders::routes()).collect();
    let parts = HubParts { queue, reader, board, notices, audit, counters };
    runtime.block_on(listener.serve(parts, routes, is_over));
    // Dropping the tasks of the runtime drops their queues, so the writer thread ends after its
    // last commit.
    drop(runtime);
    let threads = scheduler.into_iter().chain(watch).chain(idle).chain(outward).chain(copies);
    for thread in threads.chain([commits, analyses, maintenance, follower]) {
        // A panic would have ended the program.
        let _ = thread.join();
    }
    say("rowmill-hub ended by a signal");
    Ok(())
}

/// Ends the program if a thread panics. A hub whose writer thread has ended would refuse all rows,
/// while a new one continues with the files.
fn abort_at_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// Ends the hub at SIGTERM or Ctrl-C, by the channel for the server and the flag for threads. At
/// SIGHUP, the tokens are read again.
fn handle_signals(
    ended: watch::Sender<bool>,
    tokens: Arc<FollowedTokens>,
) -> std::io::Result<Arc<AtomicBool>> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if signal == SIGHUP {
                tokens.read_again();
                continue;
            }
            flag.store(true, Ordering::SeqCst);
            let _ = ended.send(true);
            break;
        }
    })?;
    Ok(stop)
}

/// Starts the thread that merges files, computes the sums of hours that are over, and deletes old
/// days.
fn start_maintenance(
    folder: Arc<StoreFolder>,
    pools: Pools,
    retention: Retention,
    stop: Arc<AtomicBool>,
) -> std::io::Result<JoinHandle<()>> {
    let builder = thread::Builder::new().name("merges".to_owned());
    builder.spawn(move || {
        let is_ending = || stop.load(Ordering::SeqCst);
        while !is_ending() {
            if let Err(error) = rollup::maintain(&folder, &pools, SystemTime::now()) {
                say(&format!("note: files are not merged: {error}"));
            }
            if let Err(error) = retention::remove_old_days(&folder, &retention, SystemTime::now()) {
                say(&format!("note: old days are not deleted: {error}"));
            }
            let until = Instant::now() + MAINTENANCE;
            while !is_ending() && Instant::now() < until {
                thread::sleep(TICK);
            }
        }
    })
}

/// Starts the thread that copies files to the bucket, if there is one.
fn start_copies(
    folder: Arc<StoreFolder>,
    config: Option<BucketConfig>,
    stop: Arc<AtomicBool>,
) -> std::io::Result<Option<JoinHandle<()>>> {
    let Some(config) = config else { return Ok(None) };
    let builder = thread::Builder::new().name("copies".to_owned());
    let thread = builder.spawn(move || {
        let is_ending = || stop.load(Ordering::SeqCst);
        while !is_ending() {
            let copied = copies::copy_files(&folder, &config, SystemTime::now())
                .and_then(|_| copies::limit_cache(&folder, config.cache_mib << 20));
            if let Err(error) = copied {
                say(&format!("note: files are not copied: {error}"));
            }
            let until = Instant::now() + copies::interval(&config);
            while !is_ending() && Instant::now() < until {
                thread::sleep(TICK);
            }
        }
    })?;
    Ok(Some(thread))
}

/// Makes the files of the bucket known to a store whose disk was lost.
fn restore(config: &Path) -> Result<(), Error> {
    let file = HubFile::read(config)?;
    let folder = StoreFolder::open(&file.store)?.with_bucket(file.bucket.as_ref())?;
    let restored = copies::restore(&folder)?;
    print(&format!("{restored} files of the bucket are known again\n"))
}

fn print_sums(
    config: &Path,
    query: &SumQuery,
    by: &[Dimension],
    format: OutputFormat,
) -> Result<(), Error> {
    let known = query.tree.description().dimensions;
    if let Some(other) = by.iter().find(|dimension| !known.contains(dimension)) {
        let (what, expected) = ("--by".to_owned(), "pool or host with --tree cpu");
        return Err(Error::Value { what, expected, got: other.name().to_owned() });
    }
    let file = HubFile::read(config)?;
    let folder = StoreFolder::open_for_reading(&file.store)?.with_bucket(file.bucket.as_ref())?;
    let groups = rollup::query(&folder, &file.pools, query)?.sums;
    let text = match format {
        OutputFormat::Table => table::format_table(&groups, by, query.tree),
        OutputFormat::Json => table::format_json(&groups, by, &query.range, query.tree),
    };
    print(&text)
}

fn print_status(config: &Path, since: Duration, format: OutputFormat) -> Result<(), Error> {
    let file = HubFile::read(config)?;
    let folder = StoreFolder::open_for_reading(&file.store)?.with_bucket(file.bucket.as_ref())?;
    let range = range_until_now(since);
    let hosts = status::read_status(&folder, &range)?;
    print(&match format {
        OutputFormat::Table => status::format_table(&hosts, range.end),
        OutputFormat::Json => status::format_json(&hosts, &range),
    })
}

/// Returns the last time of a length, in seconds since 1970.
fn range_until_now(length: Duration) -> Range<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(length).as_secs()..now.as_secs()
}

/// Returns a flag that SIGTERM and Ctrl-C set.
fn stop_at_signal() -> Result<Arc<AtomicBool>, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(Error::io(Path::new("signals"), "handle"))?;
    }
    Ok(stop)
}

fn run_simulation(options: &SimulateOptions) -> Result<(), Error> {
    let stop = stop_at_signal()?;
    let truth = simulate(options, Arc::clone(&stop))?;
    if stop.load(Ordering::Relaxed) {
        say("note: ended by a signal, so the hub may lack rows that the true sums contain");
    }
    let json = format!("{:#}\n", serde_json::json!(truth));
    match &options.truth {
        Some(path) => {
            // Whoever waits for the file sees it whole.
            let temporary = path.with_extension("unfinished");
            std::fs::write(&temporary, json).map_err(Error::io(&temporary, "write"))?;
            std::fs::rename(&temporary, path).map_err(Error::io(path, "create"))
        }
        None => print(&json),
    }
}

fn print_token(role: TokenRole, name: &str) -> Result<(), Error> {
    let (token, line) = create_token(role, name)?;
    say("# add this line to the file of tokens:");
    say(&line);
    print(&format!("{token}\n"))
}

fn print(text: &str) -> Result<(), Error> {
    let written = std::io::stdout().write_all(text.as_bytes());
    written.map_err(Error::io(Path::new("stdout"), "write"))
}

fn parse_name(text: &str) -> Result<String, String> {
    let is_word = !text.is_empty() && !text.contains(|letter: char| !letter.is_ascii_graphic());
    if is_word { Ok(text.to_owned()) } else { Err("expected one word".to_owned()) }
}
