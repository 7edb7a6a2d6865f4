//! Draws a plan as an SVG: the time of each rank by stage, and its memory by purpose below.

use std::fmt::Write;

use crate::command::predict::drawing::escaped;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 150.0;
const PANEL: f64 = 206.0;
const HIGH: f64 = 130.0;
const COLORS: [&str; 6] = ["#4878a8", "#6aa56a", "#d98a3d", "#8a6bb1", "#b5b5b5", "#dddddd"];

/// A panel with a stacked bar for each rank.
pub struct Panel<'a> {
    pub title: &'a str,
    /// Name of each part of a bar, from the bottom.
    pub parts: &'a [&'a str],
    /// Values of each rank, in the order of `parts`.
    pub bars: Vec<Vec<f64>>,
    /// A value at which a line is drawn, with its name.
    pub limit: Option<(&'a str, f64)>,
    pub format: fn(f64) -> String,
}

/// Draws the panels below each other.
pub fn draw(panels: &[Panel<'_>]) -> String {
    let height = panels.len() as f64 * PANEL + 14.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for (at, panel) in panels.iter().enumerate() {
        draw_panel(&mut svg, panel, at as f64 * PANEL);
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_panel(svg: &mut String, panel: &Panel<'_>, top: f64) {
    let highest = panel.bars.iter().map(|bar| bar.iter().sum()).fold(0.0, f64::max);
    // A limit far above all bars would flatten them, so it is only drawn near them.
    let limit = panel.limit.filter(|(_, value)| *value <= 2.0 * highest);
    let reach = limit.map_or(highest, |(_, value)| highest.max(value)).max(1.0);
    let (scale, base) = (HIGH / reach, top + 34.0 + HIGH);
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
    for quarter in 0..=4 {
        let share = f64::from(quarter) / 4.0;
        let y = base - share * HIGH;
        let label = if quarter == 0 { "0".to_owned() } else { (panel.format)(share * reach) };
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{end:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{label}</text>",
            LEFT - 6.0,
            y + 4.0,
        );
    }
    let step = (end - LEFT) / panel.bars.len().max(1) as f64;
    let width = (0.8 * step).min(48.0);
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
    if let Some((name, value)) = limit {
        let y = base - value * scale;
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{end:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#b33\" \
             stroke-dasharray=\"4 3\"/>\n<text x=\"{:.1}\" y=\"{:.1}\" fill=\"#b33\">{name}</text>",
            end + 6.0,
            y + 4.0,
        );
    }
    for (at, part) in panel.parts.iter().enumerate() {
        let y = base - HIGH + 30.0 + 16.0 * at as f64;
        let color = COLORS[at % COLORS.len()];
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{color}\"/>\n\
             <text x=\"{:.1}\" y=\"{y:.1}\">{part}</text>",
            end + 6.0,
            y - 9.0,
            end + 21.0,
        );
    }
}
