//! Checks every rule on the smallest trace that triggers it, on one that just does not, and on real
//! traces.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use analyze::classify::ClassRule;
use analyze::findings::{self, FindingReport, RuleSettings};
use analyze::job::{OperatorTensors, Tensors};
use analyze::{Classifier, Scope, WindowRule};
use serde_json::Value;
use trace::open::{self, ReadRequest};
use trace::store::{Job, Trace};

use crate::fixture;

/// Returns the findings of a job for a given window rule.
pub fn find(job: &Job, window: WindowRule, settings: &RuleSettings) -> FindingReport {
    let classifier = Classifier::new(ClassRule::Category);
    let scope = |trace| Scope::new(trace, window, &classifier);
    let scopes: Vec<Scope<'_>> = job.traces.iter().map(scope).collect();
    report(job, &scopes, settings)
}

/// Returns the findings of the scopes of a job.
pub fn report(job: &Job, scopes: &[Scope<'_>], settings: &RuleSettings) -> FindingReport {
    let facts = analyze::JobFacts::new(scopes);
    let mut shapes = OperatorTensors::new();
    for (trace, rows) in job.traces.iter().zip(findings::rows_with_shapes(&facts)) {
        shapes.extend(
            rows.iter()
                .zip(arguments(trace, &rows))
                .map(|(row, tensors)| ((trace.rank, *row), tensors)),
        );
    }
    facts.know_shapes(shapes);
    findings::collect_findings(&facts, settings).unwrap()
}

fn arguments(trace: &Trace, rows: &[u32]) -> Vec<Tensors> {
    // A list of tensors, such as the argument of `aten::cat`, has no sizes in the trace.
    let sizes = |of: &Value| {
        let sizes = of.as_array().map_or(&[][..], Vec::as_slice);
        sizes.iter().filter_map(Value::as_u64).collect()
    };
    let of = |arguments: serde_json::Map<String, Value>| Tensors {
        dims: arguments
            .get("Input Dims")
            .and_then(Value::as_array)
            .map_or_else(Vec::new, |dims| dims.iter().map(sizes).collect()),
        types: serde_json::from_value(arguments.get("Input type").cloned().unwrap_or_default())
            .unwrap_or_default(),
    };
    open::arguments(trace, rows).unwrap().into_iter().map(of).collect()
}

/// Returns the rules that reported a finding. Of the quality rules, only the given one is kept.
fn rules_of(report: &FindingReport, quality: &str) -> BTreeSet<String> {
    let rules = report.findings.iter().map(|finding| finding.rule.clone());
    rules.filter(|rule| !rule.starts_with('Q') || rule == quality).collect()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/antipattern")
}

/// Returns the report of a synthetic trace, and the rules that the header of the trace expects.
fn made_up(rule: &str, which: &str) -> (FindingReport, BTreeSet<String>) {
    let of_ranks = folder().join(format!("{rule}.{which}"));
    let alone = folder().join(format!("{rule}.{which}.json"));
    let path = if of_ranks.is_dir() { of_ranks } else { alone };
    let files: Vec<PathBuf> = match path.is_dir() {
        true => path.read_dir().unwrap().map(|file| file.unwrap().path()).collect(),
        false => vec![path.clone()],
    };
    for file in files {
        let lines = std::fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= 40, "{}: {lines} lines", file.display());
    }
    let job = open::read(&ReadRequest { paths: vec![path.clone()], threads: 1 }).unwrap();
    assert!(job.traces.iter().all(|trace| trace.losses.is_empty()), "{}", path.display());
    let header = &job.traces[0].header.rest;
    let finds = header["finds"].as_array().unwrap().iter();
    let finds = finds.map(|rule| rule.as_str().unwrap().to_owned()).collect();
    let settings = header.get("settings").cloned().unwrap_or(Value::Object(Default::default()));
    let settings: RuleSettings = serde_json::from_value(settings).unwrap();
    (find(&job, WindowRule::Steps, &settings), finds)
}

