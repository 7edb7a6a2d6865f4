//! What a browser shows: every tab, text that stays text, a timeline that moves.
//!
//! With `ROWMILL_SCREENSHOTS=FOLDER` pictures of the tabs are left there.

use std::path::PathBuf;

use report::html::Origin;

use crate::browser::Browser;
use crate::fixture::{HOSTILE, dlrm8, large, page, small, titled};

const TABS: [&str; 10] =
    ["summary", "findings", "ranks", "idle", "gpu", "cpu", "network", "memory", "path", "timeline"];

/// Whether the lane of the chosen event is on the screen.
const SELECTED_IS_SHOWN: &str = "(() => {
    const { state, events } = rowmill.timeline;
    const row = state.rowOf.get(events.lane[state.selected]);
    return row.y >= state.top && row.y < state.top + 430;
})()";

/// Opens every tab; returns what it shows.
fn open_all(browser: &mut Browser) -> Vec<String> {
    let tabs = browser.value("rowmill.tabs");
    assert_eq!(tabs, serde_json::json!(TABS));
    TABS.map(|tab| {
        browser.value(&format!("document.getElementById('tab-{tab}').click()"));
        let shown = browser.value(&format!("document.getElementById('panel-{tab}').innerText"));
        let shown = shown.as_str().unwrap().to_owned();
        assert!(shown.len() > 60, "{tab}: {shown}");
        shown
    })
    .to_vec()
}

#[test]
fn every_tab_opens_and_hostile_names_stay_text() {
    let Some(mut browser) = Browser::open(&page(&small(), &Origin::File), "light") else { return };
    let shown = open_all(&mut browser).join("\n");
    assert!(shown.contains(HOSTILE), "{shown}");
    assert_eq!(browser.value("document.querySelectorAll('img, script:not([id])').length"), 1);
    // The policy lets nothing else run, were it ever taken for markup.
    let tried = "try { document.body.innerHTML = '<p>'; 'set' } catch (problem) { problem.name }";
    assert_eq!(browser.value(tried), "TypeError");
    assert_eq!(browser.value("rowmill.errors.length"), 0);
    let complaints = browser.complaints();
    // The one above was ours.
    assert!(complaints.iter().all(|one| one.contains("TrustedHTML")), "{complaints:?}");
}

#[test]
fn the_timeline_finds_selects_and_moves() {
    let Some(mut browser) = Browser::open(&page(&small(), &Origin::File), "dark") else { return };
    let whole = browser.value("[rowmill.timeline.state.from, rowmill.timeline.state.until]");
    browser.value("rowmill.timeline.find('ncclkernel')");
    let details = "document.querySelector('.details').innerText";
    let shown = browser.value(details).as_str().unwrap().to_owned();
    assert!(shown.contains("launched by") && shown.contains("cudaLaunchKernel"), "{shown}");
    assert_eq!(browser.value("rowmill.timeline.state.found.order.length"), 8);
    let span = "rowmill.timeline.state.until - rowmill.timeline.state.from";
    let before = browser.value(span).as_f64().unwrap();
    browser.mouse("mouseWheel", (800.0, 400.0), -240.0);
    let zoomed = browser.value(span).as_f64().unwrap();
    assert!(zoomed < before, "{zoomed} of {before}");
    let from = browser.value("rowmill.timeline.state.from").as_f64().unwrap();
    browser.mouse("mousePressed", (800.0, 400.0), 0.0);
    browser.mouse("mouseMoved", (700.0, 400.0), 0.0);
    browser.mouse("mouseReleased", (700.0, 400.0), 0.0);
    assert!(browser.value("rowmill.timeline.state.from").as_f64().unwrap() > from);
    browser.press("0");
    assert_ne!(browser.value(span).as_f64().unwrap(), zoomed);
    let again = browser.value("[rowmill.timeline.state.from, rowmill.timeline.state.until]");
    assert_eq!(whole, again);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn tables_sort_and_rows_open() {
    let Some(mut browser) = Browser::open(&page(&small(), &Origin::File), "light") else { return };
    browser.value("rowmill.open('gpu')");
    let head = "[...document.querySelectorAll('#panel-gpu th')].find((th) => th.innerText.startsWith('count'))";
    browser.value(&format!("{head}.firstChild.click()"));
    assert_eq!(browser.value(&format!("{head}.getAttribute('aria-sort')")), "descending");
    browser.value("document.querySelector('#panel-gpu .expand').click()");
    let detail = browser.value("document.querySelector('#panel-gpu td.detail').innerText");
    assert!(detail.as_str().unwrap().contains("80x1x1"), "{detail}");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// As ui.perfetto.dev documents it: asked until it answers, then given the bytes.
#[test]
fn the_trace_is_handed_over_once_the_other_window_answers() {
    let server =
        Origin::Server { trace: "/secret/t.pftrace".into(), file_name: "t.pftrace".into() };
    let Some(mut browser) = Browser::open(&page(&small(), &server), "light") else { return };
    let stand_in = "(() => {
        const frame = document.createElement('iframe');
        document.body.append(frame);
        window.other = frame.contentWindow;
        window.posted = [];
        window.asked = [];
        other.postMessage = (message, target) => posted.push([message, target]);
        window.open = (url) => { asked.push(url); return other; };
        window.fetch = async (url) => { asked.push(url); return new Response(new Uint8Array(5)); };
    })()";
    browser.value(stand_in);
    browser.value("document.querySelector('#actions button').click()");
    let wait = "new Promise((done) => setTimeout(done, 450))";
    browser.value(wait);
    let expected = serde_json::json!(["https://ui.perfetto.dev", "/secret/t.pftrace"]);
    assert_eq!(browser.value("asked"), expected);
    assert!(browser.value("posted.length").as_u64().unwrap() > 1);
    let all_ask = "posted.every(([message, to]) => \
                   message === 'PING' && to === 'https://ui.perfetto.dev')";
    assert_eq!(browser.value(all_ask), true);
    // Another site's answer counts for nothing.
    for origin in ["https://evil.example", "https://ui.perfetto.dev"] {
        let answer = format!("{{ data: 'PONG', origin: '{origin}', source: other }}");
        browser.value(&format!("dispatchEvent(new MessageEvent('message', {answer}))"));
        browser.value(wait);
        let given = "posted.filter(([message]) => message.perfetto).length";
        let is_perfetto = origin.contains("perfetto");
        assert_eq!(browser.value(given), i32::from(is_perfetto), "{origin}");
    }
    let last = "(({ perfetto: { buffer, title, fileName } }) => \
                [buffer.byteLength, title, fileName])(posted.at(-1)[0])";
    let expected = serde_json::json!([5, "a job <b>of tests</b>", "t.pftrace"]);
    assert_eq!(browser.value(last), expected);
    let said = browser.value("document.getElementById('actions').innerText");
    assert!(said.as_str().unwrap().contains("handed over 5 B"), "{said}");
}

