//! Tests of the page in a browser: every tab opens, names stay text, and the timeline can be moved.
//!
//! With `ROWMILL_SCREENSHOTS=FOLDER`, the tests save screenshots of all tabs in that folder.

use std::path::PathBuf;

use report::html::{self, PageOrigin};

use crate::fixture::{HOSTILE, compared, dlrm8, large, page, small, titled, training};
use testkit::browser::Browser;

const TABS: [&str; 10] =
    ["summary", "findings", "ranks", "idle", "gpu", "cpu", "network", "memory", "path", "timeline"];

/// Script that returns whether the lane of the selected event is visible.
const SELECTED_IS_SHOWN: &str = "(() => {
    const { state, events } = rowmill.timeline;
    const row = state.rowOf.get(events.lane[state.selected]);
    return row.y >= state.top && row.y < state.top + 430;
})()";

/// Opens every tab and returns the text of each.
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
    let Some(mut browser) = Browser::open(&page(&small(), &PageOrigin::File), "light") else {
        return;
    };
    let shown = open_all(&mut browser).join("\n");
    assert!(shown.contains(HOSTILE), "{shown}");
    assert_eq!(browser.value("document.querySelectorAll('img, script:not([id])').length"), 1);
    // The policy must block scripts even if a name were inserted as markup.
    let tried = "try { document.body.innerHTML = '<p>'; 'set' } catch (problem) { problem.name }";
    assert_eq!(browser.value(tried), "TypeError");
    assert_eq!(browser.value("rowmill.errors.length"), 0);
    let complaints = browser.complaints();
    // The attempted insertion above causes the first complaint, so it is allowed.
    assert!(complaints.iter().all(|one| one.contains("TrustedHTML")), "{complaints:?}");
}

#[test]
fn the_timeline_finds_selects_and_moves() {
    let Some(mut browser) = Browser::open(&page(&small(), &PageOrigin::File), "dark") else {
        return;
    };
    let whole = browser.value("[rowmill.timeline.state.from, rowmill.timeline.state.until]");
    browser.value("rowmill.timeline.find('ncclkernel')");
    let details = "document.querySelector('.details').innerText";
    let shown = browser.value(details).as_str().unwrap().to_owned();
    assert!(shown.contains("launched by") && shown.contains("cudaLaunchKernel"), "{shown}");
    assert_eq!(browser.value("rowmill.timeline.state.found.order.length"), 8);
    let span = "rowmill.timeline.state.until - rowmill.timeline.state.from";
    let before = browser.value(span).as_f64().unwrap();
    browser.mouse("mouseWheel", [800.0, 400.0], -240.0);
    let zoomed = browser.value(span).as_f64().unwrap();
    assert!(zoomed < before, "{zoomed} of {before}");
    let from = browser.value("rowmill.timeline.state.from").as_f64().unwrap();
    browser.hold_shift(true);
    browser.mouse("mousePressed", [800.0, 400.0], 0.0);
    browser.mouse("mouseMoved", [700.0, 400.0], 0.0);
    browser.mouse("mouseReleased", [700.0, 400.0], 0.0);
    browser.hold_shift(false);
    assert!(browser.value("rowmill.timeline.state.from").as_f64().unwrap() > from);
    browser.press("0");
    assert_ne!(browser.value(span).as_f64().unwrap(), zoomed);
    let again = browser.value("[rowmill.timeline.state.from, rowmill.timeline.state.until]");
    assert_eq!(whole, again);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Script that computes the totals of a range with simple loops over all events.
const COUNTED: &str = "(([from, until, rank]) => {
    const { events } = rowmill.timeline;
    const { timeline } = JSON.parse(document.getElementById('data').textContent);
    const [classes, kernels, calls] = [{}, {}, {}];
    for (let at = 0; at < events.total; at += 1) {
        const track = timeline.tracks[events.lanes[events.lane[at]].track];
        if (track.rank !== rank || events.end[at] <= from || events.start[at] >= until) continue;
        const [name, kind] = timeline.labels[events.label[at]];
        const ns = Math.min(events.end[at], until) - Math.max(events.start[at], from);
        if (track.side === 'device' && kind < 4) {
            classes[timeline.kinds[kind]] = (classes[timeline.kinds[kind]] ?? 0) + ns;
            kernels[name] = (kernels[name] ?? 0) + ns;
        } else if (timeline.kinds[kind] === 'operator') calls[name] = (calls[name] ?? 0) + 1;
    }
    return { classes, kernels, calls };
})";