#[test]
fn every_rule_fires_on_its_trace_and_is_silent_on_the_near_miss() {
    for rule in findings::rules().map(|rule| rule.id) {
        let (report, finds) = made_up(rule, "fires");
        assert_eq!(rules_of(&report, rule), finds, "{rule}.fires");
        assert!(finds.contains(rule), "{rule}.fires");
        let (report, finds) = made_up(rule, "quiet");
        assert_eq!(rules_of(&report, rule), finds, "{rule}.quiet");
        assert!(!finds.contains(rule), "{rule}.quiet");
    }
}

/// Returns the findings of a synthetic trace after a change of its text.
fn changed(rule: &str, change: impl Fn(&str) -> String) -> FindingReport {
    let text = std::fs::read_to_string(folder().join(format!("{rule}.fires.json"))).unwrap();
    let folder = testkit::Folder::new();
    let paths = vec![folder.write("changed.json", change(&text))];
    let job = open::read(&ReadRequest { paths, threads: 1 }).unwrap();
    find(&job, WindowRule::Steps, &RuleSettings::default())
}

#[test]
fn issue_24_a_storm_of_collectives_is_found_without_their_sizes() {
    let with = changed("M04", str::to_owned);
    let without =
        changed("M04", |text| text.replace("\"In msg nelems\":256,\"Out msg nelems\":256,", ""));
    let of = |report: &FindingReport| {
        let found = report.findings.iter().find(|one| one.rule == "M04").cloned();
        found.expect("a storm")
    };
    let (with, without) = (of(&with), of(&without));
    assert!(without.what.contains("of unknown size"), "{}", without.what);
    assert!(!with.what.contains("of unknown size"), "{}", with.what);
    let number = |name: &str| without.numbers.iter().find(|one| one.name == name).unwrap().value;
    assert_eq!(number("unknown_sizes_per_step"), number("collectives_per_step"));
    // Time beyond one latency may be needed for bytes of unknown number, so the saving is smaller
    // without sizes.
    assert!(without.saving.unwrap().high_ns < with.saving.unwrap().high_ns);
    let long = changed("M04", |text| {
        text.replace("\"In msg nelems\":256,\"Out msg nelems\":256,", "")
            .replace("\"dur\":30,", "\"dur\":60,")
    });
    assert!(long.findings.iter().all(|one| one.rule != "M04"));
}

#[test]
fn issue_24_products_are_judged_by_who_made_the_device_and_by_their_type() {
    let found = |change: &dyn Fn(&str) -> String| {
        let report = changed("K06", change);
        report.findings.into_iter().find(|one| one.rule == "K06")
    };
    let plain = found(&str::to_owned).expect("a finding");
    assert!(plain.what.contains("float32") && plain.advice.contains("TF32"), "{plain:?}");
    // The AMD device gfx942 reports capability 9.4. A kernel without a matrix instruction in its
    // name leaves its matrix cores unused.
    let amd = |text: &str| {
        text.replace("NVIDIA A100-SXM4-40GB", "AMD Instinct MI300X").replace(
            "\"computeMajor\": 8, \"computeMinor\": 0",
            "\"computeMajor\": 9, \"computeMinor\": 4",
        )
    };
    let tensile = |name: &'static str| move |text: &str| replaced(&amd(text), name);
    let fallback = found(&tensile("Cijk_Ailk_Bljk_SB_MT64x64x16_SE_K1")).expect("a finding");
    assert!(fallback.what.contains("matrix cores (MFMA)"), "{}", fallback.what);
    assert!(!fallback.advice.contains("TF32"), "{}", fallback.advice);
    assert!(found(&tensile("Cijk_Ailk_Bljk_SB_MT64x64x16_MI16x16x4x1_SN")).is_none());
    // An A100 has matrix units for float64, but a device of capability 8.6 has none.
    let double = |text: &str| replaced(text, "ampere_dgemm_128x64_nn");
    assert!(found(&double).expect("a finding").advice.contains("float64"));
    let small = |text: &str| double(text).replace("\"computeMinor\": 0", "\"computeMinor\": 6");
    assert!(found(&small).is_none());
    assert!(found(&|text: &str| replaced(text, "void gemv2T_kernel_val<int, float>")).is_none());
}

