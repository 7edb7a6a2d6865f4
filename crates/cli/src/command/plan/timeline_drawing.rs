//! Draws simulated steps as an SVG: the host threads and device queues of the first and of the last
//! case on one scale, and the steps of all cases as bars.

use std::fmt::Write;

use plan::at_scale::SimulatedCase;
use plan::launched::{LaunchQueue, LaunchedStage};
use setup::render;

use super::axis::round_ticks;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 205.0;
const RIGHT: f64 = 110.0;
const ROW: f64 = 24.0;
const BAR: f64 = 16.0;
/// Number of names in a line of the legend.
const LEGEND_COLUMNS: usize = 4;
/// Most labels of a time axis besides that of 0.
const TICKS: usize = 10;
/// Color of the time for which a thread waits.
const WAITING: &str = "#e4b7b7";
/// Kinds of stages with their colors.
const KINDS: [(&str, &str); 6] = [
    ("copy", "#8c8c8c"),
    ("input_distribution", "#c0504d"),
    ("lookup, embedding_update", "#6aa56a"),
    ("pooled_exchange, gradient_exchange", "#d98a3d"),
    ("dense", "#4878a8"),
    ("all_reduce, dense_update", "#8a6bb1"),
];

/// Draws the cases below each other.
pub fn draw(cases: &[SimulatedCase]) -> String {
    let mut body = String::new();
    let mut top = 16.0;
    let ends: &[usize] = match cases.len() {
        0 => &[],
        1 => &[0],
        count => &[0, count - 1],
    };
    let reach = ends.iter().map(|at| end_of(&cases[*at])).fold(1.0, f64::max);
    for at in ends {
        draw_timeline(&mut body, &cases[*at], reach, &mut top);
    }
    draw_legend(&mut body, &mut top);
    draw_bars(&mut body, cases, &mut top);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {top}\" \
         width=\"{WIDTH}\" height=\"{top}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

/// Returns the time by which host threads are shifted. A host that does not wait for the device
/// runs ahead by many steps, and is drawn within the step before its stages run.
fn host_shift(case: &SimulatedCase) -> f64 {
    let begins = case.step.stages.iter().map(|times| times.begin);
    let first = begins.fold(f64::INFINITY, f64::min);
    let step = case.step.step_ns.max(1.0);
    if first.is_finite() { (first / step).floor().max(0.0) * step } else { 0.0 }
}

fn end_of(case: &SimulatedCase) -> f64 {
    let shift = host_shift(case);
    let ends = case.step.stages.iter().map(|times| times.host_end.max(times.end - shift));
    ends.fold(0.0, f64::max)
}

fn kind(stage: &LaunchedStage) -> usize {
    let name = stage.name.split(' ').next().unwrap_or_default();
    match name {
        "copy" => 0,
        "input_distribution" => 1,
        "lookup" | "embedding_update" => 2,
        "pooled_exchange" | "gradient_exchange" | "group_exchange" | "row_terms" => 3,
        "all_reduce" | "dense_update" => 5,
        _ => 4,
    }
}

fn draw_timeline(svg: &mut String, case: &SimulatedCase, reach: f64, top: &mut f64) {
    let scale = (WIDTH - LEFT - RIGHT) / reach;
    let shift = host_shift(case);
    let ahead = if shift > 0.0 { ", the host runs further ahead" } else { "" };
    text(
        svg,
        12.0,
        *top + 12.0,
        &format!(
            "<tspan font-weight=\"bold\">{}</tspan>: one step of {}{ahead}",
            case.row.case,
            render::nanos(case.row.step_ns)
        ),
    );
    *top += 22.0;
    let first = *top;
    let threads = case.stages.iter().map(|stage| stage.thread + 1).max().unwrap_or(0);
    let timed = || case.stages.iter().zip(&case.step.stages);
    for thread in 0..threads {
        text(svg, 12.0, *top + 13.0, &format!("host thread {thread}"));
        for (stage, times) in timed().filter(|(stage, _)| stage.thread == thread) {
            let color = KINDS[kind(stage)].1;
            let launch = [times.launch_begin * scale, times.launch_end * scale];
            rectangle(svg, *top, launch, color, &format!("launch {}", stage.name));
            let wait = [times.launch_end * scale, times.host_end * scale];
            rectangle(svg, *top, wait, WAITING, &format!("wait for {}", stage.name));
        }
        *top += ROW;
    }
    for queue in LaunchQueue::ALL {
        text(svg, 12.0, *top + 13.0, queue.name());
        for (stage, times) in timed().filter(|(stage, _)| stage.queue == queue) {
            let end = times.end.min(times.begin + stage.device_ns);
            let span = [(times.begin - shift) * scale, (end - shift) * scale];
            rectangle(svg, *top, span, KINDS[kind(stage)].1, &stage.name);
        }
        *top += ROW;
    }
    draw_axis(svg, reach, [first, *top]);
    *top += 30.0;
}

/// Draws the time axis below rows, with a line through the rows at each label.
fn draw_axis(svg: &mut String, reach: f64, [first, base]: [f64; 2]) {
    let scale = (WIDTH - LEFT - RIGHT) / reach;
    for tick in round_ticks(reach, 1.0, TICKS) {
        let x = LEFT + tick * scale;
        let label = if tick > 0.0 { render::nanos(tick) } else { "0".to_owned() };
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{first:.1}\" y2=\"{:.1}\" \
             stroke=\"#888\" stroke-opacity=\"0.35\"/>\n\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{label}</text>",
            base + 3.0,
            base + 15.0,
        );
    }
}

