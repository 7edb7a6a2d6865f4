//! Draws the miss ratios of caches by their size as an SVG, with a line per table.

use std::fmt::Write;

use schema::Share;
use schema::unit::counted;

use crate::command::plan::axis::round_ticks;
use crate::command::predict::drawing::escaped;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 180.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 44.0;
/// Distance between two lines of the legend, in pixels.
const LINE: f64 = 15.0;
/// Number of tables that the legend names, which are the first ones.
const NAMED: usize = 20;
/// Most labels of the axis of miss ratios besides that of 0.
const TICKS: usize = 5;
/// Colors of tables in their order. Color-blind readers can distinguish them.
const COLORS: [&str; 8] =
    ["#4878a8", "#d1822c", "#3f8f5a", "#b0413e", "#7a5ea8", "#7b5b46", "#c26fa3", "#6b6b6b"];

/// The curve of one table.
pub struct DrawnCurve<'a> {
    pub table: &'a str,
    pub points: Vec<DrawnPoint>,
}

/// The misses of a cache of one size.
pub struct DrawnPoint {
    /// Size of the cache, as a share of the rows of the table.
    pub share: f64,
    pub miss_ratio: f64,
}

/// Draws the curves of all tables. The horizontal axis is logarithmic.
pub fn draw(curves: &[DrawnCurve<'_>]) -> String {
    let shares = || curves.iter().flat_map(|curve| &curve.points).map(|point| point.share);
    let least = shares().fold(1.0, f64::min);
    let most = shares().fold(least, f64::max).max(least * 2.0);
    let x = |share: f64| LEFT + (share / least).ln() / (most / least).ln() * (WIDTH - LEFT - RIGHT);
    let ratios = curves.iter().flat_map(|curve| &curve.points).map(|point| point.miss_ratio);
    let highest = ratios.fold(0.0, f64::max).max(0.01);
    let y = |ratio: f64| HEIGHT - BOTTOM - ratio / highest * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for tick in round_ticks(highest, 0.01, TICKS) {
        let right = WIDTH - RIGHT;
        // Writing to a `String` cannot fail, so the result is ignored.
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{}</text>",
            LEFT - 6.0,
            y(tick) + 4.0,
            Share(tick),
            at = y(tick),
        );
    }
    let mut ticks: Vec<f64> = shares().collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    for share in ticks {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{}</text>",
            x(share),
            HEIGHT - BOTTOM + 16.0,
            Share(share),
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.1}\" fill=\"#555\">rows in the cache, of the rows of the \
         table</text>\n<text x=\"{LEFT}\" y=\"{:.1}\" fill=\"#555\">rows of a batch that are not \
         in the cache</text>",
        HEIGHT - 10.0,
        TOP - 10.0,
    );
    for (at, curve) in curves.iter().enumerate() {
        let color = COLORS[at % COLORS.len()];
        let name = escaped(curve.table);
        let point =
            |point: &DrawnPoint| format!("{:.1},{:.1}", x(point.share), y(point.miss_ratio));
        let points: Vec<String> = curve.points.iter().map(point).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\">\
             <title>{name}</title></polyline>",
            points.join(" "),
        );
        // A line with a single point is not drawn, so each point has a dot.
        for DrawnPoint { share, miss_ratio } in &curve.points {
            let (x, y) = (x(*share), y(*miss_ratio));
            let _ =
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{color}\"/>");
        }
        if at < NAMED {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{color}\">{name}</text>",
                WIDTH - RIGHT + 12.0,
                TOP + at as f64 * LINE,
            );
        }
    }
    if let Some(others) = curves.len().checked_sub(NAMED + 1) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"#555\">and {}</text>",
            WIDTH - RIGHT + 12.0,
            TOP + NAMED as f64 * LINE,
            counted(others as u64 + 1, "more table"),
        );
    }
    svg.push_str("</svg>\n");
    svg
}
