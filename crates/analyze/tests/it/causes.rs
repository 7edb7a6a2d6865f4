//! Checks findings whose cause, cure or figure was once wrong on public traces, each against the
//! value that follows from the raw rows.

use analyze::WindowRule;
use analyze::findings::{Confidence, Finding, FindingReport, RuleSettings, Severity};
use trace::store::Job;

use crate::findings::find;
use crate::fixture;

fn found(job: &Job) -> FindingReport {
    find(job, WindowRule::Steps, &RuleSettings::default())
}

fn find_finding<'a>(report: &'a FindingReport, rule: &str) -> Option<&'a Finding> {
    report.findings.iter().find(|finding| finding.rule == rule)
}

fn number(finding: &Finding, name: &str) -> f64 {
    finding.numbers.iter().find(|number| number.name == name).expect("a number").value
}

#[test]
fn a_finding_and_the_breakdown_agree_how_long_the_device_is_idle() {
    let Some(job) = fixture::job("dlrm8/dlrm_kineto.tar.gz") else { return };
    let report = found(&job);
    let storm = find_finding(&report, "L01").expect("a storm");
    // Rank 5 is idle for 10.526 of the 17.797 ms of its step, counting the time after its last work
    // up to the end of the recording. Of its 245 kernels, 182 are shorter than their own launch
    // call.
    assert!((number(storm, "idle_pct") - 59.246).abs() < 0.01);
    assert!(storm.what.contains("182 of 245 kernels per step"), "{}", storm.what);
    assert!(storm.what.contains("less time than the call that launches them"), "{}", storm.what);
}

#[test]
fn host_bound_findings_show_the_share_of_their_longest_causes() {
    let Some(job) = fixture::job("dlrm8/dlrm_kineto.tar.gz") else { return };
    let report = found(&job);
    let host = find_finding(&report, "H01").expect("a host-bound job");
    // These are the longest operators on rank 5 after its first device work.
    let longest = "aten::empty (263 µs), aten::mm (245 µs), aten::empty_strided (225 µs)";
    assert!(host.what.contains(longest), "{}", host.what);
    assert!(host.what.contains("have 12 %") || host.what.contains("have 13 %"), "{}", host.what);
    assert!(host.what.contains("Not counted are the 1.30 ms"), "{}", host.what);
}

#[test]
fn the_stall_of_a_first_launch_is_named() {
    let Some(job) = fixture::job("odd/mi250_minitoy_train_ROCm6_2_kineto.json.gz") else { return };
    let report = found(&job);
    let host = find_finding(&report, "H01").expect("a host-bound job");
    let stall = "6.54 ms of it in one hipLaunchKernel of aten::add_";
    assert!(host.what.contains(stall), "{}", host.what);
    let set_up = find_finding(&report, "Q07").expect("set-up");
    assert!(set_up.what.contains("first launches of kernels 6.543 ms"), "{}", set_up.what);
}

#[test]
fn set_up_is_the_context_the_memory_and_the_first_launches() {
    let Some(job) = fixture::job("alexnet") else { return };
    let report = found(&job);
    let set_up = find_finding(&report, "Q07").expect("set-up");
    for part in
        ["the first call, which sets the device up 29927.377 ms", "first launches of kernels 3055."]
    {
        assert!(set_up.what.contains(part), "{}", set_up.what);
    }
    assert!(!set_up.advice.contains("--window steps"), "{}", set_up.advice);
}

#[test]
fn ranks_of_several_jobs_are_not_counted_as_those_of_one() {
    for folder in ["trace_diff", "odd", "modern"] {
        let Some(job) = fixture::job(folder) else { return };
        let report = found(&job);
        let details = find_finding(&report, "Q09").map_or("", |finding| &finding.what);
        assert!(!details.contains("ranks are there"), "{folder}: {details}");
        let clocks = find_finding(&report, "Q03").expect("several jobs");
        assert_eq!(clocks.key, "Q03:mixed-jobs", "{folder}");
        assert!(clocks.advice.contains("Give the traces of one job"), "{folder}");
    }
}

#[test]
fn kernels_that_graphs_miss_are_a_fault_of_the_recording() {
    let Some(job) = fixture::job("modern/a100_full_queue.json.gz") else { return };
    let report = found(&job);
    assert!(find_finding(&report, "L08").is_none());
    let partial = find_finding(&report, "Q10").expect("a recording with holes");
    assert_eq!(partial.severity, Severity::Medium);
    // In each step, 122.3 ms of idle time end with work of graphs.
    let seen = "each of the 14 launches of graphs in a step recorded as much work in all 4 steps";
    assert!(partial.what.contains("For 122.") && partial.what.contains(seen), "{}", partial.what);
}

#[test]
fn the_parts_of_exposed_communication_are_exposed() {
    let Some(job) = fixture::job("modern/a100_full_queue.json.gz") else { return };
    let report = found(&job);
    let exposed = find_finding(&report, "M01").expect("exposed communication");
    assert!((number(exposed, "exposed_per_step_ns") - 33_240_250.0).abs() < 1.0, "{exposed:?}");
    assert!(!exposed.what.contains("33.7 ms"), "{}", exposed.what);
    // The confidence is low because only one of several ranks was read and kernels of graphs are
    // missing.
    assert_eq!(exposed.confidence, Confidence::Low);
}