fn draw_legend(svg: &mut String, top: &mut f64) {
    let waiting = [("thread waits", WAITING)];
    for (at, (name, color)) in KINDS.into_iter().chain(waiting).enumerate() {
        let left = 12.0 + 232.0 * (at % LEGEND_COLUMNS) as f64;
        if at > 0 && at % LEGEND_COLUMNS == 0 {
            *top += 18.0;
        }
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{:.1}\" width=\"11\" height=\"11\" fill=\"{color}\"/>",
            *top + 2.0
        );
        text(svg, left + 16.0, *top + 12.0, name);
    }
    *top += 34.0;
}

fn draw_bars(svg: &mut String, cases: &[SimulatedCase], top: &mut f64) {
    text(svg, 12.0, *top, "<tspan font-weight=\"bold\">Step by case</tspan> (line: published)");
    *top += 10.0;
    let longest =
        cases.iter().map(|case| case.row.step_ns.max(case.row.published_ns.unwrap_or(0.0)));
    let reach = longest.fold(1.0, f64::max);
    let scale = (WIDTH - LEFT - RIGHT) / reach;
    let first = *top;
    for case in cases {
        text(svg, 12.0, *top + 13.0, &case.row.case);
        let end = case.row.step_ns * scale;
        rectangle(svg, *top, [0.0, end], "#4878a8", &case.row.case);
        if let Some(published) = case.row.published_ns {
            let at = published * scale;
            rectangle(svg, *top, [at - 1.0, at + 1.0], "#222", "published");
        }
        let label = LEFT + end.max(case.row.published_ns.unwrap_or(0.0) * scale) + 6.0;
        text(svg, label, *top + 13.0, &render::nanos(case.row.step_ns));
        *top += ROW;
    }
    draw_axis(svg, reach, [first, *top]);
    *top += 26.0;
}

/// Draws text that is already valid XML.
fn text(svg: &mut String, left: f64, base: f64, content: &str) {
    let _ = writeln!(svg, "<text x=\"{left:.1}\" y=\"{base:.1}\">{content}</text>");
}

/// Draws a bar of a row between two distances from the left edge of the plot.
fn rectangle(svg: &mut String, top: f64, [from, to]: [f64; 2], color: &str, title: &str) {
    if to <= from {
        return;
    }
    let _ = writeln!(
        svg,
        "<rect x=\"{:.2}\" y=\"{top:.1}\" width=\"{:.2}\" height=\"{BAR}\" fill=\"{color}\">\
         <title>{title}</title></rect>",
        LEFT + from,
        to - from,
    );
}
