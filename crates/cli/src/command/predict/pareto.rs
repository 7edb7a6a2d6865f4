//! Draws the steps of a sweep as an SVG, with samples per second on one axis and memory on the
//! other. There is a panel per model and pooling factor, and in it a line along the Pareto front of
//! each number of ranks.

use std::fmt::Write;
use std::ops::Range;

use predict::step::SweepRow;
use schema::TableRow;
use serde::Serialize;

use super::drawing::escaped;
use setup::render;

const WIDTH: f64 = 760.0;
const PANEL: f64 = 330.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 34.0;
const HIGH: f64 = 240.0;
/// Height of a line of the legend, in pixels.
const LINE: f64 = 18.0;
/// Size of a letter in pixels, with the distance to the next one.
const LETTER: DrawnAt = DrawnAt { x: 6.6, y: 12.0 };
/// Colors of devices in the order of the list. Color-blind readers can distinguish them.
const COLOURS: [&str; 8] =
    ["#4878a8", "#d1822c", "#3f8f5a", "#b0413e", "#7a5ea8", "#7b5b46", "#c26fa3", "#6b6b6b"];

/// A row of a sweep, with its number of ids per bag.
#[derive(Serialize, TableRow)]
pub struct PooledRow {
    pub pooling: u32,
    #[serde(flatten)]
    pub step: SweepRow,
}

/// The position of a point in the drawing, in pixels.
#[derive(Clone, Copy)]
struct DrawnAt {
    x: f64,
    y: f64,
}

/// Draws all rows of a sweep as an SVG.
pub fn draw_frontier(rows: &[PooledRow]) -> String {
    let devices = distinct(rows.iter().map(|row| row.step.hardware.as_str()));
    let panels = distinct(rows.iter().map(|row| (row.step.model.as_str(), row.pooling)));
    let legend = LINE * devices.len().div_ceil(6) as f64 + 30.0;
    let height = panels.len() as f64 * PANEL + legend;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for (at, (model, pooling)) in panels.iter().enumerate() {
        let is_here = |row: &&PooledRow| row.step.model == *model && row.pooling == *pooling;
        let own: Vec<&PooledRow> = rows.iter().filter(is_here).collect();
        let ids = render::counted(u64::from(*pooling), "id");
        let title = format!("{model}, {ids} a bag");
        let top = at as f64 * PANEL;
        heading(&mut svg, &title, top);
        panel(&mut svg, top, &own, &devices);
    }
    key(&mut svg, panels.len() as f64 * PANEL, &devices);
    svg.push_str("</svg>\n");
    svg
}

/// Removes duplicate values and keeps the order.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for value in values {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

fn colour(device: &str, devices: &[&str]) -> &'static str {
    let at = devices.iter().position(|known| *known == device).unwrap_or_default();
    COLOURS[at % COLOURS.len()]
}

/// A logarithmic axis of a panel, from the value `least` to the value `most`.
struct Axis {
    least: f64,
    most: f64,
    /// Coordinates of `least` and `most` in the drawing.
    ends: Range<f64>,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64> + Clone, ends: Range<f64>) -> Self {
        let least = values.clone().fold(f64::INFINITY, f64::min).max(1.0);
        let most = values.fold(least, f64::max);
        // A margin is added around the values, and the axis spans at least a factor of two.
        let room = (2.0 * least / most).sqrt().max(1.2);
        Self { least: least / room, most: most * room, ends }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.max(1.0) / self.least).ln() / (self.most / self.least).ln();
        self.ends.start + share * (self.ends.end - self.ends.start)
    }

    /// Returns round values for ticks: powers of `base`, and also multiples of the powers if fewer
    /// than three powers are in range.
    fn ticks(&self, base: f64, multiples: &[f64]) -> Vec<f64> {
        let first = self.least.log(base).floor() as i32;
        let last = self.most.log(base).ceil() as i32;
        let ticks = |multiples: &[f64]| -> Vec<f64> {
            (first..=last)
                .flat_map(|power| multiples.iter().map(move |by| by * base.powi(power)))
                .filter(|value| (self.least..=self.most).contains(value))
                .collect()
        };
        let few = ticks(&[1.0]);
        if few.len() < 3 { ticks(multiples) } else { few }
    }
}

fn heading(svg: &mut String, title: &str, top: f64) {
    // Writing to a `String` cannot fail, so the result is ignored.
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>\n\
         <text x=\"{LEFT}\" y=\"{:.1}\" fill=\"#555\">samples/s</text>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">memory of the fullest \
         rank</text>",
        top + 16.0,
        escaped(title),
        top + TOP - 4.0,
        WIDTH - RIGHT,
        top + TOP + HIGH + 30.0,
    );
}

