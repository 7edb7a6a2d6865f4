//! Runs the kernels under the compiler's own AddressSanitizer and UndefinedBehaviorSanitizer, in
//! a process that has preloaded the sanitizers' library.

use std::path::PathBuf;
use std::process::{Command, Output};

use device::cuda::{BlockOrder, Checks, Driver};

use super::emulator::run;
use super::{Bench, emulation, has_compiler};

/// Small kernels with one error each, their bytes of shared memory, and the message that the
/// sanitizers must print.
const MISTAKES: [(&str, usize, &str); 6] = [
    (kernel!("((volatile float *)a.out)[threadIdx.x];\n"), 0, "use-after-poison"),
    (kernel!("DYNAMIC_SHARED(float, big);\nbig[threadIdx.x] = 1.0f;\n"), 380, "use-after-poison"),
    (
        kernel!("volatile u32 own[4] = {};\nvolatile u32 *p = own;\np[a.n - 60] = 1;\n"),
        0,
        "runtime error: store to address",
    ),
    (
        kernel!("__shared__ u32 tile[96];\ntile[threadIdx.x + 1] = 1;\n"),
        0,
        "runtime error: index 96 out of bounds",
    ),
    (kernel!("((u32 *)a.out)[0] = 1u << a.n;\n"), 0, "runtime error: shift exponent 64"),
    (kernel!("*(float *)(a.out + 2) = 1.0f;\n"), 0, "runtime error: store to misaligned address"),
];

/// Returns whether the sanitizers' library is loaded into this process.
pub fn is_child() -> bool {
    std::env::var("ROWMILL_SANITIZERS").is_ok_and(|value| value == "child")
}

/// Creates an emulator with kernels that are compiled for the sanitizers.
pub fn bench(order: BlockOrder) -> Bench {
    let driver = Driver::emulated(emulation(order, Checks::Sanitizers));
    Bench::new(driver, &format!("{order:?}, Sanitizers"))
}

/// Finds the library that must be preloaded. Prints that the test is skipped if there is none.
fn library() -> Option<PathBuf> {
    if !has_compiler() {
        return None;
    }
    let mut command = Command::new(emulation(BlockOrder::Ascending, Checks::Sanitizers).compiler);
    let output = command.arg("-print-file-name=libasan.so").output().unwrap();
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if path.is_absolute() && path.exists() {
        return Some(path);
    }
    testkit::skip("sanitizers", "libasan.so, AddressSanitizer's library, which comes with g++");
    None
}

/// Runs tests of this program in a process that has preloaded the sanitizers' library.
fn child(library: &PathBuf, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments).env("LD_PRELOAD", library).env("ROWMILL_SANITIZERS", "child");
    command.env("ASAN_OPTIONS", "detect_leaks=0").envs(variables.iter().copied());
    command.output().unwrap()
}

#[test]
fn mistake_child() {
    let Ok(number) = std::env::var("ROWMILL_MISTAKE") else { return };
    let (text, shared_bytes, _) = MISTAKES[number.parse::<usize>().unwrap()];
    let (error, _) = run(&bench(BlockOrder::Ascending), text, shared_bytes);
    println!("after the mistake: {error:?}");
}

#[test]
fn the_sanitizers_detect_known_defects() {
    let Some(library) = library() else { return };
    for (number, (text, _, expected)) in MISTAKES.iter().enumerate() {
        let number = number.to_string();
        let arguments = ["--exact", "cuda::sanitizers::mistake_child", "--nocapture"];
        let output = child(&library, &arguments, &[("ROWMILL_MISTAKE", &number)]);
        let said = String::from_utf8_lossy(&output.stderr);
        let is_found = !output.status.success() && said.contains(expected);
        assert!(is_found, "expected {expected} of\n{text}\n{said}");
    }
}

#[test]
fn the_sanitizers_need_their_library_first() {
    if !has_compiler() || is_child() {
        return;
    }
    let error = run(&bench(BlockOrder::Ascending), kernel!(""), 0).0.unwrap().to_string();
    let expected = "LD_PRELOAD: AddressSanitizer's library was not loaded before the program";
    assert_eq!(error, expected);
}

/// The daily run tests one operation. If `ROWMILL_SANITIZERS` is `full`, as `cargo xtask ci
/// --full` sets it, all operations are tested.
#[test]
fn kernels_are_clean_under_the_sanitizers() {
    let is_full = std::env::var("ROWMILL_SANITIZERS").is_ok_and(|value| value == "full");
    if is_child() {
        return;
    }
    let Some(library) = library() else { return };
    let tests = if is_full { "on_the_device" } else { "exclusive_sums_on_the_device" };
    let output = child(&library, &[tests], &[]);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{said}");
    let passed = said.split(" passed;").next().and_then(|text| text.split(' ').next_back());
    let passed: usize = passed.and_then(|count| count.parse().ok()).unwrap_or(0);
    assert!(passed >= if is_full { 11 } else { 1 }, "{said}");
}
