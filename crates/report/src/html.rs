//! Renders a report as one HTML file with markup, style, script and data, without external
//! resources.
//!
//! Names come from traces and are untrusted. The data is JSON in which no character can end the
//! enclosing element, and the script shows it only as text. A content security policy allows only
//! the script whose hash it contains.

#[cfg(test)]
mod tests;

use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::predicted::Predicted;
use crate::{DiffReport, Error, JobReport, TrainingReport};

const STYLE: &str = include_str!("page/style.css");
const BODY: &str = include_str!("page/body.html");
const SCRIPT: &str = concat!(
    "'use strict';\n(() => {\n",
    include_str!("page/format.js"),
    include_str!("page/dom.js"),
    include_str!("page/colour.js"),
    include_str!("page/table.js"),
    include_str!("page/chart.js"),
    include_str!("page/events.js"),
    include_str!("page/canvas.js"),
    include_str!("page/stretch.js"),
    include_str!("page/timeline.js"),
    include_str!("page/finding.js"),
    include_str!("page/summary.js"),
    include_str!("page/device.js"),
    include_str!("page/host.js"),
    include_str!("page/network.js"),
    include_str!("page/path.js"),
    include_str!("page/perfetto.js"),
    include_str!("page/main.js"),
    "})();\n"
);

/// Script of the page that compares two jobs.
const DIFF_SCRIPT: &str = concat!(
    "'use strict';\n(() => {\n",
    include_str!("page/format.js"),
    include_str!("page/dom.js"),
    include_str!("page/colour.js"),
    include_str!("page/table.js"),
    include_str!("page/chart.js"),
    include_str!("page/events.js"),
    include_str!("page/canvas.js"),
    include_str!("page/stretch.js"),
    include_str!("page/timeline.js"),
    include_str!("page/change.js"),
    include_str!("page/diff.js"),
    "})();\n"
);

/// Script of the page that shows a training run.
const TRAINING_SCRIPT: &str = concat!(
    "'use strict';\n(() => {\n",
    include_str!("page/format.js"),
    include_str!("page/dom.js"),
    include_str!("page/table.js"),
    include_str!("page/curve.js"),
    include_str!("page/training.js"),
    "})();\n"
);

/// Script of the page that shows a prediction.
const PREDICTED_SCRIPT: &str = concat!(
    "'use strict';\n(() => {\n",
    include_str!("page/format.js"),
    include_str!("page/dom.js"),
    include_str!("page/table.js"),
    include_str!("page/bars.js"),
    include_str!("page/execution.js"),
    include_str!("page/predicted.js"),
    "})();\n"
);

/// The way in which a page is delivered. The way determines what the script of the page may access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageOrigin {
    /// The page is a file, whose script may not access the network.
    File,
    /// The page comes from a server that also offers the trace to ui.perfetto.dev.
    Server {
        /// Path of the trace on the server.
        trace: String,
        /// Title under which ui.perfetto.dev shows the trace.
        file_name: String,
    },
    /// The page comes from a server that predicts the step again after edits.
    Editor {
        /// Path of the edit service on the server.
        edit: String,
    },
}

/// Renders the page of a job in memory and returns it.
///
/// # Errors
/// [`Error::Data`] if a value cannot be represented as JSON.
pub fn page(report: &JobReport, origin: &PageOrigin) -> Result<String, Error> {
    render(&report.title, report, SCRIPT, origin)
}

/// Writes the page of a job to `out`, without holding it in memory.
///
/// # Errors
/// Returns the errors of `out`, and an error for values that cannot be represented as JSON.
pub fn write(report: &JobReport, origin: &PageOrigin, out: &mut dyn Write) -> io::Result<()> {
    write_page(&report.title, report, SCRIPT, origin, out)
}

/// Renders the page that compares two jobs.
///
/// # Errors
/// [`Error::Data`] if a value cannot be represented as JSON.
pub fn diff_page(report: &DiffReport) -> Result<String, Error> {
    render(&report.title, report, DIFF_SCRIPT, &PageOrigin::File)
}

/// Renders the page that shows a training run.
///
/// # Errors
/// [`Error::Data`] if a value cannot be represented as JSON.
pub fn training_page(report: &TrainingReport) -> Result<String, Error> {
    render(&report.title, report, TRAINING_SCRIPT, &PageOrigin::File)
}

