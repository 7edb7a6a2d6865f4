//! Checks what findings explain about themselves: what limits their saving, who waits for whom, and
//! how long the devices' step is. Other tests check recordings of a host alone. The expected
//! figures are recomputed from the files.

use std::collections::BTreeMap;

use analyze::classify::ClassRule;
use analyze::findings::{Finding, FindingReport, HeldBack, RuleSettings, Severity};
use analyze::quality;
use analyze::summary::{self, Summary};
use analyze::{Classifier, Scope, WindowRule, breakdown, steps, what_if};
use trace::store::Job;

use crate::findings::report;
use crate::fixture;

fn scopes(job: &Job, rule: WindowRule) -> Vec<Scope<'_>> {
    let classifier = Classifier::new(ClassRule::Category);
    job.traces.iter().map(|trace| Scope::new(trace, rule, &classifier)).collect()
}

fn found(job: &Job, rule: WindowRule) -> FindingReport {
    report(job, &scopes(job, rule), &RuleSettings::default())
}

fn summed_up(job: &Job) -> Summary {
    let scopes = scopes(job, WindowRule::Steps);
    summary::summarize_job(&analyze::JobFacts::new(&scopes), 5)
}

fn find_finding<'a>(report: &'a FindingReport, rule: &str) -> &'a Finding {
    report.findings.iter().find(|one| one.rule == rule).expect(rule)
}

#[test]
fn issue_24_exposed_communication_names_the_awaited_rank() {
    let Some(job) = fixture::job("dlrm8/dlrm_kineto.tar.gz") else { return };
    let Some(truth) = fixture::text("hta_truth/dlrm8.collectives.exact.json") else { return };
    let truth: serde_json::Value = serde_json::from_str(&truth).unwrap();
    let report = found(&job, WindowRule::Steps);
    let exposed = find_finding(&report, "M01");
    let bound = exposed.limiting_factor.as_ref().expect("an explanation");
    let mut waits: BTreeMap<u64, i64> = BTreeMap::new();
    for one in truth["collectives"].as_array().unwrap() {
        let wait_us = one["wait_us"][bound.rank.to_string()].as_i64().unwrap();
        *waits.entry(one["last_arriver"].as_u64().unwrap()).or_default() += 1000 * wait_us;
    }
    let ours = bound.waits.iter().map(|wait| (u64::from(wait.rank), wait.wait_ns));
    assert_eq!(ours.collect::<BTreeMap<_, _>>(), waits);
    assert_eq!((bound.rank, bound.waits[0].rank), (1, 7));
    let what = &exposed.what;
    assert!(
        what.contains("Rank 1 waits most for rank 7 (9.15 ms; it comes last to 5 of 8"),
        "{what}"
    );
    assert!(what.contains("because ranks then still wait for the last one"), "{what}");
    assert!(what.contains("These are figures of rank 1"), "{what}");
    let sum = bound.host_pct + bound.device_pct + bound.wait_pct;
    assert!((sum - 100.0).abs() < 0.2, "{bound:?}");
}

#[test]
fn a_saving_close_to_its_rows_needs_no_explanation() {
    let Some(job) = fixture::job("modern/resnet50_2021_workers0.json.gz") else { return };
    let report = found(&job, WindowRule::Steps);
    assert_eq!(find_finding(&report, "H02").limiting_factor, None);
    // The source is a line of the user's script, not one of the profiler or of PyTorch.
    let source = find_finding(&report, "H02").evidence[0].source.as_deref();
    assert_eq!(source, Some("resnet50_profiler_api.py(42): <module>"));
    // Products without tensor cores take 60.9 ms per step, but the host limits the step.
    let bound = find_finding(&report, "K06").limiting_factor.as_ref().expect("an explanation");
    assert!(bound.host_pct > 90.0 && bound.waits.is_empty(), "{bound:?}");
}

