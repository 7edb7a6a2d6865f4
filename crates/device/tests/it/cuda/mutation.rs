//! Tests of the kernels' tests. Each barrier, each exchange between lanes and each bounds check
//! of every kernel is removed, one at a time, and some test must then fail.
//!
//! Each mutant runs in its own process, which a time limit ends if it hangs.
//! `crates/device/survivors.tsv` lists the mutants that no test can detect, with the reason. This
//! test fails if an unlisted mutant survives or if a listed mutant is detected.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use device::backend::SOURCES;
use device::cuda::{BlockOrder, Checks, Driver, DriverError, PRELUDE};
use schema::Optimizer;

use super::{Bench, dense, emulation, exchange, has_compiler, jagged};
use crate::embedding;

/// The list of mutants without an observable effect: source, function, guard, and reason.
const SURVIVORS: &str = include_str!("../../../survivors.tsv");
/// Exit status of a child process whose mutant does not compile. Such a mutant proves nothing.
const DOES_NOT_COMPILE: i32 = 77;
/// A mutant may take this many times as long as the unchanged source, plus [`LIMIT_MORE`].
const LIMIT: u32 = 4;
const LIMIT_MORE: Duration = Duration::from_secs(60);

/// Runs the checks of a source. For `prelude`, it runs the checks of kernels that use its
/// exchanges.
fn check(source: &str, bench: &Bench) {
    match source {
        "ops/activation/kernel.cu" => dense::check_activation(bench),
        "ops/cross/kernel.cu" => dense::check_cross(bench),
        "ops/dense_update/kernel.cu" => dense::check_update(bench),
        "ops/embedding_backward/kernel.cu" => {
            embedding::cuda::check_bad_ids(bench);
            let kinds = [Optimizer::RowwiseAdagrad, Optimizer::Lamb, Optimizer::Sgd];
            embedding::cuda::check_backward(bench, &kinds);
        }
        "ops/embedding_forward/kernel.cu" => {
            embedding::cuda::check_bad_ids(bench);
            embedding::cuda::check_forward(bench);
        }
        "ops/exchange/kernel.cu" => exchange::check_exchange(bench),
        "ops/gemm/kernel.cu" => dense::check_gemm(bench),
        "ops/interaction/kernel.cu" => dense::check_interaction(bench),
        "ops/jagged/kernel.cu" => jagged::check_jagged(bench),
        "ops/loss/kernel.cu" => dense::check_loss(bench),
        "ops/prefix_sum/kernel.cu" => jagged::check_prefix_sum(bench),
        "prelude" => {
            dense::check_update(bench);
            embedding::cuda::check_backward(bench, &[Optimizer::Lamb]);
        }
        other => panic!("{other} has no checks"),
    }
}

/// A source from which one guard was removed.
#[derive(Debug)]
struct Mutant {
    /// Source, function, and the guard, with its number if the function has several equal guards.
    name: String,
    text: String,
}

/// Calls to remove, with the text that replaces each. `None` stands for the call's second
/// argument.
const GUARDS: &[(&str, Option<&str>)] = &[
    ("__syncthreads(", Some("(void)0")),
    ("__syncwarp(", Some("(void)0")),
    ("__shfl_sync(", None),
    ("__shfl_up_sync(", None),
    ("__shfl_down_sync(", None),
    ("__shfl_xor_sync(", None),
    ("__match_any_sync(", Some("(1u << lane_of_thread())")),
    ("__ballot_sync(", Some("0u")),
    ("LESS(", Some("true")),
];

fn mutants(source: &str, text: &str) -> Vec<Mutant> {
    let mut found: Vec<(usize, String, String)> = Vec::new();
    for (guard, instead) in GUARDS {
        for (start, _) in text.match_indices(guard) {
            let before = text[..start].chars().next_back();
            let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
            let line = line_of(text, start);
            if in_word || line.starts_with("//") || line.starts_with("#define") {
                continue;
            }
            let (end, arguments) = call(&text[start + guard.len()..]);
            let end = start + guard.len() + end + 1;
            let instead = instead.unwrap_or_else(|| arguments[1]);
            let mutated = format!("{}({instead}){}", &text[..start], &text[end..]);
            found.push((start, text[start..end].to_owned(), mutated));
        }
    }
    // An early return of a thread and a skipped iteration of a loop are guards too.
    for (start, _) in text.match_indices("if (") {
        let (end, _) = call(&text[start + 4..]);
        let rest = &text[start + 4 + end + 1..];
        let word = [" return;", " continue;"].into_iter().find(|word| rest.starts_with(word));
        let (Some(word), line) = (word, line_of(text, start)) else { continue };
        if line.contains("LESS(") || line.starts_with("//") {
            continue;
        }
        let mutated = format!("{};{}", &text[..start], &rest[word.len()..]);
        found.push((start, text[start..start + 4 + end + 1].to_owned(), mutated));
    }
    found.sort_unstable_by_key(|(start, ..)| *start);
    let mut counts: BTreeMap<(String, String), u32> = BTreeMap::new();
    let named = |(start, guard, text_of): (usize, String, String)| {
        let function = function_of(text, start);
        let number = counts.entry((function.clone(), guard.clone())).or_default();
        *number += 1;
        let number = if *number == 1 { String::new() } else { format!(" #{number}") };
        Mutant { name: format!("{source}\t{function}\t{guard}{number}"), text: text_of }
    };
    found.into_iter().map(named).collect()
}

