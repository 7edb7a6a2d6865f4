//! Tests of `rowmill capture` with a process that sets traps instead of writing its trace. Whatever
//! lies at the path of the trace, the capture must end in time, copy no foreign file, and report
//! the reason.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, RenameFlags, makedev, mknodat, renameat_with};

use super::{Begun, EVENTS, ask, begin, row, value};
use testkit::ProgramOutput;

/// A word that no genuine trace contains. The word must not appear in the output of the capture.
const SECRET: &str = "secret-of-another-user";
/// The timeout of the capture, which must be long enough for a loaded machine.
const WAIT: &str = "--timeout 15s";
const ROOM: Duration = Duration::from_secs(60);
/// User id of a user who is neither root nor the user that runs the tests.
const SOMEBODY: u32 = 54_321;

/// The paths and the id of the trace that a capture requests.
struct Wanted {
    folder: PathBuf,
    file: PathBuf,
    trace_id: String,
}

impl Wanted {
    fn of(config: &str) -> Self {
        let path = Path::new(value(config, "ACTIVITIES_LOG_FILE"));
        let folder = path.parent().unwrap().to_owned();
        let file = folder.join(format!("trace_{}.json", std::process::id()));
        Self { folder, file, trace_id: value(config, "REQUEST_TRACE_ID").to_owned() }
    }

    /// Formats a trace that satisfies the request and contains the given word.
    fn trace(&self, word: &str) -> String {
        let id = &self.trace_id;
        format!("{{\"schemaVersion\": 1, \"trace_id\": \"{id}\", \"word\": \"{word}\", {EVENTS}")
    }

    /// Creates a file under another name with `make`. Renames it to the trace's name when it is
    /// complete.
    fn put(&self, make: impl FnOnce(&Path)) {
        let beside = self.folder.join("beside");
        make(&beside);
        fs::rename(beside, &self.file).unwrap();
    }

    fn put_text(&self, text: impl AsRef<[u8]>) {
        self.put(|path| fs::write(path, text).unwrap());
    }

    fn tmp(&self) -> PathBuf {
        let mut name = self.file.clone().into_os_string();
        name.push(".tmp");
        name.into()
    }
}

/// Answers a capture with a trap. Checks that no output contains the secret, and returns the result
/// of the capture with the request.
fn capture(options: &str, trap: impl FnOnce(&Wanted, &Path)) -> (ProgramOutput, Wanted) {
    let mut begun = begin(&format!("{WAIT} {options}"));
    let wanted = Wanted::of(&ask(&mut begun));
    trap(&wanted, &begun.place.path(""));
    let ran = end_in_time(begun, |ran, out| {
        let read = |entry: fs::DirEntry| fs::read(entry.path()).unwrap_or_default();
        let files: Vec<Vec<u8>> =
            fs::read_dir(out).into_iter().flatten().map(|entry| read(entry.unwrap())).collect();
        for bytes in files.iter().map(Vec::as_slice).chain([ran.stdout.as_bytes()]) {
            assert!(!bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()), "{ran:?}");
        }
    });
    (ran, wanted)
}

fn end_in_time(mut begun: Begun, look: impl FnOnce(&ProgramOutput, &Path)) -> ProgramOutput {
    let started = Instant::now();
    while begun.child.try_wait().unwrap().is_none() {
        if started.elapsed() > ROOM {
            begun.child.kill().unwrap();
            panic!("the capture still runs after {ROOM:?}");
        }
        thread::sleep(Duration::from_millis(10));
    }
    let output = begun.child.wait_with_output().unwrap();
    let ran = ProgramOutput::from(output);
    look(&ran, &begun.place.path("out"));
    ran
}

/// Checks that the capture reports the trace as lost for this reason.
fn check(reason: &str, trap: impl FnOnce(&Wanted, &Path)) {
    check_with("", reason, trap);
}

fn check_with(options: &str, reason: &str, trap: impl FnOnce(&Wanted, &Path)) {
    let (ran, wanted) = capture(options, trap);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let row = row(&ran);
    assert_eq!(row["state"], "lost", "{row}");
    assert!(row["path"].is_null(), "{row}");
    let said = row["reason"].as_str().unwrap();
    assert!(said.contains(reason), "expected {reason:?} in {said:?}");
    assert!(!ran.stderr.contains("os error"), "{}", ran.stderr);
    let _ = fs::remove_dir_all(&wanted.folder);
}