#[test]
fn issue_24_a_device_that_lags_behind_has_its_step_beside_the_hosts() {
    let Some(job) = fixture::job("modern/mi300_resnet_act_checkpoint.json.gz") else { return };
    let scopes = scopes(&job, WindowRule::Steps);
    // The expected values come from the file: the last end of the work launched in each step,
    // joined by correlation id.
    let rows = steps::list_steps(&scopes[0]);
    let rows: Vec<_> = rows.iter().map(|row| (row.number, row.host_ns, row.device_ns)).collect();
    let expected = [
        (15, 16_798_984, Some(18_980_345)),
        (16, 15_950_958, Some(18_982_928)),
        (17, 15_887_029, Some(18_554_331)),
    ];
    assert_eq!(rows, expected);
    let edit = what_if::parse("class=communication x0.5").unwrap();
    let window = &what_if::answer_questions(&analyze::JobFacts::new(&scopes), &[edit]).windows[0];
    // The expected times are those of the device's clock, which differs from the host's by only
    // microseconds here.
    let device = window.device_ns.expect("a step of its own");
    let all = 18_980_345 + 18_982_928 + 18_554_331;
    assert!((device - all).abs() < 20_000, "{window:?}");
    let shorter = window.device_saving_pct.expect("a saving");
    assert!((20.0..=50.0).contains(&shorter), "{window:?}");
    assert_eq!(window.host_ns, window.new_host_ns, "nothing there waits for the device");
    let job_ = summed_up(&job).job;
    assert_eq!((job_.step_p50_ns, job_.device_step_p50_ns), (Some(15_950_958), Some(18_980_345)));
    let report = found(&job, WindowRule::Steps);
    assert!(
        report.step_summary.contains("the device needs 56.5 ms for the same steps"),
        "{report:?}"
    );
    // All launched communication counts, including what runs after the window. Without it, the
    // host's step of 16.2 ms limits the step.
    let exposed = find_finding(&report, "M01");
    assert!(exposed.saving.expect("a saving").mid_pct > 13.0, "{exposed:?}");
    // The text of the finding must state what the device gains and what the host gains.
    let sides = exposed.split.expect("a device that lags behind");
    assert!((sides.device_ns - all / 3).abs() < 10_000, "{sides:?}");
    let halved = sides.halved_device_ns.expect("transfers");
    let shorter = 100.0 * (sides.device_ns - halved) as f64 / sides.device_ns as f64;
    assert!((20.0..=50.0).contains(&shorter), "{sides:?}");
    assert!(sides.cured_device_ns <= halved, "{sides:?}");
    assert_eq!((sides.host_ns, sides.cured_host_ns), (16_224_890, 16_224_890), "{sides:?}");
    let said = format!("({shorter:.1} % less) with half of it gone");
    assert!(exposed.what.contains(&said), "{}", exposed.what);
    assert!(exposed.what.contains("the host's step would take 16.2 ms"), "{}", exposed.what);
    assert!(exposed.what.contains("of 8 ranks only rank 0 was read"), "{}", exposed.what);
}

#[test]
fn issue_24_a_recording_of_a_host_alone_is_not_idle() {
    let Some(job) = fixture::job("odd/rank_non_gpu.json.gz") else { return };
    let found_here = summed_up(&job);
    assert!(found_here.job.is_of_host);
    let parts: BTreeMap<_, _> =
        found_here.parts.iter().map(|part| (part.part, part.time_ns)).collect();
    // Operators run for 28,194 of the 75,542 µs, all of them on a single thread.
    assert_eq!((parts["compute"], parts["exposed_other"]), (28_194_000, 47_348_000));
    assert_eq!((parts["idle"], parts["exposed_communication"]), (0, 0));
    let threads: Vec<_> = found_here
        .threads
        .iter()
        .map(|one| (&*one.thread, one.operator_count, one.operator_ns))
        .collect();
    assert_eq!(threads, [("3113936/3113936", 2424, 28_194_000)]);
    let own: Vec<_> = found_here.own_times.iter().map(|one| (&*one.name, one.own_ns)).collect();
    let expected = [
        ("aten::copy_", 5_999_000),
        ("aten::_local_scalar_dense", 4_819_000),
        ("aten::addmm", 4_149_000),
        ("record_param_comms", 1_308_000),
        ("aten::empty", 1_216_000),
    ];
    assert_eq!(own, expected);
    let report = found(&job, WindowRule::Steps);
    assert!(report.findings.iter().all(|one| one.rule.starts_with('Q')), "{:?}", report.findings);
    assert!(report.step_summary.ends_with("covers all of the window: 100.0 % host"), "{report:?}");
    let scope = &scopes(&job, WindowRule::Steps)[0];
    assert_eq!(breakdown::compute_recorded_breakdown(scope).idle_pct, Some(0.0));
}

#[test]
fn issue_24_first_launches_and_set_up_weigh_less() {
    let name = "odd/mi250_minitoy_train_ROCm6_2_kineto.json.gz";
    let Some(job) = fixture::job(name) else { return };
    let report = found(&job, WindowRule::Steps);
    // One of the 14 launches takes 6.54 ms because it is the first of its kernel, and the others
    // take microseconds. Rules L06 and H01 do not count first launches, so 1.6 of the 8.1 ms of
    // idle time remain for H01.
    assert!(report.findings.iter().all(|finding| finding.rule != "L06"));
    let one = find_finding(&report, "H01");
    assert_eq!((one.held_back, one.severity), (None, Severity::Medium));
    let idle = one.numbers.iter().find(|number| number.name == "idle_per_step_ns");
    let idle = idle.expect("a figure").value;
    // The second step launches nothing, so it does not count as a step.
    assert!((1_500_000.0..1_600_000.0).contains(&idle), "{idle} ns");
}