/// Returns the line that contains byte `at` of a text, without its indentation.
fn line_of(text: &str, at: usize) -> &str {
    let start = text[..at].rfind('\n').map_or(0, |at| at + 1);
    text[start..].lines().next().unwrap_or_default().trim()
}

/// Returns the name of the function that contains byte `at` of a source.
fn function_of(text: &str, at: usize) -> String {
    let is_head = |line: &&str| line.starts_with("KERNEL(") || line.starts_with("DEVICE ");
    let Some(head) = text[..at].lines().rfind(is_head) else { return String::new() };
    let name = match head.strip_prefix("KERNEL(") {
        Some(rest) => rest.split(',').next(),
        None => head.split('(').next().and_then(|before| before.split(' ').next_back()),
    };
    name.unwrap_or_default().to_owned()
}

/// Returns the end of the call that begins `text`, and the arguments of the call.
fn call(text: &str) -> (usize, Vec<&str>) {
    let (mut depth, mut start, mut arguments) = (0, 0, Vec::new());
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => {
                arguments.push(text[start..i].trim());
                return (i, arguments);
            }
            ')' => depth -= 1,
            ',' if depth == 0 => {
                arguments.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    (text.len(), arguments)
}

/// The result of running the tests on a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Found,
    Survives,
    DoesNotCompile,
}

