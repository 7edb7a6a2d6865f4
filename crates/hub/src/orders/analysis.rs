//! Analyzes the traces of orders with the program `rowmill`, in a process of its own with limits of
//! memory and time. A damaged trace ends only that process.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::result::{ANALYSIS_FILE, REPORT_FILE, TraceAnalysis};
use super::uploads::FILES;
use super::{HubOrder, OrderBoard, finding_rows};
use crate::error::Error;
use crate::log::say;

/// Time between two searches for orders whose traces have arrived.
const LOOK: Duration = Duration::from_millis(500);
/// Time between two searches for orders whose time has ended.
const CLEANUP: Duration = Duration::from_secs(60);
/// Interval at which a running analysis is looked at.
const TICK: Duration = Duration::from_millis(50);
/// Largest size of a file that an analysis writes, in MiB.
const OUTPUT_MIB: u64 = 256;
/// Category of findings about the quality of a trace.
const QUALITY: &str = "quality";
/// Largest number of bytes of the error text of an analysis that are kept.
const ERROR_MAX: u64 = 2048;
/// Limits the memory in KiB and the files in MiB of a program. The blocks of `ulimit -f` have 512
/// bytes.
const LIMITED: &str = "ulimit -v \"$1\"; ulimit -f $(($2 * 2048)); shift 2; exec nice -n 10 \"$@\"";

/// Starts the thread that analyzes traces and removes old ones. It ends when `stop` is set.
///
/// # Errors
/// If the operating system cannot start a thread.
pub fn start(board: Arc<OrderBoard>, stop: Arc<AtomicBool>) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("analyses".to_owned()).spawn(move || {
        let mut cleaned = Instant::now();
        while !stop.load(Ordering::SeqCst) {
            for order in board.finished(unix_s()) {
                if let Err(error) = board.analyze(&order, &stop) {
                    say(&format!("note: the traces of order {} are kept: {error}", order.id));
                }
            }
            if cleaned.elapsed() > CLEANUP {
                cleaned = Instant::now();
                if let Err(error) = board.remove_old(unix_s()) {
                    say(&format!("note: old traces are not deleted: {error}"));
                }
            }
            thread::sleep(LOOK);
        }
    })
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl OrderBoard {
    /// Lists the orders that are over on all hosts, and not analyzed.
    pub(super) fn finished(&self, now_unix_s: u64) -> Vec<HubOrder> {
        let kept = self.lock();
        let is_finished = |order: &&HubOrder| {
            let mut hosts =
                order.hosts.iter().map(|host| kept.progress(order, host, now_unix_s).is_over());
            !kept.analyses.contains_key(&order.id) && hosts.all(|is_over| is_over)
        };
        kept.orders.values().filter(is_finished).cloned().collect()
    }

    /// Analyzes the traces of an order, and stores the result with its findings.
    pub(super) fn analyze(&self, order: &HubOrder, stop: &AtomicBool) -> Result<(), Error> {
        let folder = self.folder.order_path(order.id);
        let analysis = if self.files(order.id)?.is_empty() {
            TraceAnalysis { error: "no trace arrived".to_owned(), ..TraceAnalysis::default() }
        } else {
            match self.run_analysis(&folder, stop) {
                Ok(analysis) => analysis,
                // The next hub repeats an analysis that the end of this hub interrupted.
                Err(_) if stop.load(Ordering::SeqCst) => return Ok(()),
                Err(error) => TraceAnalysis { error, ..TraceAnalysis::default() },
            }
        };
        if analysis.error.is_empty() {
            // The number of the file is that of the order, so a repeated analysis replaces it.
            finding_rows::write(&self.folder, order, &analysis)?;
        }
        let bytes = serde_json::to_vec(&analysis).unwrap_or_default();
        self.folder.replace(&folder.join(ANALYSIS_FILE), &bytes)?;
        self.lock().analyses.insert(order.id, analysis);
        Ok(())
    }

    fn run_analysis(&self, folder: &Path, stop: &AtomicBool) -> Result<TraceAnalysis, String> {
        let program = match &self.limits.rowmill {
            Some(program) => program.clone(),
            None => program_beside()?,
        };
        let output = folder.join("findings.json");
        let traces = folder.join(FILES);
        let run = |args: &[&str], output: &Path| {
            let child = LimitedProgram { program: &program, output, folder, stop, board: self };
            child.run(args, &traces)
        };
        run(&["trace", "findings", "--format", "json", "--threads", "1"], &output)?;
        let wrong = |problem: String| format!("unexpected findings: {problem}");
        let bytes = fs::read(&output).map_err(|error| wrong(error.to_string()))?;
        let _ = fs::remove_file(&output);
        let mut analysis: TraceAnalysis =
            serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        // The report shows these too. They cost no time.
        analysis.findings.retain(|finding| finding.category != QUALITY);
        let report = folder.join(REPORT_FILE);
        let path = report.to_string_lossy().into_owned();
        let args = ["trace", "report", "--threads", "1", "--output", &path];
        analysis.has_report = match run(&args, Path::new("/dev/null")) {
            Ok(()) => true,
            Err(problem) => {
                say(&format!("note: {}: no report: {problem}", folder.display()));
                false
            }
        };
        Ok(analysis)
    }
}

/// Finds `rowmill` beside the hub's program.
fn program_beside() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let program = own.with_file_name("rowmill");
    let missing = || format!("expected rowmill at {}, or traces.rowmill", program.display());
    program.exists().then_some(()).ok_or_else(missing)?;
    Ok(program)
}

/// A program that runs with limits of memory, output and time.
struct LimitedProgram<'a> {
    program: &'a Path,
    /// File that receives its output.
    output: &'a Path,
    /// Folder for its error text.
    folder: &'a Path,
    stop: &'a AtomicBool,
    board: &'a OrderBoard,
}

impl LimitedProgram<'_> {
    /// Runs the program for a folder of traces until it ends.
    ///
    /// # Errors
    /// The reason if it fails or takes too long.
    fn run(&self, args: &[&str], traces: &Path) -> Result<(), String> {
        let text = |error: std::io::Error| error.to_string();
        let limits = &self.board.limits;
        let errors = self.folder.join("errors.txt");
        let mut child = Command::new("/bin/sh")
            .args(["-c", LIMITED, "sh"])
            .args([(limits.memory_mib << 10).to_string(), OUTPUT_MIB.to_string()])
            .arg(self.program)
            .args(args)
            .arg(traces)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .stdin(Stdio::null())
            .stdout(if self.output == Path::new("/dev/null") {
                Stdio::null()
            } else {
                File::create(self.output).map_err(text)?.into()
            })
            .stderr(File::create(&errors).map_err(text)?)
            .spawn()
            .map_err(text)?;
        let until = Instant::now() + limits.timeout;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(text)? {
                break Ok(status);
            }
            let is_late = Instant::now() > until;
            if is_late || self.stop.load(Ordering::SeqCst) {
                let _ = child.kill();
                let _ = child.wait();
                let took = limits.timeout.as_secs();
                break Err(format!("the analysis did not end within {took} s"));
            }
            thread::sleep(TICK);
        };
        let mut said = String::new();
        if let Ok(file) = File::open(&errors) {
            let _ = file.take(ERROR_MAX).read_to_string(&mut said);
        }
        let _ = fs::remove_file(&errors);
        match status? {
            status if status.success() => Ok(()),
            status => Err(format!("{status}: {}", said.trim())),
        }
    }
}