fn panel(svg: &mut String, top: f64, rows: &[&PooledRow], devices: &[&str]) {
    let base = top + TOP + HIGH;
    let bytes = Axis::new(rows.iter().map(|row| row.step.peak_bytes as f64), LEFT..WIDTH - RIGHT);
    let speeds = Axis::new(rows.iter().map(|row| row.step.samples_per_s), base..top + TOP);
    for value in bytes.ticks(2.0, &[1.0, 1.25, 1.5, 1.75]) {
        let x = bytes.at(value);
        let label = schema::Bytes(value as u64);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{base:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{label}</text>",
            top + TOP,
            base + 15.0,
        );
    }
    for value in speeds.ticks(10.0, &[1.0, 2.0, 3.0, 5.0]) {
        let y = speeds.at(value);
        let label = render::count(value as u64);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{label}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0,
        );
    }
    let place = |row: &PooledRow| DrawnAt {
        x: bytes.at(row.step.peak_bytes as f64),
        y: speeds.at(row.step.samples_per_s),
    };
    front(svg, rows, &place);
    for row in rows {
        point(svg, row, place(row), colour(&row.step.hardware, devices));
    }
}

/// A text beside a point, which ends at the point.
struct Label {
    end: DrawnAt,
    width: f64,
}

impl Label {
    fn overlaps(&self, other: &Self) -> bool {
        let begins = self.end.x - self.width < other.end.x;
        let is_beside = begins && other.end.x - other.width < self.end.x;
        is_beside && (self.end.y - other.end.y).abs() < LETTER.y
    }
}

/// Draws the Pareto front as a line per number of ranks, labelled with batch sizes.
fn front(svg: &mut String, rows: &[&PooledRow], place: &dyn Fn(&PooledRow) -> DrawnAt) {
    let mut best: Vec<&PooledRow> = rows.iter().copied().filter(|row| row.step.is_best).collect();
    best.sort_by_key(|row| (row.step.ranks, row.step.peak_bytes));
    let mut labels: Vec<Label> = Vec::new();
    for of_ranks in best.chunk_by(|a, b| a.step.ranks == b.step.ranks) {
        let mut path = String::new();
        for (at, row) in of_ranks.iter().enumerate() {
            let at_row = place(row);
            let DrawnAt { x, y } = at_row;
            // The front is drawn as a staircase, first along the axis of memory and then along the
            // axis of speed.
            let _ = match at {
                0 => write!(path, "M{x:.1} {y:.1}"),
                _ => write!(path, "H{x:.1}V{y:.1}"),
            };
            let text = render::count(row.step.batch_size as u64);
            let label = Label { end: at_row, width: LETTER.x * text.len() as f64 };
            if labels.iter().any(|other| label.overlaps(other)) {
                continue;
            }
            labels.push(label);
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                x - 8.0,
                y - 4.0,
            );
        }
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"#999\" stroke-width=\"1.5\"/>"
        );
    }
}

fn point(svg: &mut String, row: &PooledRow, place: DrawnAt, colour: &str) {
    let step = &row.step;
    let (fill, radius) = match (step.fits, step.is_best) {
        (false, _) => ("#fff", 3.0),
        (true, false) => (colour, 3.0),
        (true, true) => (colour, 5.0),
    };
    let fits = if step.fits { "" } else { ", does not fit" };
    let _ = writeln!(
        svg,
        "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\" fill=\"{fill}\" stroke=\"{colour}\">\
         <title>{}, B {}: {} samples/s, step {}, {}{fits}</title></circle>",
        place.x,
        place.y,
        escaped(&step.hardware),
        step.batch_size,
        render::count(step.samples_per_s as u64),
        render::nanos(step.step_ns),
        schema::Bytes(step.peak_bytes),
    );
}

fn key(svg: &mut String, top: f64, devices: &[&str]) {
    const COLUMN: f64 = 110.0;
    for (at, device) in devices.iter().enumerate() {
        let (column, line) = ((at % 6) as f64, (at / 6) as f64);
        let (x, y) = (LEFT + column * COLUMN, top + 10.0 + line * LINE);
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{}\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            colour(device, devices),
            x + 8.0,
            y + 4.0,
            escaped(device),
        );
    }
    let y = top + 14.0 + LINE * devices.len().div_ceil(6) as f64;
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{y:.1}\" fill=\"#555\">large: on the Pareto front, with batch \
         size; line: same number of ranks; hollow: does not fit; all predicted</text>"
    );
}