#[test]
fn communication_of_devices_that_lag_behind_is_per_step_of_theirs() {
    let Some(job) = fixture::job("modern/mi300_resnet_act_checkpoint.json.gz") else { return };
    let report = found(&job);
    let exposed = find_finding(&report, "M01").expect("exposed communication");
    // A step of the device takes 18.8 ms, of which communication is exposed for 11.4 to 11.9 ms.
    let ns = number(exposed, "exposed_per_step_ns");
    assert!((11_300_000.0..12_000_000.0).contains(&ns), "{ns}");
    assert!(exposed.what.contains("of the devices' steps"), "{}", exposed.what);
}

#[test]
fn a_loader_is_worth_what_a_worker_can_hide() {
    let Some(job) = fixture::job("modern/mi300_owlv2.json.gz") else { return };
    let report = found(&job);
    let stall = find_finding(&report, "H02").expect("a stall");
    // There are five fetches of 141 ms, and 66 ms of work after each. Workers can hide at most 66
    // ms of each of four fetches.
    let saving = stall.saving.expect("a saving");
    assert!((230_000_000..=330_000_000).contains(&saving.high_ns), "{saving:?}");
    assert!(!stall.what.contains("training process"), "{}", stall.what);
    assert!(
        stall.what.contains("scipy/ndimage") && stall.what.contains("564 ms"),
        "{}",
        stall.what
    );
}

#[test]
fn copies_to_the_device_are_not_fetching() {
    let Some(job) = fixture::job("dlrm8/dlrm_kineto.tar.gz") else { return };
    let report = found(&job);
    let stall = find_finding(&report, "H02").expect("a stall");
    // `__next__` takes 1081 to 1298 µs. The annotation `## copy_batch_to_gpu ##` takes 1604 µs and
    // must not count as fetching.
    assert!(number(stall, "fetching_per_step_ns") <= 1_298_000.0, "{stall:?}");
}

#[test]
fn a_step_of_one_sequence_is_captured_whole() {
    let Some(job) = fixture::job("linear/linear_kineto.json.gz") else { return };
    let report = found(&job);
    let graph = find_finding(&report, "L03").expect("a region");
    assert!(graph.what.contains("Each step launches the same 261 kernels"), "{}", graph.what);
    assert!(graph.advice.contains("whole step"), "{}", graph.advice);
}

#[test]
fn copies_of_compiled_graphs_are_not_cured_by_compiling() {
    let Some(job) = fixture::job("trace_diff/test.json.gz") else { return };
    let report = found(&job);
    let moving = find_finding(&report, "C05").expect("moving");
    assert!(moving.what.contains("of it are copies that compiled functions make"), "{moving:?}");
    assert!(!moving.advice.contains("let torch.compile fuse"), "{}", moving.advice);
}

#[test]
fn products_name_the_size_that_is_odd_and_its_cure() {
    let Some(job) = fixture::job("modern/mi300_owlv2.json.gz") else { return };
    let report = found(&job);
    let products = find_finding(&report, "K07").expect("odd products");
    assert!(products.what.contains("5185 is not a multiple of 8"), "{}", products.what);
    assert!(products.advice.contains("scaled_dot_product_attention"), "{}", products.advice);
    let Some(job) = fixture::job("modern/a100_full_queue.json.gz") else { return };
    let report = found(&job);
    let products = find_finding(&report, "K07").expect("odd products");
    // Kernels with `align1` in their names take 19.9 ms per step, and most of them multiply
    // matrices of width 2798.
    let ns = number(products, "time_per_step_ns");
    assert!((19_700_000.0..20_100_000.0).contains(&ns), "{ns}");
    assert!(products.what.contains("2798 is not a multiple of 4"), "{}", products.what);
}

#[test]
fn a_few_short_kernels_without_an_operator_are_a_remark() {
    let Some(job) = fixture::job("modern/sglang_decode.json.gz") else { return };
    let report = found(&job);
    // Three kernels without an operator take 18 µs in total, out of 9.8 ms of device time.
    let open = find_finding(&report, "Q08").expect("a remark");
    assert_eq!(open.severity, Severity::Info, "{}", open.what);
}

#[test]
fn an_exchange_of_the_next_batch_needs_no_pipeline() {
    let Some(job) = fixture::job("trace_diff/control.json.gz") else { return };
    let report = found(&job);
    let input = find_finding(&report, "M02").expect("an exchange");
    assert_eq!((input.severity, input.saving), (Severity::Info, None));
    assert!(input.what.contains("already belongs to the next batch"), "{}", input.what);
}

#[test]
fn findings_of_one_cause_name_the_one_that_saves_most() {
    let Some(job) = fixture::job("linear/linear_kineto.json.gz") else { return };
    let report = found(&job);
    // The host launches too slowly, and a single graph of the step would save the time of all three
    // other findings.
    for rule in ["L01", "H01", "C06"] {
        let advice = &find_finding(&report, rule).expect("a finding").advice;
        assert!(advice.contains("L03 also reports most of this time"), "{rule}: {advice}");
    }
}