/// Returns the finding of rule K11 after a change of its fixture with four towers, or `None` if the
/// rule reports nothing.
fn branches(change: impl Fn(&str) -> String) -> Option<findings::Finding> {
    changed("K11", change).findings.into_iter().find(|one| one.rule == "K11")
}

#[test]
fn modules_are_branches_only_if_no_path_of_operators_joins_them() {
    let whole = branches(str::to_owned).expect("a finding");
    assert!(whole.what.contains("fill 20 % of the multiprocessors"), "{}", whole.what);
    assert!(whole.saving.is_some() && whole.what.contains("no tensor has the sizes"), "{whole:?}");
    // With these sizes, each module may read what the module before it has written.
    let square = |text: &str| text.replace("[64,1024],[1024,512]", "[64,512],[512,512]");
    assert_eq!(branches(square), None);
    // This text adds an operator that runs between two modules.
    let between = r#"{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":290.5,"dur":1,"args":{"correlation":99}}, {"ph":"X","cat":"kernel","name":"relu","pid":0,"tid":7,"ts":300,"dur":4,"args":{"device":0,"stream":7,"correlation":99,"grid":[20,1,1],"block":[128,1,1],"blocks per SM":0.2,"warps per SM":0.8}},"#;
    let second = r#"{"ph":"X","cat":"python_function","name":"nn.Module: Tower_1""#;
    assert_eq!(branches(|text| text.replace(second, &format!("{between}\n{second}"))), None);
    // Without tensor sizes the data flow is unknown, so no saving is promised.
    let unknown = branches(|text| text.replace("\"Input Dims\"", "\"Other\"")).expect("a finding");
    assert!(unknown.what.contains("if no operator leads from one to the next"), "{unknown:?}");
    assert_eq!((unknown.saving, unknown.severity), (None, findings::Severity::Info));
}

#[test]
fn branches_need_free_multiprocessors() {
    let full = |text: &str| text.replace("\"blocks per SM\":0.2", "\"blocks per SM\":0.99");
    assert_eq!(branches(full), None);
    let saved = |finding: findings::Finding| finding.saving.expect("a saving").high_ns;
    // The fixture has four towers of 70 µs. Together they take at least the time of their work on a
    // full device, and at least the time of the longest.
    let half = |text: &str| text.replace("\"blocks per SM\":0.2", "\"blocks per SM\":0.5");
    assert_eq!(saved(branches(half).expect("a finding")), 280_000 - 140_000);
    assert_eq!(saved(branches(str::to_owned).expect("a finding")), 280_000 - 70_000);
    let unknown = branches(|text| text.replace("\"blocks per SM\":0.2,", "")).expect("a finding");
    assert!(unknown.what.contains("if multiprocessors are free, which"), "{unknown:?}");
    assert_eq!(unknown.saving, None);
}

#[test]
fn small_kernels_are_to_run_side_by_side_only_where_two_fit_on_the_device() {
    let advice = |change: &dyn Fn(&str) -> String| {
        let found = changed("K01", change).findings.into_iter().find(|one| one.rule == "K01");
        found.expect("a finding").advice
    };
    let small = advice(&str::to_owned);
    assert!(small.contains("that no path of operators joins on several streams"), "{small}");
    let large = |text: &str| text.replace("\"blocks per SM\":0.1", "\"blocks per SM\":0.8");
    assert!(!advice(&large).contains("streams"));
}

