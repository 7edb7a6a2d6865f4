//! Checks figures and quality verdicts on small recordings with the properties of public bug
//! reports. The folder of each case names the report of that property.

use analyze::classify::ClassRule;
use analyze::quality::QualityVerdict;
use analyze::summary::{self, Era, Summary};
use analyze::{Classifier, JobFacts, Scope, WindowRule, collectives, coverage, stragglers};
use trace::open::{self, ReadRequest};
use trace::store::{EventKind, Job, Loss};

use crate::fixture;

/// Reads the recordings of a case, judged and trimmed as every command does it, together with the
/// description of what is missing.
fn read(case: &str) -> Option<(Job, Option<String>)> {
    let paths = vec![fixture::path(&format!("cases/{case}"))?];
    let mut job = open::read(&ReadRequest { paths, threads: 1 }).expect("a trace");
    coverage::judge_all(&mut job.traces);
    let missing = coverage::missing(&job.traces);
    job.traces.iter_mut().for_each(coverage::trim);
    Some((job, missing))
}

fn scopes(job: &Job) -> Vec<Scope<'_>> {
    let classifier = Classifier::new(ClassRule::Category);
    job.traces.iter().map(|trace| Scope::new(trace, WindowRule::Steps, &classifier)).collect()
}

fn summary(job: &Job) -> Summary {
    summary::summarize_job(&JobFacts::new(&scopes(job)), 5)
}

fn loss(job: &Job, loss: Loss) -> u64 {
    job.traces.iter().map(|trace| trace.losses.count_of(loss)).sum()
}

fn issue<'a>(summary: &'a Summary, id: &str) -> Option<&'a str> {
    summary.issues.iter().find(|issue| issue.id == id).map(|issue| issue.what.as_str())
}

/// Returns the busy time and the window in tenths of a millisecond.
fn busy(summary: &Summary) -> (i64, i64) {
    let row = &summary.breakdowns[0];
    ((row.busy_ns + 50_000) / 100_000, (row.window_ns + 50_000) / 100_000)
}

#[test]
fn allreduce_kernels_of_other_libraries_are_communication() {
    for case in ["89a-flashinfer", "89b-symm-mem", "89d-nccl-control"] {
        let case = format!("04-modern-allreduce-counted-as-compute/{case}");
        let Some((job, _)) = read(&case) else { return };
        let page = summary(&job);
        let parts: Vec<(i64, i64)> = page
            .breakdowns
            .iter()
            .map(|row| (row.communication_ns / 100_000, row.compute_ns / 100_000))
            .collect();
        assert_eq!(parts, [(150, 325), (50, 425)], "{case}");
        let scopes = scopes(&job);
        let matched = collectives::match_collectives(&scopes);
        assert_eq!((matched.matched.len(), matched.unmatched.len()), (5, 0), "{case}");
        let facts = JobFacts::new(&scopes);
        let found = stragglers::find_stragglers(&scopes, &matched, facts.measured());
        let late = found.ranks.iter().find(|rank| rank.rank == 1).expect("rank 1");
        assert_eq!((late.times_last, late.caused_delay_ns / 100_000), (5, 100), "{case}");
    }
}

#[test]
fn rows_without_a_category_have_the_kind_of_their_process() {
    let case = "06-eventlist-export/events_export.json";
    let Some((job, _)) = read(case) else { return };
    let page = summary(&job);
    let trace = &job.traces[0];
    let is_operator = |row: &u32| trace.kind(*row) == EventKind::Operator;
    let operators = trace.rows().filter(is_operator).count();
    assert_eq!((page.job.era, operators), (Era::Autograd, 657));
    assert_eq!(page.job.window_ns / 100_000, 911);
    let first = &page.own_times[0];
    assert_eq!((first.name.as_str(), first.own_ns / 100_000), ("aten::sqrt", 222));

    let Some((job, _)) = read("06-eventlist-export/12-pytorch95460-autograd-export") else {
        return;
    };
    let page = summary(&job);
    assert_eq!(page.breakdowns[0].device_row_count, 20);
    assert_eq!((page.breakdowns[0].busy_ns, page.job.is_of_host), (600_000, false));
}

#[test]
fn a_file_of_another_program_is_named_and_poor() {
    for (case, program, category) in [
        ("21-nsys2json", "nsys2json", "\"cuda_api\""),
        ("22-ort1297-onnxruntime", "ONNX Runtime", "\"Node\""),
    ] {
        let Some((job, _)) = read(&format!("07-other-tools-chrome-traces/{case}")) else { return };
        let page = summary(&job);
        assert_eq!((page.job.era, page.verdict), (Era::Foreign, QualityVerdict::Poor), "{case}");
        let what = issue(&page, "unknown-rows").expect("an issue");
        assert!(what.contains("not a PyTorch trace"), "{what}");
        assert!(what.contains(program) && what.contains(category), "{what}");
    }
}

