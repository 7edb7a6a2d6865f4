//! Draws the errors of a suite's predicted steps as an SVG. Each job has a group of bars and its
//! measured time, as in Figures 9 and 10 of arXiv:2201.07821.

use std::fmt::Write;

use super::drawing::escaped;
use super::suite_jobs::JobErrorRow;
use setup::render;

const LEFT: f64 = 330.0;
const HALF: f64 = 200.0;
const BAR: f64 = 7.0;
const TOP: f64 = 44.0;
/// Errors beyond this many percent are cut off.
const MOST_PCT: f64 = 100.0;
/// The drawn errors, with their colors.
const BARS: [(&str, &str); 3] =
    [("active", "#4878a8"), ("E2E", "#6aa84f"), ("kernel only", "#c0504d")];

/// Draws one group of bars per row: first models with embeddings, then all others.
pub fn draw_errors(rows: &[JobErrorRow]) -> String {
    let mut rows: Vec<&JobErrorRow> = rows.iter().collect();
    rows.sort_by_key(|row| !row.is_recommender);
    let group = BAR * BARS.len() as f64 + 8.0;
    let (width, height) = (LEFT + 2.0 * HALF + 20.0, TOP + group * rows.len() as f64 + 12.0);
    let zero = LEFT + HALF;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    // Writing to a `String` cannot fail, so the results are ignored.
    for (at, (name, color)) in BARS.iter().enumerate() {
        let x = LEFT + at as f64 * 100.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"8\" width=\"10\" height=\"10\" fill=\"{color}\"/>\n\
             <text x=\"{}\" y=\"17\">{name}</text>",
            x + 14.0
        );
    }
    for tick in [-100.0, -50.0, 0.0, 50.0, 100.0] {
        let x = zero + HALF * tick / MOST_PCT;
        let _ = writeln!(
            svg,
            "<line x1=\"{x}\" x2=\"{x}\" y1=\"{TOP}\" y2=\"{height}\" stroke=\"#ddd\"/>\n\
             <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{tick} %</text>",
            TOP - 8.0
        );
    }
    for (at, row) in rows.iter().enumerate() {
        let top = TOP + group * at as f64 + 4.0;
        let rank = if row.rank > 0 { format!(", rank {}", row.rank) } else { String::new() };
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}{rank}, {}: \
             <tspan fill=\"#d98200\">{}</tspan></text>",
            LEFT - 6.0,
            top + BAR * 2.0,
            escaped(&row.job),
            escaped(&row.device),
            render::nanos(row.measured_ns),
        );
        let errors = [row.active_pct, Some(row.own_pct), row.kernel_only_pct];
        for (bar, (error, (name, color))) in errors.into_iter().zip(BARS).enumerate() {
            let Some(error) = error else { continue };
            let end = HALF * error.clamp(-MOST_PCT, MOST_PCT) / MOST_PCT;
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BAR}\" \
                 fill=\"{color}\"><title>{name}: {error:.1} %</title></rect>",
                zero + end.min(0.0),
                top + BAR * bar as f64,
                end.abs().max(0.5),
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}