/// Renders the page of a prediction. If an editor serves the page, it also offers edits.
///
/// # Errors
/// [`Error::Data`] if a value cannot be represented as JSON.
pub fn predicted_page(view: &Predicted, origin: &PageOrigin) -> Result<String, Error> {
    render(&view.title, view, PREDICTED_SCRIPT, origin)
}

/// Returns the content security policy of a prediction's page.
pub fn predicted_policy(origin: &PageOrigin) -> String {
    policy_for(PREDICTED_SCRIPT, origin)
}

fn render(
    title: &str,
    data: &impl Serialize,
    script: &str,
    origin: &PageOrigin,
) -> Result<String, Error> {
    let mut page = Vec::new();
    // Writing to memory cannot fail, so any error here is a value that JSON cannot represent.
    write_page(title, data, script, origin, &mut page)
        .map_err(|error| Error::Data(serde::ser::Error::custom(error)))?;
    String::from_utf8(page).map_err(|error| Error::Data(serde::ser::Error::custom(error)))
}

fn write_page(
    title: &str,
    data: &impl Serialize,
    script: &str,
    origin: &PageOrigin,
    out: &mut dyn Write,
) -> io::Result<()> {
    let server = match origin {
        PageOrigin::File => serde_json::Value::Null,
        PageOrigin::Server { trace, file_name } => {
            serde_json::json!({ "trace": trace, "file_name": file_name })
        }
        PageOrigin::Editor { edit } => serde_json::json!({ "edit": edit }),
    };
    let policy = policy_for(script, origin);
    let title = text(title);
    let head = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{BODY}\n\
         <script type=\"application/json\" id=\"data\">"
    );
    out.write_all(head.as_bytes())?;
    // A browser does not execute a script of type `application/json`, so the data cannot run as
    // code.
    embed(data, out)?;
    out.write_all(b"</script>\n<script type=\"application/json\" id=\"server\">")?;
    embed(&server, out)?;
    out.write_all(b"</script>\n<script>")?;
    out.write_all(script.as_bytes())?;
    out.write_all(b"</script>\n</body>\n</html>\n")?;
    Ok(())
}

/// Returns the content security policy of a job's page. The policy allows only the page's own
/// script and style.
pub fn policy(origin: &PageOrigin) -> String {
    policy_for(SCRIPT, origin)
}

fn policy_for(script: &str, origin: &PageOrigin) -> String {
    let connect = match origin {
        PageOrigin::File => "",
        PageOrigin::Server { .. } | PageOrigin::Editor { .. } => " connect-src 'self';",
    };
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}';{connect} base-uri 'none'; \
         form-action 'none'; require-trusted-types-for 'script'",
        hash(script),
        hash(STYLE)
    )
}

fn hash(text: &str) -> String {
    STANDARD.encode(Sha256::digest(text.as_bytes()))
}

/// Writes a value as JSON. Characters that HTML interprets, or that end a line of script, are
/// escaped.
fn embed(value: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    let out: &mut dyn Write = &mut ScriptWriter { out };
    serde_json::to_writer(out, value).map_err(io::Error::from)
}

/// Passes on JSON and escapes characters with a meaning in HTML. These characters occur only inside
/// JSON strings, where an escape sequence is equivalent.
struct ScriptWriter<'a> {
    out: &'a mut dyn Write,
}

impl Write for ScriptWriter<'_> {
    fn write(&mut self, json: &[u8]) -> io::Result<usize> {
        let is_special = |letter| matches!(letter, '<' | '>' | '&' | '\u{2028}' | '\u{2029}');
        // The serializer writes whole characters.
        let mut rest = str::from_utf8(json).map_err(io::Error::other)?;
        while let Some(at) = rest.find(is_special) {
            let (plain, special) = rest.split_at(at);
            self.out.write_all(plain.as_bytes())?;
            let mut letters = special.chars();
            if let Some(letter) = letters.next() {
                write!(self.out, "\\u{:04x}", u32::from(letter))?;
            }
            rest = letters.as_str();
        }
        self.out.write_all(rest.as_bytes())?;
        Ok(json.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            other => out.push(other),
        }
    }
    out
}