/// Its speed is told, not judged: other programs share the machine.
#[test]
fn two_hundred_thousand_events_move() {
    let Some(mut browser) = Browser::open(&page(&large(), &Origin::File), "light") else { return };
    browser.value("rowmill.open('timeline')");
    let measured = browser.value("rowmill.timeline.measure(4000)");
    println!("200 k events: {measured}");
    assert!(measured["events"].as_u64().unwrap() > 190_000, "{measured}");
    assert!(measured["frames"].as_u64().unwrap() > 3, "{measured}");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn the_page_of_eight_ranks_opens_without_complaints() {
    let Some(job) = dlrm8() else { return };
    let page = titled(&job, &Origin::File, "DLRM on eight ranks");
    for scheme in ["light", "dark"] {
        let Some(mut browser) = Browser::open(&page, scheme) else { return };
        // Found from another tab, before the timeline was ever drawn.
        browser.value("rowmill.timeline.find('ncclKernel_AllReduce')");
        assert_eq!(browser.value(SELECTED_IS_SHOWN), true);
        open_all(&mut browser);
        if let Some(folder) = std::env::var_os("ROWMILL_SCREENSHOTS").map(PathBuf::from) {
            pictures(&mut browser, &folder, scheme);
        }
        assert_eq!(browser.complaints(), Vec::<String>::new());
    }
}

fn pictures(browser: &mut Browser, folder: &std::path::Path, scheme: &str) {
    std::fs::create_dir_all(folder).unwrap();
    for tab in TABS {
        browser.value(&format!("rowmill.open('{tab}'); window.scrollTo(0, 0)"));
        browser.value("new Promise((done) => setTimeout(done, 200))");
        browser.picture(&folder.join(format!("{tab}-{scheme}.png")));
    }
    let close = "(() => { const view = rowmill.timeline; view.find('ncclKernel_AllReduce'); \
                 const { start } = view.events; const at = start[view.state.selected]; \
                 view.show(at - 1.2e6, at + 5e5); })()";
    browser.value(close);
    browser.value("new Promise((done) => setTimeout(done, 200))");
    browser.picture(&folder.join(format!("selected-{scheme}.png")));
    for tab in ["gpu", "network"] {
        let open = format!("document.querySelector('#panel-{tab} .expand').click()");
        browser.value(&format!("rowmill.open('{tab}'); {open}"));
        let detail = format!("document.querySelector('#panel-{tab} td.detail').scrollIntoView()");
        browser.value(&detail);
        browser.value("new Promise((done) => setTimeout(done, 200))");
        browser.picture(&folder.join(format!("{tab}-open-{scheme}.png")));
    }
}
