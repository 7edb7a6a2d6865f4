//! Shows the progress of long work on stderr, as a bar on a terminal and as periodic lines
//! elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use schema::Bytes;

use crate::render::{self, Console};

/// Time before the first plain line is printed, so that short work prints nothing.
const FIRST_LINE: Duration = Duration::from_secs(2);
/// Time between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The unit in which progress is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressUnit {
    /// Bytes of a file that is read or written.
    Bytes,
    Rows,
    Steps,
    /// Random draws of an interval.
    Draws,
    /// Measurements of configurations or of tables.
    Measurements,
    /// Sharding plans that a search prices.
    Plans,
}

/// The progress of one task, which is shown as a bar or as plain lines.
pub struct Meter {
    console: Console,
    what: String,
    unit: ProgressUnit,
    first: u64,
    total: Option<u64>,
    bar: Option<ProgressBar>,
    started: Instant,
    next_line: Instant,
}

impl Meter {
    /// Starts counting the progress of `what`. Without a `total`, no remaining time is shown.
    pub fn start(console: Console, what: &str, unit: ProgressUnit, total: Option<u64>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| bar(what, unit, total));
        let started = Instant::now();
        let next_line = started + FIRST_LINE;
        Self { console, what: what.to_owned(), unit, first: 0, total, bar, started, next_line }
    }

    /// Starts counting at `done`, which is the work of an earlier run and does not count in the
    /// rate.
    pub fn from(mut self, done: u64) -> Self {
        self.first = done;
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.reset_eta();
        }
        self
    }

    /// Makes the next plain line appear after `wait` at the latest.
    pub fn show_within(&mut self, wait: Duration) {
        self.next_line = self.next_line.min(Instant::now() + wait);
    }

    /// Reports that `done` units are finished. The text `more` is shown after the number of units.
    pub fn advance(&mut self, done: u64, more: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(more.to_owned());
            return;
        }
        let now = Instant::now();
        if now >= self.next_line {
            self.next_line = now + LINE_EVERY;
            self.console.say(self.line(done, more));
        }
    }

    /// Shows `text` next to the bar. Without a bar, the text is not shown.
    pub fn note(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
        }
    }

    /// Sets the total if it was unknown at the start.
    pub fn set_total(&mut self, total: Option<u64>) {
        if self.total != total {
            self.total = total;
            if let (Some(bar), Some(total)) = (&self.bar, total) {
                bar.set_length(total);
                bar.set_style(style(self.unit, Some(total)));
            }
        }
    }

    /// Prints a line without disturbing the bar.
    pub fn say(&self, text: impl std::fmt::Display) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.console.say(text)),
            None => self.console.say(text),
        }
    }

    /// Removes the bar and returns the elapsed seconds.
    pub fn finish(self) -> f64 {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.started.elapsed().as_secs_f64()
    }

    fn line(&self, done: u64, more: &str) -> String {
        let seconds = self.started.elapsed().as_secs_f64().max(1e-9);
        let rate = done.saturating_sub(self.first) as f64 / seconds;
        let mut line = format!("{}: {}", self.what, self.amount(done));
        if let Some(total) = self.total.filter(|&total| total > 0) {
            let left = total.saturating_sub(done) as f64 / rate.max(1e-9);
            line += &format!(
                " of {} ({:.0} %), {} left",
                self.amount(total),
                100.0 * done as f64 / total as f64,
                render::duration(left)
            );
        }
        line += &format!(", {}/s", self.amount(rate as u64));
        if !more.is_empty() {
            line += &format!(", {more}");
        }
        line
    }

    fn amount(&self, amount: u64) -> String {
        match self.unit {
            ProgressUnit::Bytes => Bytes(amount).to_string(),
            ProgressUnit::Rows => render::counted(amount, "row"),
            ProgressUnit::Steps => render::counted(amount, "step"),
            ProgressUnit::Draws => render::counted(amount, "draw"),
            ProgressUnit::Measurements => render::counted(amount, "measurement"),
            ProgressUnit::Plans => render::counted(amount, "plan"),
        }
    }
}

fn bar(what: &str, unit: ProgressUnit, total: Option<u64>) -> ProgressBar {
    let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    bar.set_style(style(unit, total));
    bar.set_prefix(what.to_owned());
    bar
}

/// Returns the layout of the progress line. The bar fills the width that the texts leave.
fn style(unit: ProgressUnit, total: Option<u64>) -> ProgressStyle {
    let (done, all, rate) = match unit {
        ProgressUnit::Bytes => ("{bytes}", "{total_bytes}", "{bytes_per_sec}  "),
        ProgressUnit::Rows => ("{human_pos}", "{human_len}", "{per_second}  "),
        // For steps, the message contains the rate in samples per second instead.
        _ => ("{human_pos}", "{human_len}", ""),
    };
    let template = match total {
        Some(_) => format!("{{prefix}} {{wide_bar}} {done} of {all}  {rate}{{eta}} left  {{msg}}"),
        None => format!("{{prefix}} {{spinner}} {done}  {rate}{{msg}}"),
    };
    let style = ProgressStyle::with_template(&template);
    style.unwrap_or_else(|_| ProgressStyle::default_bar()).with_key("per_second", per_second)
}

fn per_second(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    // A closed terminal must not stop the work, so the error is ignored.
    let _ = write!(out, "{} rows/s", render::count(state.per_sec() as u64));
}
