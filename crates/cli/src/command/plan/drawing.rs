//! Draws a plan as an SVG: the time of each rank by stage, and its memory by purpose below.

use std::fmt::Write;

use plan::PlanProblem;
use predict::step::{Stage, StepPrice};
use schema::Bytes;
use schema::unit::counted;
use setup::render;

use super::axis::{round_ticks, unit_of_bytes};
use crate::command::predict::drawing::escaped;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 190.0;
const HEAD: f64 = 54.0;
const PANEL: f64 = 226.0;
const HIGH: f64 = 150.0;
const COLORS: [&str; 5] = ["#4878a8", "#6aa56a", "#d98a3d", "#8a6bb1", "#999999"];
const LIMIT_COLOR: &str = "#b33";
/// Highest limit to which the axis reaches, relative to the highest bar. A limit above it is named
/// above the axis without a line, because bars would be too flat.
const REACHED: f64 = 2.5;
/// Most labels of the axis besides that of 0.
const TICKS: usize = 5;
/// Height of the axis above the highest bar if the limit is not on it.
const ABOVE: f64 = 1.2;

/// Draws time and memory of each rank. The gap between a bar and the line of the step is the time
/// for which the rank waits, for slower ranks or for the host.
pub fn draw_plan(problem: &PlanProblem<'_>, price: &StepPrice) -> String {
    let topology = problem.conditions.topology;
    let (step, capacity) = (price.cost.step.mean_ns, problem.capacity());
    let times = price.ranks.iter().map(|rank| {
        let stage_ns = |stage: Stage| rank.stages[stage as usize].mean_ns;
        let exchange_ns = Stage::EXCHANGES.into_iter().map(stage_ns).sum();
        let own = [stage_ns(Stage::Lookup), stage_ns(Stage::EmbeddingUpdate)];
        vec![own[0], own[1], exchange_ns, stage_ns(Stage::Dense)]
    });
    let memory = price.ranks.iter().map(|rank| {
        let memory = &rank.memory;
        let tables = [memory.table_weights, memory.table_states, memory.dense_parameters];
        let known: u64 = tables.iter().sum();
        let rest = memory.total().saturating_sub(known);
        tables.into_iter().chain([rest]).map(|bytes| bytes as f64).collect()
    });
    let title = format!(
        "{} on {} x {} {}",
        problem.config.model.name,
        counted(u64::from(topology.hosts), "host"),
        topology.ranks_per_host,
        topology.device.name
    );
    let is_host_bound = step > price.cost.device_ns;
    let subtitle = format!(
        "predicted step {}, {} samples/s; fullest rank {} of {}",
        render::nanos(step),
        render::count(price.samples_per_s.round() as u64),
        Bytes(price.cost.peak_bytes),
        Bytes(capacity)
    );
    let step_name = if is_host_bound { "step (host limits)" } else { "step" };
    draw(
        [&title, &subtitle],
        &[
            Panel {
                title: "Time of a step by rank",
                parts: &[
                    Stage::Lookup.name(),
                    Stage::EmbeddingUpdate.name(),
                    "all exchanges",
                    Stage::Dense.name(),
                ],
                bars: times.collect(),
                limit: PanelLimit { name: step_name, value: step },
                unit: 1.0,
                format: render::nanos,
            },
            Panel {
                title: "Memory by rank",
                parts: &["table weights", "optimizer states", "dense parameters", "other"],
                bars: memory.collect(),
                limit: PanelLimit { name: "capacity", value: capacity as f64 },
                unit: unit_of_bytes(price.cost.peak_bytes as f64),
                format: |bytes| Bytes(bytes as u64).to_string(),
            },
        ],
    )
}

/// A line across a panel that its bars should not cross.
struct PanelLimit<'a> {
    name: &'a str,
    value: f64,
}

/// A panel with a stacked bar for each rank.
struct Panel<'a> {
    title: &'a str,
    /// Name of each part of a bar, from the bottom.
    parts: &'a [&'a str],
    /// Values of each rank, in the order of `parts`.
    bars: Vec<Vec<f64>>,
    limit: PanelLimit<'a>,
    /// Value of which the labels of the axis are round multiples.
    unit: f64,
    format: fn(f64) -> String,
}

