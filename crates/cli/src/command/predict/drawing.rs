//! Draws mean and deviation of overheads as an SVG, with a panel per kind of overhead and a bar per
//! source.

use std::fmt::Write;

use predict::overheads::OverheadRow;
use predict::program::OVERHEADS;

use setup::render;

const WIDTH: f64 = 760.0;
const PANEL: f64 = 132.0;
const LEFT: f64 = 64.0;
const BASE: f64 = 96.0;
const HIGH: f64 = 70.0;

/// Draws the rows that contain the totals of all operators.
pub fn draw_overheads(rows: &[OverheadRow]) -> String {
    let panels = OVERHEADS.len() as f64;
    let height = panels * PANEL + 12.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for (at, overhead) in OVERHEADS.iter().enumerate() {
        let of_kind: Vec<&OverheadRow> =
            rows.iter().filter(|row| row.overhead == *overhead && row.operator.is_none()).collect();
        let top = at as f64 * PANEL;
        draw_panel(&mut svg, overhead.name(), top, &of_kind);
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_panel(svg: &mut String, name: &str, top: f64, rows: &[&OverheadRow]) {
    let reach = rows.iter().map(|row| row.mean_ns + row.std_ns).fold(1.0, f64::max);
    let scale = HIGH / reach;
    let base = top + BASE;
    // Writing to a `String` cannot fail, so the result is ignored.
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"bold\">{name}</text>\n\
         <line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{base:.1}\" y2=\"{base:.1}\" stroke=\"#888\"/>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{}</text>\n\
         <text x=\"{:.1}\" y=\"{base:.1}\" text-anchor=\"end\" fill=\"#555\">0</text>",
        top + 18.0,
        WIDTH - 10.0,
        LEFT - 6.0,
        base - HIGH + 4.0,
        render::nanos(reach),
        LEFT - 6.0,
    );
    let step = (WIDTH - LEFT - 20.0) / rows.len().max(1) as f64;
    let bar = (step * 0.5).min(40.0);
    for (at, row) in rows.iter().enumerate() {
        let middle = LEFT + (at as f64 + 0.5) * step;
        let mean = base - row.mean_ns * scale;
        let (low, high) = (
            base - (row.mean_ns - row.std_ns).max(0.0) * scale,
            base - (row.mean_ns + row.std_ns) * scale,
        );
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{mean:.1}\" width=\"{bar:.1}\" height=\"{:.1}\" \
             fill=\"#4878a8\"><title>{}: {} ± {}</title></rect>\n\
             <line x1=\"{middle:.1}\" x2=\"{middle:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\" \
             stroke=\"#222\"/>\n\
             <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            middle - bar / 2.0,
            (row.mean_ns * scale).max(0.5),
            escaped(&row.source),
            render::nanos(row.mean_ns),
            render::nanos(row.std_ns),
            base + 14.0,
            escaped(&row.source),
        );
    }
}

/// Escapes a text so that it can be inserted into an SVG.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