#[test]
fn a_chain_names_the_tensor_sizes_it_used() {
    let said = |change: &dyn Fn(&str) -> String| {
        let found = changed("K13", change).findings.into_iter().find(|one| one.rule == "K13");
        found.expect("a chain").what
    };
    let all = said(&str::to_owned);
    assert!(all.contains("By the sizes of their tensors they move"), "{all}");
    let dims = "\"Input Dims\"";
    let some = said(&|text: &str| text.replacen(dims, "\"Other\"", 1));
    assert!(some.contains("by the sizes of tensors for"), "{some}");
    let none = said(&|text: &str| text.replace(dims, "\"Other\""));
    assert!(none.contains("No sizes of tensors were recorded"), "{none}");
    // Sizes were recorded in the trace, but those of the chain's operators are empty.
    let empty = said(&|text: &str| {
        let text = text.replace("\"Input Dims\":[[12288,1024]]", "\"Input Dims\":[[]]");
        text.replace("\"Input Dims\": [[12288, 1024]]", "\"Input Dims\":[[]]")
    });
    assert!(empty.contains("Their operators have no sizes of tensors"), "{empty}");
    let device = |text: &str| text.replace(dims, "\"Other\"").replace("NVIDIA A100", "Nobody's");
    let unknown = said(&device);
    assert!(unknown.contains("Neither the sizes of their tensors nor"), "{unknown}");
}

/// Replaces the name of the matrix products in the text of `K06.fires`.
fn replaced(text: &str, name: &str) -> String {
    assert!(text.contains("ampere_sgemm_128x64_nn"), "{text}");
    text.replace("ampere_sgemm_128x64_nn", name)
}

#[test]
fn a_finding_has_evidence_and_no_saving_above_its_rows() {
    for rule in findings::rules().map(|rule| rule.id) {
        let (report, _) = made_up(rule, "fires");
        for finding in &report.findings {
            let name = format!("{rule}.fires: {}", finding.rule);
            assert!(!finding.what.is_empty() && !finding.advice.is_empty(), "{name}");
            assert!(finding.key.starts_with(&finding.rule), "{name}");
            let Some(saving) = finding.saving else { continue };
            let is_ordered = 0 <= saving.low_ns
                && saving.low_ns <= saving.mid_ns
                && saving.mid_ns <= saving.high_ns;
            assert!(is_ordered && saving.high_ns <= report.step_ns, "{name}: {saving:?}");
        }
    }
}

#[test]
fn every_test_trace_belongs_to_an_existing_rule() {
    let ids: Vec<&str> = findings::rules().map(|rule| rule.id).collect();
    for entry in folder().read_dir().unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let (id, rest) = name.split_once('.').unwrap();
        let is_known =
            ids.contains(&id) && (rest.starts_with("fires") || rest.starts_with("quiet"));
        assert!(is_known || name == "README.md", "{name}");
    }
}

/// Checks which rules report a finding on a real trace whose whole recording is the window.
fn check(name: &str, expected: &[&str]) {
    let Some(job) = fixture::job(name) else { return };
    let report = find(&job, WindowRule::All, &RuleSettings::default());
    let found: BTreeSet<&str> = report.findings.iter().map(|one| one.rule.as_str()).collect();
    let expected: BTreeSet<&str> = expected.iter().copied().collect();
    assert_eq!(found, expected, "{name}");
}

#[test]
fn dlrm_on_eight_ranks_launches_tiny_kernels_and_waits_for_rank_seven() {
    let rules = [
        "C01", "H01", "H02", "K01", "K09", "L01", "L04", "M01", "M02", "M06", "Q01", "Q06", "Q08",
        "Q09",
    ];
    check("dlrm8/dlrm_kineto.tar.gz", &rules);
    let Some(job) = fixture::job("dlrm8/dlrm_kineto.tar.gz") else { return };
    let report = find(&job, WindowRule::All, &RuleSettings::default());
    let of = |rule: &str| report.findings.iter().find(|one| one.rule == rule).unwrap();
    assert_eq!(of("M06").ranks, [7]);
    assert!(of("H02").what.contains("num_workers=0"), "{}", of("H02").what);
    // Ranks wait for each other, so a step would hardly be shorter without the transfers.
    assert!(of("M01").what.contains("waiting for other ranks"), "{}", of("M01").what);
    let saving = of("M01").saving.unwrap();
    assert!(saving.mid_ns * 10 < saving.high_ns, "{saving:?}");
}