/// Runs the checks of `source` with the code `text`, in a process of its own.
fn fate(source: &str, text: &Path, limit: Option<Duration>) -> (Fate, Duration) {
    let started = Instant::now();
    let mut command = testkit::rerun_test("cuda::mutation::mutant_child");
    command.env("ROWMILL_MUTANT", source);
    command.env("ROWMILL_MUTANT_TEXT", text).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let code = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        if limit.is_some_and(|limit| started.elapsed() > limit) {
            end(&mut child);
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let fate = match code {
        Some(0) => Fate::Survives,
        Some(DOES_NOT_COMPILE) => Fate::DoesNotCompile,
        _ => Fate::Found,
    };
    (fate, started.elapsed())
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

#[test]
fn mutant_child() {
    let Ok(name) = std::env::var("ROWMILL_MUTANT") else { return };
    let text = std::fs::read_to_string(std::env::var("ROWMILL_MUTANT_TEXT").unwrap()).unwrap();
    let source = SOURCES.iter().find(|source| source.name == name);
    let mut emulation = emulation(BlockOrder::Ascending, Checks::Every);
    emulation.cache.push("mutants");
    emulation.replaced = vec![(source.map_or("prelude", |source| source.name), text)];
    let bench = Bench::new(Driver::emulated(emulation), "mutant");
    let compiled = source.map(|source| bench.driver.module(*source));
    if let Some(Err(DriverError::Compile { .. })) = compiled {
        std::process::exit(DOES_NOT_COMPILE);
    }
    check(&name, &bench);
}

/// Runs the mutants of these sources, and returns the errors in the list of survivors.
fn problems(sources: &[(&str, &str)]) -> Vec<String> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("mutants");
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: String, text: &str| {
        let path = folder.join(format!("{}-{}", std::process::id(), name.replace('/', "-")));
        std::fs::write(&path, text).unwrap();
        path
    };
    let mut tasks = Vec::new();
    for &(source, text) in sources {
        let whole = write(source.to_owned(), text);
        // The first run also compiles the kernels, so only the second run is timed.
        fate(source, &whole, None);
        let (fate_of_whole, took) = fate(source, &whole, None);
        assert_eq!(fate_of_whole, Fate::Survives, "{source} as it is");
        for (number, mutant) in mutants(source, text).into_iter().enumerate() {
            let path = write(format!("{source}-{number}"), &mutant.text);
            tasks.push((source, mutant.name, path, took * LIMIT + LIMIT_MORE));
        }
    }
    let (next, fates) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        while let Some((source, name, path, limit)) =
            tasks.get(next.fetch_add(1, Ordering::Relaxed))
        {
            let (fate, took) = fate(source, path, Some(*limit));
            println!("{fate:?} in {:.1} s: {name}", took.as_secs_f64());
            fates.lock().unwrap().insert(name.clone(), fate);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let names: Vec<&str> = sources.iter().map(|(source, _)| *source).collect();
    judged(&fates.into_inner().unwrap(), SURVIVORS, &names)
}

/// Returns the survivors that are not listed, and the lines of the list that are wrong.
fn judged(fates: &BTreeMap<String, Fate>, list: &str, sources: &[&str]) -> Vec<String> {
    let mut problems = Vec::new();
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let listed: BTreeMap<&str, &str> = lines.filter_map(|line| line.rsplit_once('\t')).collect();
    for (name, fate) in fates {
        match fate {
            Fate::DoesNotCompile => problems.push(format!("does not compile: {name}")),
            Fate::Survives if !listed.contains_key(name.as_str()) => {
                problems.push(format!("survives, and is not listed: {name}"));
            }
            Fate::Found if listed.contains_key(name.as_str()) => {
                problems.push(format!("listed as a survivor, but a test fails: {name}"));
            }
            _ => {}
        }
    }
    for (name, reason) in listed {
        let is_of_these = name.split('\t').next().is_some_and(|source| sources.contains(&source));
        if is_of_these && !fates.contains_key(name) {
            problems.push(format!("listed as a survivor, but there is no such guard: {name}"));
        }
        if reason.split(' ').count() < 4 {
            problems.push(format!("listed without a reason: {name}"));
        }
    }
    problems
}

#[test]
fn guards_are_found_in_a_source() {
    let text = "DEVICE u64 f(u64 i) { return i; }\nKERNEL(k, A, 32) {\n\
                a = LESS(i, f(n)) ? 1 : 0;\n// LESS(x, y)\n__syncthreads();\n__syncthreads();\n\
                v = __shfl_sync(ALL, g(v, 1), 0);\nif (a.x && f(2)) return;\n";
    let found = mutants("s", text);
    let names: Vec<&str> = found.iter().map(|mutant| mutant.name.as_str()).collect();
    let expected = [
        "s\tk\tLESS(i, f(n))",
        "s\tk\t__syncthreads()",
        "s\tk\t__syncthreads() #2",
        "s\tk\t__shfl_sync(ALL, g(v, 1), 0)",
        "s\tk\tif (a.x && f(2))",
    ];
    assert_eq!(names, expected);
    assert!(found[0].text.contains("a = (true) ? 1 : 0;"), "{found:?}");
    assert!(found[2].text.contains("__syncthreads();\n((void)0);\n"), "{found:?}");
    assert!(found[3].text.contains("v = (g(v, 1));"), "{found:?}");
    assert!(found[4].text.ends_with("\n;\n"), "{found:?}");
}

#[test]
fn a_new_survivor_and_an_old_reason_are_problems() {
    let fates = [("s\tf\tA", Fate::Survives), ("s\tf\tB", Fate::Found), ("s\tf\tC", Fate::Found)];
    let fates = fates.map(|(name, fate)| (name.to_owned(), fate)).into();
    let reason = "it reads what nobody uses";
    let list = |names: &[&str]| -> String {
        names.iter().map(|name| format!("{name}\t{reason}\n")).collect()
    };
    let judge = |list: &str| judged(&fates, list, &["s"]);
    assert_eq!(judge(&list(&["s\tf\tA", "other\tf\tX"])), [""; 0]);
    assert_eq!(judge(""), ["survives, and is not listed: s\tf\tA"]);
    assert_eq!(
        judge(&list(&["s\tf\tA", "s\tf\tB", "s\tf\tD"])),
        [
            "listed as a survivor, but a test fails: s\tf\tB",
            "listed as a survivor, but there is no such guard: s\tf\tD",
        ]
    );
    assert_eq!(judge("s\tf\tA\tbecause\n"), ["listed without a reason: s\tf\tA"]);
}

/// The daily run tests the guards of one source. If `ROWMILL_MUTATION` is `full`, as `cargo xtask
/// ci --full` sets it, all sources are tested. If it is the name of a source, that source is
/// tested.
#[test]
fn removing_any_guard_fails_a_test() {
    if !has_compiler() {
        return;
    }
    let wanted = std::env::var("ROWMILL_MUTATION");
    let wanted = wanted.as_deref().unwrap_or("ops/prefix_sum/kernel.cu");
    let mut sources: Vec<(&str, &str)> =
        SOURCES.iter().map(|source| (source.name, source.text)).collect();
    sources.push(("prelude", PRELUDE));
    sources.retain(|(name, _)| wanted == "full" || *name == wanted);
    assert!(!sources.is_empty(), "ROWMILL_MUTATION: expected full or a source, got {wanted:?}");
    let found = problems(&sources);
    assert!(found.is_empty(), "{} problems:\n{}", found.len(), found.join("\n"));
}