#[test]
fn a_named_pipe_does_not_block_the_capture() {
    let pipe = |path: &Path| mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    check("named pipe", |wanted, _| pipe(&wanted.file));
    check("named pipe", |wanted, _| pipe(&wanted.tmp()));
}

#[test]
fn a_symbolic_link_is_not_followed_to_a_file() {
    check("symbolic link", |wanted, place| {
        let elsewhere = place.join("elsewhere.json");
        fs::write(&elsewhere, wanted.trace(SECRET)).unwrap();
        symlink(&elsewhere, &wanted.file).unwrap();
    });
    check("symbolic link", |wanted, _| symlink("no/such/file", &wanted.file).unwrap());
}

#[test]
fn a_symbolic_link_is_not_followed_to_a_folder() {
    check("replaced after its creation", |wanted, place| {
        let elsewhere = place.join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        let name = wanted.file.file_name().unwrap();
        fs::write(elsewhere.join(name), wanted.trace(SECRET)).unwrap();
        fs::rename(&wanted.folder, place.join("away")).unwrap();
        symlink(&elsewhere, &wanted.folder).unwrap();
    });
}

#[test]
fn a_hard_link_is_refused() {
    check("2 names", |wanted, _| {
        let beside = wanted.folder.join("beside");
        fs::write(&beside, wanted.trace(SECRET)).unwrap();
        fs::hard_link(&beside, &wanted.file).unwrap();
    });
}

#[test]
fn a_file_of_another_user_is_refused() {
    if !testkit::has_root("a file of another user") {
        return;
    }
    let others = |wanted: &Wanted, path: &Path| {
        fs::write(path, wanted.trace(SECRET)).unwrap();
        chown(path, Some(SOMEBODY), None).unwrap();
    };
    check("user 54321", |wanted, _| wanted.put(|path| others(wanted, path)));
    check("user 54321", |wanted, _| {
        let beside = wanted.folder.join("beside");
        others(wanted, &beside);
        fs::hard_link(&beside, &wanted.file).unwrap();
    });
}

#[test]
fn folders_sockets_and_devices_are_refused() {
    check("got a folder", |wanted, _| fs::create_dir(&wanted.file).unwrap());
    check("got a socket", |wanted, _| drop(UnixListener::bind(&wanted.file).unwrap()));
    if !testkit::has_root("a device") {
        return;
    }
    let zero = makedev(1, 5);
    let kind = FileType::CharacterDevice;
    check("got a device", |wanted, _| mknodat(CWD, &wanted.file, kind, Mode::RWXU, zero).unwrap());
}

#[test]
fn files_that_are_not_traces_are_refused_by_their_first_byte() {
    // A compressed file could unpack to any size, whatever the limit is, so it must be refused.
    check("expected JSON", |wanted, _| {
        wanted.put_text([b"\x1f\x8b\x08", wanted.trace(SECRET).as_bytes()].concat());
    });
    check("names no request", |wanted, _| wanted.put_text("{}"));
    check("\\u{1b}[2J", |wanted, _| {
        wanted.put_text("{\"trace_id\": \"\x1b[2J\"}");
    });
}

#[test]
fn a_file_above_the_limit_is_refused_before_it_is_copied() {
    let sparse = |path: &Path, head: &str| {
        let mut file = File::create(path).unwrap();
        file.write_all(head.as_bytes()).unwrap();
        file.set_len(10 << 30).unwrap();
    };
    check("got 10.0 GiB", |wanted, _| wanted.put(|path| sparse(path, &wanted.trace(""))));
    check("got 10.0 GiB", |wanted, _| sparse(&wanted.tmp(), ""));
    check_with("--size-max 1MiB", "at most 1.0 MiB", |wanted, _| {
        wanted.put_text(wanted.trace(&"x".repeat(1 << 20)));
    });
    let (ran, _) = capture("--size-max 2MiB", |wanted, _| {
        wanted.put_text(wanted.trace(&"x".repeat(1 << 20)));
    });
    assert_eq!(row(&ran)["state"], "written", "{}", ran.stderr);
}