/// Draws the panels below each other, under a title and a subtitle.
fn draw([title, subtitle]: [&str; 2], panels: &[Panel<'_>]) -> String {
    let height = HEAD + panels.len() as f64 * PANEL + 14.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"26\" font-size=\"17\" font-weight=\"bold\">{}</text>\n\
         <text x=\"{LEFT}\" y=\"46\" fill=\"#444\">{}</text>\n",
        escaped(title),
        escaped(subtitle),
    );
    for (at, panel) in panels.iter().enumerate() {
        draw_panel(&mut svg, panel, HEAD + at as f64 * PANEL);
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_panel(svg: &mut String, panel: &Panel<'_>, top: f64) {
    let highest = panel.bars.iter().map(|bar| bar.iter().sum()).fold(0.0, f64::max);
    let is_on_axis = panel.limit.value <= REACHED * highest;
    let reach = if is_on_axis { highest.max(panel.limit.value) } else { ABOVE * highest }.max(1.0);
    let (scale, base) = (HIGH / reach, top + 42.0 + HIGH);
    let end = WIDTH - RIGHT;
    // Writing to a `String` cannot fail, so the results are ignored.
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>\n\
         <line x1=\"{LEFT}\" x2=\"{LEFT}\" y1=\"{base:.1}\" y2=\"{:.1}\" stroke=\"#888\"/>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">rank</text>",
        top + 20.0,
        escaped(panel.title),
        base - HIGH,
        (LEFT + end) / 2.0,
        base + 28.0,
    );
    for tick in round_ticks(reach, panel.unit, TICKS) {
        let y = base - tick * scale;
        let label = if tick > 0.0 { (panel.format)(tick) } else { "0".to_owned() };
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{end:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{label}</text>",
            LEFT - 6.0,
            y + 4.0,
        );
    }
    let step = (end - LEFT) / panel.bars.len().max(1) as f64;
    let width = (0.8 * step).min(72.0);
    for (rank, bar) in panel.bars.iter().enumerate() {
        let middle = LEFT + (rank as f64 + 0.5) * step;
        let mut bottom = base;
        for (part, value) in bar.iter().enumerate() {
            let high = value * scale;
            bottom -= high;
            let _ = writeln!(
                svg,
                "<rect x=\"{:.2}\" y=\"{bottom:.2}\" width=\"{width:.2}\" height=\"{high:.2}\" \
                 fill=\"{}\"><title>rank {rank}: {} {}</title></rect>",
                middle - width / 2.0,
                COLORS[part % COLORS.len()],
                panel.parts[part],
                (panel.format)(*value),
            );
        }
        // Labels of neighboring ranks must not overlap.
        let every = (26.0 / step).ceil().max(1.0) as usize;
        if rank % every == 0 {
            let _ = writeln!(
                svg,
                "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{rank}</text>",
                base + 14.0,
            );
        }
    }
    draw_limit(svg, panel, is_on_axis.then_some(base - panel.limit.value * scale), base - HIGH);
    for (at, part) in panel.parts.iter().enumerate() {
        // The legend lists the parts in the order of a bar, the highest one on top.
        let y = base - HIGH + 14.0 + 18.0 * (panel.parts.len() - 1 - at) as f64;
        let color = COLORS[at % COLORS.len()];
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{color}\"/>\n\
             <text x=\"{:.1}\" y=\"{y:.1}\">{part}</text>",
            end + 14.0,
            y - 9.0,
            end + 30.0,
        );
    }
}

/// Draws the line of a limit at `line`, or names a limit that is not on the axis above its `top`.
fn draw_limit(svg: &mut String, panel: &Panel<'_>, line: Option<f64>, top: f64) {
    let PanelLimit { name, value } = panel.limit;
    let end = WIDTH - RIGHT;
    let beyond = if line.is_some() { "" } else { " (beyond the axis)" };
    // Writing to a `String` cannot fail, so the results are ignored.
    if let Some(y) = line {
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{end:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" \
             stroke=\"{LIMIT_COLOR}\" stroke-width=\"1.5\" stroke-dasharray=\"5 3\"/>"
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{end:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"{LIMIT_COLOR}\">\
         {name} {}{beyond}</text>",
        line.unwrap_or(top) - 4.0,
        (panel.format)(value),
    );
}
