//! Tests of the tests: each barrier, each exchange between lanes and each bound check of every
//! kernel is taken out, one at a time, and some check must fail. What survives has a reason.

use std::panic::{AssertUnwindSafe, catch_unwind};

use device::cuda::{Checks, Driver, Order, PRELUDE, SOURCES};
use schema::Optimizer;

use super::{Bench, dense, emulation, exchange, has_compiler, jagged};
use crate::embedding;

/// Mutants that change nothing that can be seen: source, the line as it stands, and why.
const SURVIVORS: &[(&str, &str, &str)] = &[];

/// The checks of a source; those of `prelude` are the ones that use its exchanges.
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
        "prelude" => dense::check_update(bench),
        other => panic!("{other} has no checks"),
    }
}

/// A source without one of its guards.
#[derive(Debug)]
struct Mutant {
    line: String,
    what: String,
    text: String,
}

/// What is taken out, and what stands there instead; `None` is the argument of that number.
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

fn mutants(text: &str) -> Vec<Mutant> {
    let mut found = Vec::new();
    for (guard, instead) in GUARDS {
        for (start, _) in text.match_indices(guard) {
            let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
            let line = text[line_start..].lines().next().unwrap_or_default().trim();
            let before = text[..start].chars().next_back();
            let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '`');
            if in_word || line.starts_with("//") || line.starts_with("#define") {
                continue;
            }
            let open = start + guard.len();
            let (end, arguments) = call(&text[open..]);
            let instead = instead.unwrap_or_else(|| arguments[1]);
            found.push(Mutant {
                line: line.to_owned(),
                what: text[start..open + end + 1].to_owned(),
                text: format!("{}({instead}){}", &text[..start], &text[open + end + 1..]),
            });
        }
    }
    found
}

/// Where the call that begins `text` ends, and its arguments.
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

/// Runs the checks of a source on a mutant of it; whether one failed.
fn is_found(source: &'static str, mutant: &Mutant) -> bool {
    let mut emulation = emulation(Order::Ascending, Checks::Every);
    emulation.cache.push("mutants");
    emulation.replaced = vec![(source, mutant.text.clone())];
    let bench = Bench::new(Driver::emulated(emulation), "mutant");
    catch_unwind(AssertUnwindSafe(|| check(source, &bench))).is_err()
}

/// Mutants of these sources that nothing finds and no reason excuses.
fn survivors(sources: &[(&'static str, &str)]) -> Vec<String> {
    let mut found = Vec::new();
    for &(name, text) in sources {
        for mutant in mutants(text) {
            let excused =
                |(source, line, _): &(&str, &str, &str)| *source == name && *line == mutant.line;
            if !is_found(name, &mutant) && !SURVIVORS.iter().any(excused) {
                found.push(format!("{name}: `{}` without `{}`", mutant.line, mutant.what));
            }
        }
    }
    found
}

#[test]
fn guards_are_found_in_a_source() {
    let text = "a = LESS(i, f(n)) ? 1 : 0;\n// LESS(x, y)\n__syncthreads();\n\
                v = __shfl_sync(ALL, g(v, 1), 0);\n";
    let found: Vec<String> = mutants(text).into_iter().map(|mutant| mutant.text).collect();
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[0].contains("((void)0);") && found[1].contains("v = (g(v, 1));"), "{found:?}");
    assert!(found[2].starts_with("a = (true) ? 1 : 0;"), "{found:?}");
}

/// Every day the guards of one source; with `ROWMILL_MUTATION=full`, as `cargo xtask ci --full`
/// sets it, those of all.
#[test]
fn no_guard_can_be_taken_out_unseen() {
    if !has_compiler() {
        return;
    }
    let is_full = std::env::var("ROWMILL_MUTATION").is_ok_and(|value| value == "full");
    let mut sources: Vec<(&'static str, &str)> =
        SOURCES.iter().map(|source| (source.name, source.text)).collect();
    sources.push(("prelude", PRELUDE));
    if !is_full {
        sources.retain(|(name, _)| *name == "ops/prefix_sum/kernel.cu");
    }
    let found = survivors(&sources);
    assert!(found.is_empty(), "{} survive:\n{}", found.len(), found.join("\n"));
}