/// Appends blocks to a file in a thread while `act` runs.
fn grow(path: &Path, head: &str, block: usize, pause: Duration, act: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let beside = path.with_extension("beside");
    let mut file = File::create(&beside).unwrap();
    file.write_all(head.as_bytes()).unwrap();
    fs::rename(beside, path).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let _ = file.write_all(&vec![b' '; block]);
                thread::sleep(pause);
            }
        });
        // The thread must also end if `act` panics. If the thread went on, the scope would wait for
        // it forever.
        let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        stop.store(true, Ordering::SeqCst);
        if let Err(panic) = acted {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Runs a capture whose file grows while it is read or awaited, and returns the result.
fn growing(options: &str, is_tmp: bool, block: usize, pause: Duration) -> ProgramOutput {
    let mut begun = begin(&format!("{WAIT} {options}"));
    let wanted = Wanted::of(&ask(&mut begun));
    let path = if is_tmp { wanted.tmp() } else { wanted.file.clone() };
    // The file is so large that copying it takes several rounds.
    let head = if is_tmp { String::new() } else { wanted.trace(&"x".repeat(20 << 20)) };
    let mut ran = None;
    grow(&path, &head, block, pause, || ran = Some(end_in_time(begun, |_, _| ())));
    ran.unwrap()
}

#[test]
fn a_file_that_grows_for_ever_ends_in_time() {
    let ran = growing("", false, 4096, Duration::from_millis(1));
    let reason = row(&ran)["reason"].clone();
    assert!(reason.as_str().unwrap().contains("changed while"), "{reason}");
    // In the first run the file soon reaches the size limit. In the second run it grows by one byte
    // at a time, so it would take weeks to reach the limit.
    let ran = growing("--size-max 64MiB", true, 1 << 20, Duration::from_millis(1));
    assert!(row(&ran)["reason"].as_str().unwrap().contains("at most 64.0 MiB"), "{ran:?}");
    let ran = growing("", true, 1, Duration::from_millis(50));
    assert!(row(&ran)["reason"].as_str().unwrap().contains("stopped growing"), "{ran:?}");
}

#[test]
fn a_process_that_swaps_files_all_the_time_wins_nothing() {
    // The full check sets this environment variable to 30 s, for which the everyday check has no
    // time.
    let seconds = std::env::var("ROWMILL_CAPTURE_RACE_S").ok();
    let seconds = seconds.map_or(3, |text| text.parse().unwrap());
    let until = Instant::now() + Duration::from_secs(seconds);
    let (mut rounds, mut written) = (0, 0);
    while rounds == 0 || Instant::now() < until {
        let mut begun = begin(WAIT);
        let wanted = Wanted::of(&ask(&mut begun));
        let ran = race(begun, &wanted);
        let row = row(&ran);
        match row["state"].as_str() {
            Some("written") => written += 1,
            _ => assert!(row["reason"].as_str().unwrap().len() > 20, "{row}"),
        }
        rounds += 1;
        let _ = fs::remove_dir_all(&wanted.folder);
    }
    println!("{rounds} captures, {written} with the honest file");
}

/// While a capture reads the trace, swaps the file at its path with an honest trace, a link to a
/// foreign file and a pipe, again and again. The capture must accept only the honest trace.
fn race(begun: Begun, wanted: &Wanted) -> ProgramOutput {
    let place = begun.place.path("");
    let elsewhere = place.join("elsewhere.json");
    fs::write(&elsewhere, wanted.trace(SECRET)).unwrap();
    let traps = ["honest", "link", "pipe"].map(|name| wanted.folder.join(name));
    let honest = wanted.trace("honest");
    fs::write(&traps[0], &honest).unwrap();
    symlink(&elsewhere, &traps[1]).unwrap();
    mknodat(CWD, &traps[2], FileType::Fifo, Mode::RWXU, 0).unwrap();
    fs::rename(&traps[0], &wanted.file).unwrap();
    fs::write(&traps[0], &honest).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                for trap in &traps {
                    // The swap fails if the capture has just removed the folder.
                    let _ = renameat_with(CWD, trap, CWD, &wanted.file, RenameFlags::EXCHANGE);
                }
            }
        });
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            end_in_time(begun, |ran, out| {
                for entry in fs::read_dir(out).into_iter().flatten() {
                    let text = fs::read_to_string(entry.unwrap().path()).unwrap();
                    assert!(!text.contains(SECRET), "{ran:?}");
                }
                let file = out.join(format!("pid-{}.json", std::process::id()));
                if row(ran)["state"] == "written" {
                    assert_eq!(fs::read_to_string(file).unwrap(), honest);
                }
            })
        }));
        stop.store(true, Ordering::SeqCst);
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