#[test]
fn each_real_trace_has_exactly_its_expected_findings() {
    let alexnet = "alexnet/benchmark_result_2869224_1695835535_trace.json.gz";
    check(alexnet, &["C01", "H06", "K06", "Q06", "Q07", "Q09"]);
    let simple_add = "simple_add/benchmark_result_493459_1694039959_trace.json.gz";
    check(simple_add, &["C01", "H06", "K06", "Q06", "Q07", "Q09"]);
    // The call of `cudaFree` in this trace is warm-up, so rule H07 must not report it.
    let linear = ["C06", "H01", "K01", "K06", "L01", "Q01", "Q06", "Q07", "Q09"];
    check("linear/linear_kineto.json.gz", &linear);
    check("nccl/nccl_data.json.gz", &["H01", "K12", "L02", "Q01", "Q09"]);
    let sampled = "timeline_sampled/sampled_rank-0.json.gz";
    check(sampled, &["C01", "K07", "L08", "M01", "M02", "Q06", "Q09"]);
}

#[test]
fn odd_traces_still_yield_summaries() {
    check("odd/backward_thread.json", &["K01", "Q06", "Q09"]);
    check("odd/event_sync_multi_stream.json.gz", &["K06", "Q06", "Q09"]);
    // The trace contains one read of a scalar and one kernel with a single block.
    check("odd/event_sync_trace.json.gz", &["H05", "K01", "Q06", "Q08", "Q09"]);
    let rocm = ["C02", "H01", "H10", "Q01", "Q06", "Q07", "Q09"];
    check("odd/mi250_minitoy_train_ROCm6_2_kineto.json.gz", &rocm);
    check("odd/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", &["Q02", "Q06", "Q09"]);
    check("odd/rank_non_gpu.json.gz", &["Q02", "Q06", "Q09"]);
    check("odd/triton_example.json.gz", &["H06", "K01", "Q01", "Q02", "Q06", "Q09"]);
}

#[test]
fn control_and_test_differ_in_data_movement_and_exposed_communication() {
    let control =
        ["C01", "H05", "H09", "K05", "K07", "K13", "L03", "L04", "M01", "M02", "Q01", "Q09"];
    check("trace_diff/control.json.gz", &control);
    let test = [
        "C01", "C05", "H05", "H09", "K04", "K06", "K13", "L02", "L03", "L04", "L05", "M02", "Q01",
        "Q04", "Q06", "Q08", "Q09",
    ];
    check("trace_diff/test.json.gz", &test);
    let Some(job) = fixture::job("trace_diff/control.json.gz") else { return };
    let report = find(&job, WindowRule::All, &RuleSettings::default());
    let number = |rule: &str, name: &str| {
        let finding = report.findings.iter().find(|one| one.rule == rule).unwrap();
        finding.numbers.iter().find(|number| number.name == name).unwrap().value
    };
    assert_eq!(number("M01", "exposed_pct"), 18.897);
    // The trace has 30 scalar reads in six steps, of which 24 read from the device.
    assert_eq!(number("H05", "reads_per_step"), 4.0);
    assert!((number("H09", "queries_per_step") - 617.0).abs() < 1.0);
}

#[test]
fn a_device_that_is_always_busy_gets_no_advice_for_the_host() {
    let Some(job) = fixture::job("trace_diff/test.json.gz") else { return };
    let report = find(&job, WindowRule::All, &RuleSettings::default());
    let host = report.findings.iter().filter(|one| one.rule == "C01" || one.rule == "H05");
    for finding in host {
        assert!(finding.held_back.is_some() && finding.saving.is_none(), "{}", finding.rule);
    }
}