#[test]
fn dragging_over_a_range_shows_its_totals() {
    let Some(mut browser) = Browser::open(&page(&small(), &PageOrigin::File), "light") else {
        return;
    };
    browser.value("rowmill.open('timeline')");
    browser.value("new Promise((done) => setTimeout(done, 200))");
    // The lanes of rank 0 are the first ones below the axis.
    let at = browser.value(
        "(() => { const place = document.querySelector('canvas').getBoundingClientRect(); \
         return [place.left + 300, place.left + 700, place.top + 48 + 30]; })()",
    );
    let number = |place: usize| at[place].as_f64().unwrap();
    browser.mouse("mousePressed", [number(0), number(2)], 0.0);
    browser.mouse("mouseMoved", [number(0) + 90.0, number(2)], 0.0);
    browser.mouse("mouseMoved", [number(1), number(2)], 0.0);
    browser.mouse("mouseReleased", [number(1), number(2)], 0.0);
    let chosen = browser.value(
        "(({ from, until, ranks }) => [from, until, ...ranks])(rowmill.timeline.state.chosen)",
    );
    assert_eq!(chosen.as_array().map(Vec::len), Some(3), "one rank: {chosen}");
    let shown = browser.value("document.querySelector('.details').innerText");
    let shown = shown.as_str().unwrap();
    for word in ["By class", "By kernel, copy and set", "By operator", "rank 0", "aten::addmm"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let counted = browser.value(&format!("{COUNTED}({chosen})"));
    let totals = browser.value(&format!(
        "(([from, until, rank]) => {{ \
           const found = rowmill.timeline.totals(from, until, [rank]); \
           const by = (rows, of) => Object.fromEntries(rows.map((row) => [row.key, of(row)])); \
           return {{ classes: by(found.classes, (row) => row.ns), \
             kernels: by(found.kernels, (row) => row.ns), \
             calls: by(found.operators.filter((row) => row.count), (row) => row.count) }}; \
         }})({chosen})"
    ));
    assert!(counted["classes"]["compute"].as_f64().unwrap() > 0.0, "{counted}");
    assert_eq!(totals, counted);
    // The totals cover the self host time and the device time of all operators over the whole
    // timeline. By construction, the trace has 24 pairs of operators of 800 ns, each with a call of
    // 100 ns, and as many kernels.
    let sums = browser.value(
        "(({ operators }) => [operators.reduce((sum, row) => sum + row.host_ns, 0), \
         operators.reduce((sum, row) => sum + row.device_ns, 0)])(rowmill.timeline.totals(0, 1e9, null))",
    );
    assert_eq!(sums, serde_json::json!([24 * 700, 8 * (50 + 147 + 244)]));
    // The Escape key must clear the selected range.
    browser.value("document.querySelector('canvas').focus()");
    browser.press("Escape");
    assert_eq!(browser.value("rowmill.timeline.state.chosen"), serde_json::Value::Null);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn critical_path_is_shown_and_other_events_are_dimmed() {
    let Some(mut browser) = Browser::open(&page(&small(), &PageOrigin::File), "light") else {
        return;
    };
    browser.value("rowmill.open('path')");
    let button = "[...document.querySelectorAll('#panel-path button')]\
                  .find((one) => one.innerText === 'show it on the timeline')";
    browser.value(&format!("{button}.click()"));
    browser.value("new Promise((done) => setTimeout(done, 200))");
    let pressed = "document.querySelector('#panel-timeline button[aria-keyshortcuts=\"m\"]')\
                   .getAttribute('aria-pressed')";
    assert_eq!(browser.value(pressed), "true");
    // The row with the largest share of the path must be visible, and all other colors must be
    // faint.
    let seen = "(() => { const { state, events } = rowmill.timeline; \
                const sums = new Map(); \
                for (let at = 0; at < events.total; at += 1) if (events.marked[at]) { \
                  const row = state.rowOf.get(events.lane[at]); \
                  sums.set(row, (sums.get(row) ?? 0) + events.end[at] - events.start[at]); } \
                const [[row]] = [...sums].sort((a, b) => b[1] - a[1]); \
                return row.y >= state.top && row.y < state.top + 430; })()";
    assert_eq!(browser.value(seen), true);
    let colours = "(() => { const canvas = document.querySelector('canvas'); \
                   const { data } = canvas.getContext('2d').getImageData(0, 48, canvas.width, canvas.height - 48); \
                   const found = new Set(); \
                   for (let at = 0; at < data.length; at += 4) found.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]); \
                   return [...found].length; })()";
    let dimmed = browser.value(colours);
    browser.value("document.querySelector('canvas').focus()");
    browser.press("m");
    browser.value("new Promise((done) => setTimeout(done, 200))");
    assert_eq!(browser.value(pressed), "false");
    assert_ne!(browser.value(colours), dimmed);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Each column of the strip must have the color of its largest share, which the test computes
/// independently.
#[test]
fn path_over_time_shows_the_largest_shares() {
    let Some(job) = dlrm8() else { return };
    let page = titled(&job, &PageOrigin::File, "DLRM on eight ranks");
    let Some(mut browser) = Browser::open(&page, "light") else { return };
    browser.value("rowmill.open('path')");
    let wrong = "(() => {
        const { paths } = JSON.parse(document.getElementById('data').textContent).path;
        const [path] = paths;
        const ranks = [...new Set(path.strip.map(([rank]) => rank))].sort((a, b) => a - b);
        const [width, left, step] = [1060, 64, 22];
        const per = path.window_ns / width;
        const rects = [...document.querySelectorAll('#panel-path svg[aria-label=\"over time\"] rect')];
        let [checked, wrong] = [0, 0];
        for (let column = 0; column < width; column += 7) {
            const [from, until] = [path.at_ns + column * per, path.at_ns + (column + 1) * per];
            const shares = new Map();
            for (const [rank, part, at, length] of path.strip) {
                const { category } = path.parts[part];
                const inside = Math.min(until, at + length) - Math.max(from, at);
                const key = `${rank}/${category}`;
                if (inside > 0) shares.set(key, (shares.get(key) ?? 0) + inside);
            }
            const order = [...shares].sort((a, b) => b[1] - a[1]);
            if (!order.length || (order[1] && order[0][1] - order[1][1] < 1)) continue;
            const x = left + column + 0.5;
            const over = rects.filter((rect) => {
                const begin = Number(rect.getAttribute('x'));
                return begin <= x && x < begin + Number(rect.getAttribute('width'));
            });
            checked += 1;
            const row = ranks.indexOf(Number(order[0][0].split('/')[0]));
            const title = over[0]?.querySelector('title').textContent ?? '';
            const isRight = over.length === 1 && Math.floor(Number(over[0].getAttribute('y')) / step) === row
                && title.startsWith(`${order[0][0].split('/')[1].replaceAll('_', ' ')}:`);
            if (!isRight) wrong += 1;
        }
        return [checked > 100, wrong];
    })()";
    assert_eq!(browser.value(wrong), serde_json::json!([true, 0]));
}

#[test]
fn comparison_shows_its_verdict_and_moves_two_timelines() {
    let page = compared(&small(), &large());
    for scheme in ["light", "dark"] {
        let Some(mut browser) = Browser::open(&page, scheme) else { return };
        let first = browser.value("document.querySelector('main').firstElementChild.innerText");
        let first = first.as_str().unwrap().to_owned();
        assert!(first.contains(" → ") && first.contains(": slower by "), "{first}");
        let shown = browser.value("document.querySelector('main').innerText");
        let shown = shown.as_str().unwrap();
        for part in [
            "Time of a step",
            "Breakdown of a step",
            "Slower",
            "Added",
            "Removed",
            "One step of each",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(shown.contains(HOSTILE));
        assert_eq!(browser.value("document.querySelectorAll('img, script:not([id])').length"), 1);
        assert_eq!(browser.value("document.querySelectorAll('canvas').length"), 2);
        // Both timelines must have the same range and move together.
        let spans = "rowmill.timelines.map(({ state }) => Math.round(state.until - state.from))";
        let before = browser.value(spans);
        assert_eq!(before[0], before[1]);
        browser.value("document.querySelector('canvas').scrollIntoView({ block: 'center' })");
        browser.value("document.querySelector('.pair button[aria-label=\"zoom in\"]').click()");
        let after = browser.value(spans);
        assert_eq!(after[0], after[1]);
        assert!(after[0].as_f64() < before[0].as_f64(), "{after}");
        assert_eq!(browser.value("rowmill.errors.length"), 0);
        assert_eq!(browser.complaints(), Vec::<String>::new());
    }
}

#[test]
fn tables_sort_and_rows_open() {
    let Some(mut browser) = Browser::open(&page(&small(), &PageOrigin::File), "light") else {
        return;
    };
    browser.value("rowmill.open('gpu')");
    let head = "[...document.querySelectorAll('#panel-gpu th')].find((th) => th.innerText.startsWith('count'))";
    browser.value(&format!("{head}.firstChild.click()"));
    assert_eq!(browser.value(&format!("{head}.getAttribute('aria-sort')")), "descending");
    browser.value("document.querySelector('#panel-gpu .expand').click()");
    let detail = browser.value("document.querySelector('#panel-gpu td.detail').innerText");
    assert!(detail.as_str().unwrap().contains("80x1x1"), "{detail}");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// The page must follow the protocol of ui.perfetto.dev: it sends pings until the window answers,
/// and then posts the bytes.
#[test]
fn trace_is_sent_once_the_other_window_answers() {
    let server =
        PageOrigin::Server { trace: "/secret/t.pftrace".into(), file_name: "t.pftrace".into() };
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
    // Answers from other origins must be ignored.
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
    assert!(said.as_str().unwrap().contains("sent 5 B"), "{said}");
}

#[test]
fn all_plots_of_a_training_run_show_the_same_step() {
    let page = html::training_page(&training()).unwrap();
    for scheme in ["light", "dark"] {
        let Some(mut browser) = Browser::open(&page, scheme) else { return };
        let verdict = browser.value("document.getElementById('verdict').innerText");
        let expected = "Held-out AUC is best at step 1,250: 0.8000. 3 evaluations followed, none \
                        better; the last is at 0.7925.";
        assert_eq!(verdict, expected);
        let shown = browser.value("document.body.innerText").as_str().unwrap().to_owned();
        assert!(shown.contains(HOSTILE) && shown.contains("overfits"), "{shown}");
        assert!(shown.contains("4 ranks · 2 replica groups · 1 host"), "{shown}");
        assert_eq!(browser.value("document.querySelectorAll('.curve-card').length"), 8);
        // The cursor is moved to the middle of the first plot.
        let moved = "(() => { const picture = document.querySelector('.curve-card svg'); \
                     const box = picture.getBoundingClientRect(); \
                     picture.dispatchEvent(new PointerEvent('pointermove', \
                     { clientX: box.left + box.width * 296 / 560 })); \
                     return [...document.querySelectorAll('.readout')].map((one) => one.innerText); })()";
        let read = browser.value(moved);
        let read: Vec<&str> = read.as_array().unwrap().iter().filter_map(|r| r.as_str()).collect();
        assert!(read.iter().all(|text| text.starts_with("step 1,000: ")), "{read:?}");
        assert_eq!(read[0], "step 1,000: training 0.3907, held-out 0.4225");
        // Opening the row of a table must add two plots.
        browser.value("document.querySelector('.expand').click()");
        assert_eq!(browser.value("document.querySelectorAll('.curve-card').length"), 10);
        if let Some(folder) = std::env::var_os("ROWMILL_SCREENSHOTS").map(PathBuf::from) {
            std::fs::create_dir_all(&folder).unwrap();
            browser.picture(&folder.join(format!("training-{scheme}.png")));
        }
        assert_eq!(browser.complaints(), Vec::<String>::new());
    }
}

/// The frame rate is printed but not checked, because other programs share the machine.
#[test]
fn timeline_with_200000_events_moves() {
    let Some(mut browser) = Browser::open(&page(&large(), &PageOrigin::File), "light") else {
        return;
    };
    browser.value("rowmill.open('timeline')");
    let measured = browser.value("rowmill.timeline.measure(4000)");
    println!("200 k events: {measured}");
    assert!(measured["events"].as_u64().unwrap() > 190_000, "{measured}");
    assert!(measured["frames"].as_u64().unwrap() > 3, "{measured}");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn page_of_eight_ranks_opens_without_errors() {
    let Some(job) = dlrm8() else { return };
    let page = titled(&job, &PageOrigin::File, "DLRM on eight ranks");
    for scheme in ["light", "dark"] {
        let Some(mut browser) = Browser::open(&page, scheme) else { return };
        // The search runs from another tab, before the timeline is drawn for the first time.
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
