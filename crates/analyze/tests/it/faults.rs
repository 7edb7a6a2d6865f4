//! Checks figures, quality issues and findings on small synthetic recordings with one fault each.

use analyze::classify::ClassRule;
use analyze::findings::{self, RuleSettings};
use analyze::quality::{QualityVerdict, Severity};
use analyze::summary::{self, Summary};
use analyze::{Classifier, JobFacts, Scope, WindowRule, collectives, coverage, what_if};
use trace::store::{DeviceProperties, Distributed, EventKind, Job, Loss, NewSlice, Trace};

const STEP_NS: i64 = 10_000_000;

/// One row of a recording as (category, name, (process, thread), (start, end), correlation id).
type Row = (&'static str, String, (i64, i64), (i64, i64), u64);

/// Builds steps of 10 ms. In each of them the host is idle for 5.9 ms and then launches two kernels
/// of 1 ms.
fn steps(count: i64) -> Vec<Row> {
    let mut rows = Vec::new();
    for step in 0..count {
        let begin = 1_000_000_000 + step * STEP_NS;
        let name = format!("ProfilerStep#{step}");
        rows.push(("user_annotation", name, (90, 1), (begin, begin + STEP_NS), 0));
        for at in 0..2 {
            let (id, host) = ((2 * step + at + 1) as u64, begin + 5_900_000 + at * 60_000);
            let device = begin + 6_000_000 + at * 1_000_000;
            rows.push(("cpu_op", "aten::mm".to_owned(), (90, 1), (host, host + 30_000), 0));
            let call = (host + 10_000, host + 18_000);
            rows.push(("cuda_runtime", "cudaLaunchKernel".to_owned(), (90, 1), call, id));
            let work = (device, device + 1_000_000);
            rows.push(("kernel", "gemm".to_owned(), (0, 7), work, id));
        }
    }
    rows
}

fn trace(rank: u32, rows: &[Row]) -> Trace {
    let mut trace = Trace { rank, ..Trace::default() };
    for (category, name, track, span, correlation) in rows {
        let mut slice = NewSlice::new(category, name, *track, *span);
        slice.correlation = Some(*correlation).filter(|id| *id != 0);
        trace.push(&slice);
    }
    trace
}

fn summary(mut traces: Vec<Trace>) -> (Summary, Vec<Trace>) {
    coverage::judge_all(&mut traces);
    traces.iter_mut().for_each(coverage::trim);
    let classifier = Classifier::new(ClassRule::Category);
    let scopes: Vec<Scope<'_>> =
        traces.iter().map(|trace| Scope::new(trace, WindowRule::Steps, &classifier)).collect();
    let page = summary::summarize_job(&JobFacts::new(&scopes), 5);
    drop(scopes);
    (page, traces)
}

fn severity(page: &Summary, id: &str) -> Option<Severity> {
    page.issues.iter().find(|issue| issue.id == id).map(|issue| issue.severity)
}

#[test]
fn a_sound_recording_is_good() {
    let (page, _) = summary(vec![trace(0, &steps(4))]);
    assert_eq!(page.verdict, QualityVerdict::Good, "{:?}", page.issues);
    assert_eq!(page.job.step_count, 4);
    assert_eq!((page.breakdowns[0].busy_ns, page.breakdowns[0].window_ns), (8_000_000, 40_000_000));
}

#[test]
fn silence_of_the_host_is_priced_without_steps() {
    let mut rows = steps(10);
    rows.retain(|row| row.0 != "user_annotation");
    let job = Job { traces: vec![trace(0, &rows)] };
    let classifier = Classifier::new(ClassRule::Category);
    let scopes = [Scope::new(&job.traces[0], WindowRule::Steps, &classifier)];
    let facts = JobFacts::new(&scopes);
    let report = findings::collect_findings(&facts, &RuleSettings::default()).expect("findings");
    let found = report.findings.iter().find(|one| one.rule == "H13").expect("H13");
    // The fixture has nine pauses of 9.91 ms, each from the last launch of an iteration to the
    // first launch of the next.
    assert!(found.what.starts_with("The recording spends 89."), "{}", found.what);
    let saved_ns = found.saving.expect("a saving").mid_ns;
    assert!((25_000_000..=45_000_000).contains(&saved_ns), "{found:?}");
}

#[test]
fn a_kernel_that_runs_on_alone_is_named_and_no_share_exceeds_the_whole() {
    let mut rows = steps(4);
    let last = rows.last_mut().unwrap();
    last.3.1 = last.3.0 + 3_150_000_000;
    let (page, _) = summary(vec![trace(0, &rows)]);
    assert_eq!(severity(&page, "far-device-work"), Some(Severity::Warning));
    assert_eq!(page.verdict, QualityVerdict::Doubtful);
    let shares = page.kernels.iter().map(|row| row.busy_pct);
    let shares = shares.chain(page.operators.iter().map(|row| row.busy_pct)).flatten();
    assert!(shares.clone().count() > 0 && shares.clone().all(|share| share <= 100.0));
}

#[test]
fn a_kernel_far_behind_the_recording_is_named() {
    let mut rows = steps(4);
    let last = rows.last_mut().unwrap();
    last.3 = (last.3.0 + 1_000_000_000, last.3.1 + 1_000_000_000);
    let (page, _) = summary(vec![trace(0, &rows)]);
    assert_eq!(severity(&page, "far-device-work"), Some(Severity::Warning));
}

#[test]
fn a_host_duration_longer_than_the_recording_is_cut_and_counted() {
    for category in ["cpu_op", "cuda_runtime", "user_annotation"] {
        let mut rows = steps(4);
        let row = rows.iter_mut().find(|row| row.0 == category).unwrap();
        row.3.1 = row.3.0 + 3_150_000_000;
        let (page, traces) = summary(vec![trace(0, &rows)]);
        assert_eq!(traces[0].losses.count_of(Loss::RefutedDuration), 1, "{category}");
        assert_eq!(page.verdict, QualityVerdict::Doubtful, "{category}");
        let longest = traces[0].slices.duration.iter().max();
        assert!(longest.is_some_and(|ns| *ns <= 4 * STEP_NS), "{category}");
    }
}

#[test]
fn a_missing_step_number_means_lost_rows() {
    let mut rows = steps(4);
    rows.retain(|row| row.1 != "ProfilerStep#2");
    let mut one = trace(0, &rows);
    coverage::judge(&mut one);
    let missing = coverage::missing([&one]).expect("a hole");
    assert!(missing.contains("ProfilerStep#2 is missing"), "{missing}");
    // A step that was not meant to be recorded leaves no rows at all, so nothing is missing.
    let third = 1_000_000_000 + 2 * STEP_NS;
    rows.retain(|row| !(third..third + STEP_NS).contains(&row.3.0));
    let mut whole = trace(0, &rows);
    coverage::judge(&mut whole);
    assert_eq!(coverage::missing([&whole]), None);
}

#[test]
fn launches_without_any_device_work_in_the_file_are_lost_device_work() {
    let mut rows = steps(4);
    rows.retain(|row| row.0 != "kernel");
    let (page, _) = summary(vec![trace(0, &rows)]);
    assert_eq!(severity(&page, "lost-device-rows"), Some(Severity::Error));
    assert_eq!(page.verdict, QualityVerdict::Poor);
}

#[test]
fn rows_without_correlation_ids_are_not_called_lost() {
    let mut rows = steps(4);
    rows.iter_mut().for_each(|row| row.4 = 0);
    let (page, _) = summary(vec![trace(0, &rows)]);
    assert_eq!(severity(&page, "lost-device-rows"), None);
    assert_eq!(severity(&page, "no-correlation-ids"), Some(Severity::Warning));
}

#[test]
fn rows_of_a_category_of_the_user_do_not_make_a_recording_poor() {
    for count in [3, 40] {
        let mut rows = steps(4);
        for at in 0..count {
            let start = 1_000_000_000 + at * 100_000;
            rows.push(("my_app", "span".to_owned(), (90, 1), (start, start + 50_000), 0));
        }
        let (page, _) = summary(vec![trace(0, &rows)]);
        assert_eq!(severity(&page, "unknown-rows"), Some(Severity::Info), "{count}");
        assert_eq!(page.verdict, QualityVerdict::Good, "{count}");
        assert_eq!(page.breakdowns[0].busy_ns, 8_000_000, "{count}");
    }
}

#[test]
fn copies_of_one_file_and_more_ranks_than_the_world_are_named() {
    let mut traces: Vec<Trace> = (0..3).map(|rank| trace(rank, &steps(4))).collect();
    let mut later = steps(4);
    later.iter_mut().for_each(|row| row.3 = (row.3.0 + 1_000, row.3.1 + 1_000));
    traces[1] = trace(1, &later);
    for one in &mut traces {
        one.header.distributed =
            Some(Distributed { world_size: Some(2), ..Distributed::default() });
    }
    let (page, traces) = summary(traces);
    let issue = page.issues.iter().find(|issue| issue.id == "identical-ranks").expect("copies");
    assert!(issue.what.starts_with("rank 2 has the same rows as rank 0"), "{}", issue.what);
    assert_eq!(issue.count, 1);
    assert_eq!(severity(&page, "more-ranks-than-world"), Some(Severity::Error));
    assert!(traces.iter().all(|one| one.rows().any(|row| one.kind(row) == EventKind::Kernel)));
}

#[test]
fn a_step_that_covers_half_of_the_work_is_not_a_unit() {
    let mut rows = steps(4);
    rows.retain(|row| row.0 != "user_annotation" || row.1 == "ProfilerStep#0");
    rows[0].3.1 = rows[0].3.0 + 2 * STEP_NS;
    let one = trace(0, &rows);
    let classifier = Classifier::new(ClassRule::Category);
    let scopes = [Scope::new(&one, WindowRule::Steps, &classifier)];
    let report =
        findings::collect_findings(&JobFacts::new(&scopes), &RuleSettings::default()).unwrap();
    assert!(report.step_summary.contains("without named steps"), "{}", report.step_summary);
    let texts = report.findings.iter().map(|found| &found.what);
    assert!(texts.clone().count() > 0 && texts.clone().all(|text| !text.contains("per step")));
}

#[test]
fn a_device_of_the_kind_that_the_header_lists_is_known() {
    let mut one = trace(0, &steps(4));
    one.header.devices =
        vec![DeviceProperties { name: "NVIDIA A100".to_owned(), ..DeviceProperties::default() }];
    let mut rows = steps(4);
    rows.iter_mut().filter(|row| row.0 == "kernel").for_each(|row| row.2 = (2, 7));
    let mut other = trace(0, &rows);
    other.header.devices.clone_from(&one.header.devices);
    for one in [one, other] {
        assert_eq!(summary(vec![one]).0.job.devices, "NVIDIA A100");
    }
}

/// Returns the saving in microseconds if device work took no time at all.
fn saved_without_devices_us(rows: &[Row]) -> i64 {
    let one = trace(0, rows);
    let classifier = Classifier::new(ClassRule::Category);
    let scopes = [Scope::new(&one, WindowRule::All, &classifier)];
    let question = what_if::parse("kernel=~. x0").expect("a what-if");
    what_if::answer_questions(&JobFacts::new(&scopes), &[question]).windows[0].saving_ns / 1_000
}

#[test]
fn a_wait_inside_a_call_of_the_vendor_is_awaited() {
    let call =
        |name: &str, thread, span, id| ("mtia_runtime", name.to_owned(), (90, thread), span, id);
    let us = |from: i64, to: i64| (1_000_000_000 + from * 1_000, 1_000_000_000 + to * 1_000);
    let work = ("mtia_ccp_events", "pe_exe".to_owned(), (0, 7), us(300, 9_800), 1);
    let executor = [
        call("predictor_executor::run", 2, us(0, 10_000), 0),
        call("runFunction - job_prep_and_submit_for_execution", 2, us(100, 200), 1),
        call("synchronizeStream", 2, us(210, 9_900), 0),
        work,
    ];
    let saved_us = saved_without_devices_us(&executor);
    assert!((9_000..=9_600).contains(&saved_us), "{saved_us}");
    // A call of another thread contains the whole wait, and must not change the saving.
    let mut both = executor.to_vec();
    both.push(call("gif_merge", 1, us(-100, 10_100), 0));
    let saved_us = saved_without_devices_us(&both);
    assert!((9_000..=9_600).contains(&saved_us), "{saved_us}");
}

#[test]
fn clocks_of_recordings_that_share_no_time_are_not_corrected() {
    let recording = |rank: u32, begin: i64| {
        let work = |at: i64| {
            let start = begin + at * 1_000_000;
            let name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL".to_owned();
            ("kernel", name, (0, 7), (start, start + 500_000), 0)
        };
        trace(rank, &(0..10).map(work).collect::<Vec<Row>>())
    };
    for (offset_ns, is_corrected) in [(2_000_000, true), (60_000_000_000, false)] {
        let classifier = Classifier::new(ClassRule::Category);
        let scope = |one| Scope::new(one, WindowRule::All, &classifier);
        let aligned = [recording(0, 1_000_000_000), recording(1, 1_000_000_000)];
        let mut found = collectives::match_collectives(&aligned.each_ref().map(scope));
        assert_eq!(found.matched.len(), 10);
        // Shift the matched collectives of rank 1, as if the files had sequence numbers by which
        // collectives match at any distance.
        found.matched.iter_mut().for_each(|one| one.participants[1].end_ns += offset_ns);
        let apart = [recording(0, 1_000_000_000), recording(1, 1_000_000_000 + offset_ns)];
        let scopes = apart.each_ref().map(scope);
        let clocks = found.compare_clocks(&scopes);
        assert_eq!(clocks[1].correction_ns != 0, is_corrected, "{clocks:?}");
        assert_eq!(clocks[1].ahead_ns, offset_ns / 2);
    }
}

#[test]
fn a_negative_duration_counts_as_none_and_is_named() {
    let row = |name: &str, start: i64, duration: i64| {
        format!(
            r#"{{"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7, "ts": {start}, "dur": {duration}}}"#
        )
    };
    let rows = [row("gemm", 0, 30), row("wrong", 40, -5), row("gemm", 50, 50)];
    let text = format!("{{\"traceEvents\": [{}]}}", rows.join(","));
    let trace = trace::open::parse(text.as_bytes()).unwrap();
    assert_eq!(trace.losses.count_of(Loss::NegativeDuration), 1);
    let (page, _) = summary(vec![trace]);
    // The other rows keep their figures, but the recording must not be called good.
    assert_eq!((page.breakdowns[0].busy_ns, page.breakdowns[0].window_ns), (80_000, 100_000));
    assert_eq!(page.verdict, QualityVerdict::Doubtful);
    let loss = page.issues.iter().find(|issue| issue.loss == Some(Loss::NegativeDuration));
    let what = &loss.expect("a loss").what;
    let offset = text.find(&rows[1]).unwrap();
    assert!(what.starts_with("1 × negative duration, taken as 0"), "{what}");
    assert!(what.contains(&format!("byte {offset}: ")) && what.contains("-5000 ns"), "{what}");
}