#[test]
fn issue_24_the_profilers_waits_are_its_own() {
    for name in ["h100_timesformer", "mi300_owlv2"] {
        let Some(job) = fixture::job(&format!("modern/{name}.json.gz")) else { return };
        let report = found(&job, WindowRule::Steps);
        let wait = find_finding(&report, "H06");
        assert_eq!((wait.held_back, wait.severity), (Some(HeldBack::Profiler), Severity::Info));
    }
}

#[test]
fn issue_24_what_a_graph_captures_is_not_lost() {
    let Some(job) = fixture::job("modern/sglang_decode_capture.json.gz") else { return };
    let scopes = scopes(&job, WindowRule::Steps);
    let issues = analyze::JobFacts::new(&scopes).issues().to_vec();
    assert!(issues.iter().all(|issue| issue.id != "lost-device-rows"), "{issues:?}");
    let report = found(&job, WindowRule::Steps);
    assert_eq!(find_finding(&report, "H06").held_back, Some(HeldBack::GraphCapture));
}

/// Builds steps from (length, number of waits). The host waits for the device that often in the
/// step, each time inside the annotation `around`.
fn waits_within(around: &str, steps: &[(i64, i64)]) -> FindingReport {
    let row = |category: &str, name: &str, (start, length): (i64, i64), arguments: &str| {
        format!(
            "{{\"ph\":\"X\",\"cat\":\"{category}\",\"name\":\"{name}\",\"pid\":9,\"tid\":9,\
             \"ts\":{start},\"dur\":{length},\"args\":{{{arguments}}}}}"
        )
    };
    let (mut rows, mut begin, mut id) = (Vec::new(), 0, 0);
    for (step, (length, waits)) in steps.iter().enumerate() {
        let name = format!("ProfilerStep#{step}");
        rows.push(row("user_annotation", &name, (begin, *length), ""));
        for wait in 0..*waits {
            let at = begin + 500 * wait;
            id += 1;
            let joined = format!("\"correlation\":{id}");
            rows.push(row("cuda_runtime", "cudaLaunchKernel", (at + 1, 4), &joined));
            let kernel = row("kernel", "gemm", (at + 10, 300), &joined);
            rows.push(kernel.replace("\"pid\":9,\"tid\":9", "\"pid\":0,\"tid\":7"));
            rows.push(row("user_annotation", around, (at + 20, 400), ""));
            rows.push(row("cuda_runtime", "cudaDeviceSynchronize", (at + 30, 285), ""));
        }
        begin += length;
    }
    let text = format!("{{\"traceEvents\": [{}]}}", rows.join(","));
    let job = Job { traces: vec![trace::open::parse(text.as_bytes()).unwrap()] };
    let scopes = scopes(&job, WindowRule::Steps);
    analyze::findings::collect_findings(&analyze::JobFacts::new(&scopes), &RuleSettings::default())
        .unwrap()
}

#[test]
fn issue_24_a_wait_within_autotuning_weighs_less_than_one_of_the_loop() {
    let steps = [(1000, 1); 3];
    let usual = waits_within("forward", &steps);
    let usual = find_finding(&usual, "H06");
    let tuned = waits_within("CachingAutotuner.benchmark_all_configs", &steps);
    let tuned = find_finding(&tuned, "H06");
    assert_eq!((usual.held_back, tuned.held_back), (None, Some(HeldBack::Autotuning)));
    assert_eq!(tuned.saving, usual.saving);
    assert!(usual.severity < Severity::Info, "{usual:?}");
    assert_eq!(tuned.severity, Severity::Info);
    let what = "100 % of this is autotuning, which tries and times variants of kernels";
    assert!(tuned.what.contains(what), "{}", tuned.what);
    assert!(tuned.what.contains("severity lowered from"), "{}", tuned.what);
}

#[test]
fn issue_24_waits_of_a_first_step_that_takes_far_longer_are_warm_up() {
    let long = waits_within("forward", &[(2500, 5), (1000, 0), (1000, 0)]);
    assert_eq!(find_finding(&long, "H06").held_back, Some(HeldBack::WarmUp));
    let usual = waits_within("forward", &[(1400, 2), (1000, 1), (1000, 1)]);
    assert_eq!(find_finding(&usual, "H06").held_back, None);
}

#[test]
fn every_report_shows_the_same_verdict_sentence() {
    for name in
        ["dlrm8/dlrm_kineto.tar.gz", "linear/linear_kineto.json.gz", "trace_diff/test.json.gz"]
    {
        let Some(job) = fixture::job(name) else { return };
        let summary = summed_up(&job);
        let inside = scopes(&job, WindowRule::Steps);
        let issues = analyze::JobFacts::new(&inside).issues().to_vec();
        let whole = scopes(&job, WindowRule::All);
        let outside = quality::outside(&issues, &analyze::JobFacts::new(&whole).ranks);
        assert!(outside.iter().all(|issue| issue.severity == quality::Severity::Info), "{name}");
        assert_eq!(summary.verdict_words, quality::verdict(&issues).words(), "{name}");
    }
}
