//! Tests of the prediction page. The bars and edges of the page match the program, its nodes can be
//! selected, and only a served page offers edits.

use analyze::classify::ClassRule;
use analyze::{Classifier, Scope, WindowRule};
use predict::calibration::{Calibration, collect};
use predict::edit::{Edit, Edits};
use predict::prediction::Draws;
use predict::prediction::what_if;
use predict::recording::{self, Span, TensorSizes};
use report::html::{self, PageOrigin};
use report::predicted::{self, BarKind, EdgeKind, Predicted};
use trace::store::{NewSlice, Trace};

use crate::fixture::HOSTILE;
use testkit::browser::Browser;

/// Creates two operators with one kernel each, followed by a wait. The second operator has a
/// hostile name.
fn trace() -> Trace {
    let (host, device) = ((9, 9), (0, 7));
    let mut trace = Trace::default();
    let mut row = |category: &str, name: &str, track: (i64, i64), span: (i64, i64), id: u64| {
        let span = (span.0 * 1_000, span.1 * 1_000);
        let correlation = Some(id).filter(|id| *id > 0);
        trace.push(&NewSlice { correlation, ..NewSlice::new(category, name, track, span) });
    };
    row("user_annotation", "ProfilerStep#1", host, (0, 200), 0);
    row("cpu_op", "aten::mm", host, (10, 30), 0);
    row("cuda_runtime", "cudaLaunchKernel", host, (15, 20), 1);
    row("kernel", "gemm", device, (22, 72), 1);
    row("cpu_op", HOSTILE, host, (40, 60), 0);
    row("cuda_runtime", "cudaLaunchKernel", host, (45, 50), 2);
    row("kernel", "other", device, (73, 93), 2);
    row("cpu_op", "aten::item", host, (70, 100), 0);
    row("cuda_runtime", "cudaStreamSynchronize", host, (75, 97), 3);
    trace
}

/// Builds the data of the page for a step with edits.
fn view(edits: &[Edit]) -> Predicted {
    let trace = trace();
    let classifier = Classifier::new(ClassRule::Category);
    let scopes = [Scope::new(&trace, WindowRule::All, &classifier)];
    let job = recording::Job::new(&scopes, |_| TensorSizes::default());
    let spans: Vec<Span> = scopes.iter().map(|scope| recording::spans(scope)[0]).collect();
    let step = job.step(&spans).unwrap();
    let mut calibration = Calibration::default();
    collect::add(&mut calibration, &step, &[0]);
    let setting = step.recorded.setting(&step.program);
    let draws = Draws::new(4, 0);
    let found = what_if::Unedited::new(&step.program, &setting, &calibration)
        .and_then(|unedited| unedited.with("", edits, draws))
        .unwrap();
    let text = format!("{:?}", Edits { edit: edits.to_vec() });
    predicted::build_page("a step <b>", &step, &found, text)
}

fn remove() -> Edit {
    Edit::Remove { operators: "aten::mm".to_owned() }
}

#[test]
fn bars_and_edges_match_the_program() {
    let shown = view(&[]);
    let rank = &shown.ranks[0];
    assert_eq!(rank.predicted.lanes, ["thread 9", "device 0, stream 7"]);
    let spans = |lanes: &predicted::BarLanes| -> Vec<(u32, i64, i64)> {
        let bar = |bar: &predicted::Bar| (bar.lane, bar.start_ns / 1_000, bar.end_ns / 1_000);
        lanes.bars.iter().map(bar).collect()
    };
    // The step is priced by its own samples, so the prediction equals the recording.
    let expected = [(0, 10, 30), (0, 40, 60), (0, 70, 100), (1, 22, 72), (1, 73, 93)];
    assert_eq!((spans(&rank.measured), spans(&rank.predicted)), (expected.into(), expected.into()));
    assert_eq!(rank.predicted.bars[3].kind, BarKind::Compute);
    use EdgeKind::{Launch, Queue, Wait};
    assert_eq!(rank.edges, [(0, 3, Launch), (1, 4, Launch), (4, 2, Wait), (3, 4, Queue)]);
    // Edits must not change the indices of names, because the page's recorded bars refer to them.
    let edited = view(&[remove()]);
    assert_eq!(edited.ranks[0].predicted.bars.len(), 3);
    assert_eq!(edited.names[..shown.names.len()], shown.names);
}

#[test]
fn saved_page_allows_selection_but_no_edits() {
    let page = html::predicted_page(&view(&[remove()]), &PageOrigin::File).unwrap();
    let Some(mut browser) = Browser::open(&page, "light") else { return };
    let shown = browser.value("document.body.innerText").as_str().unwrap().to_owned();
    for text in ["recorded", "predicted, with edits", "thread 9", "device 0, stream 7", "Remove"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    assert_eq!(browser.value("document.querySelectorAll('img, script:not([id])').length"), 1);
    assert_eq!(browser.value("document.querySelectorAll('[id^=edit-]').length"), 0);
    // The third button of the graph is the kernel of the remaining operator.
    browser
        .value("document.querySelectorAll('g[role=button]')[2].dispatchEvent(new Event('click'))");
    assert_eq!(browser.value("rowmill.state.chosen"), 2);
    assert_eq!(browser.value("rowmill.errors.length"), 0);
    assert!(browser.complaints().is_empty());
}

#[test]
fn served_page_has_a_button_for_every_edit() {
    let origin = PageOrigin::Editor { edit: "/secret/edit".to_owned() };
    let page = html::predicted_page(&view(&[]), &origin).unwrap();
    assert!(page.contains("connect-src 'self'"));
    let Some(mut browser) = Browser::open(&page, "dark") else { return };
    browser.value("rowmill.choose(0)");
    for edit in ["remove", "gap", "fuse", "stream", "thread", "resize", "undo"] {
        let there = browser.value(&format!("document.getElementById('edit-{edit}') != null"));
        assert_eq!(there, true, "{edit}");
    }
    // One operator among several of the same name is edited by its number.
    browser.value(
        "window.fetch = (to) => { window.asked = decodeURIComponent(to); \
         return Promise.resolve({ ok: false, text: () => Promise.resolve('gone') }); }",
    );
    for (is_one, end) in [(true, "[0]\"}]"), (false, "\"}]")] {
        browser.value("document.getElementById('edit-one').click()");
        assert_eq!(browser.value("rowmill.state.isOne"), is_one);
        browser.value("document.getElementById('edit-remove').click()");
        let asked = browser.value("window.asked").as_str().unwrap().to_owned();
        assert!(asked.ends_with(end) && asked.contains("[0]") == is_one, "{asked}");
    }
    // A stream can be added, because a later operator with work can join it. Nothing was edited
    // yet, so undo is disabled.
    assert_eq!(browser.value("document.getElementById('edit-stream').disabled"), false);
    assert_eq!(browser.value("document.getElementById('edit-undo').disabled"), true);
    assert_eq!(browser.value("rowmill.errors.length"), 0);
}