#[test]
fn device_rows_of_ascend_are_device_work() {
    let Some((job, _)) = read("09-ascend-trace-view/24-ascend27-trace-view") else { return };
    let page = summary(&job);
    assert_eq!(page.job.era, Era::Ascend);
    assert_eq!(busy(&page), (150, 300));
    let row = &page.breakdowns[0];
    assert_eq!((row.compute_ns, row.communication_ns), (12_000_000, 3_000_000));
}

#[test]
fn a_recording_without_work_is_poor() {
    for file in ["nothing.json", "threads.json"] {
        let Some((job, _)) = read(&format!("10-empty-recording-is-good/{file}")) else { return };
        let page = summary(&job);
        assert_eq!(page.verdict, QualityVerdict::Poor, "{file}");
        assert!(issue(&page, "no-events").is_some(), "{file}");
    }
}

#[test]
fn two_recordings_of_a_rank_are_not_two_ranks() {
    let folder = "28-two-captures-of-one-rank";
    let Some((job, _)) = read(&format!("{folder}/41-repeat2-two-captures-same-ranks")) else {
        return;
    };
    let page = summary(&job);
    assert_eq!((page.job.rank_count, page.job.world_size), (2, Some(2)));
    assert_eq!(loss(&job, Loss::OtherCapture), 2);
    assert_eq!(issue(&page, "duplicate-ranks"), None);
    let scopes = scopes(&job);
    let matched = collectives::match_collectives(&scopes).matched;
    assert!(!matched.is_empty());
    for one in &matched {
        assert_eq!((one.ranks_seen, one.group_size), (2, 2));
        assert!(one.arrival_spread_ns < 1_000_000, "{}", one.arrival_spread_ns);
    }

    let Some((job, _)) = read(&format!("{folder}/cyc")) else { return };
    assert_eq!((job.traces.len(), loss(&job, Loss::OtherCapture)), (1, 1));
}

#[test]
fn a_second_document_is_counted_and_breaks_the_recording() {
    for case in ["70-two-objects", "70b-two-objects-newline"] {
        let Some((job, missing)) = read(&format!("29-second-document-ignored/{case}")) else {
            return;
        };
        assert_eq!(loss(&job, Loss::BehindTheEnd), 47, "{case}");
        assert!(missing.expect("a line").contains("47 events"), "{case}");
        assert_eq!(summary(&job).verdict, QualityVerdict::Broken, "{case}");
    }
}

#[test]
fn a_row_without_a_duration_costs_that_row() {
    for case in ["32-cpu_op-nodur", "32-kernel-nodur"] {
        let Some((job, missing)) = read(&format!("31-one-row-without-dur/{case}")) else { return };
        assert_eq!((missing, loss(&job, Loss::NoTime)), (None, 1), "{case}");
        let (busy, window) = busy(&summary(&job));
        let right =
            if case.contains("kernel") { [130, 150, 160].contains(&busy) } else { busy == 160 };
        assert!(right && window == 400, "{case}: {busy} of {window}");
    }
}

#[test]
fn a_bare_word_costs_its_value() {
    let Some((job, missing)) = read("38-bare-NA/02-kineto131-bare-NA") else { return };
    assert_eq!(missing, None);
    assert!(loss(&job, Loss::BrokenText) > 0 && loss(&job, Loss::BrokenEvent) == 0);
    assert_eq!(busy(&summary(&job)), (160, 400));
}

#[test]
fn the_error_describes_trace_events() {
    for (case, words) in [
        ("54-catapult3006-nested", "traceEvents that are an object with the keys"),
        ("79-null-events", "traceEvents that are null"),
    ] {
        let folder = format!("cases/39-self-contradicting-message/{case}");
        let Some(path) = fixture::path(&folder) else { return };
        let request = ReadRequest { paths: vec![path], threads: 1 };
        let text = open::read(&request).expect_err("no trace").to_string();
        assert!(text.contains(words), "{text}");
        assert!(!text.contains("without traceEvents"), "{text}");
    }
}

#[test]
fn a_step_mark_without_work_is_ignored() {
    let Some((job, _)) = read("42-savings-of-a-15us-step/06-HTA238-one-step-at-end") else {
        return;
    };
    let page = summary(&job);
    assert_eq!((page.job.step_count, page.job.step_p50_ns), (0, None));
    assert!(issue(&page, "no-steps").expect("an issue").contains("cover none of its work"));
    let scopes = scopes(&job);
    let facts = JobFacts::new(&scopes);
    // In a recording without steps, savings refer to the whole window.
    assert_eq!(facts.step_ns() / 100_000, 399);
}

#[test]
fn a_duration_that_another_row_refutes_is_cut() {
    let Some((job, _)) = read("45-impossible-duration/76-hyperloom1116-impossible-dur") else {
        return;
    };
    assert_eq!(loss(&job, Loss::RefutedDuration), 1);
    assert_eq!(busy(&summary(&job)), (160, 400));
}
