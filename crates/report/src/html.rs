//! A report as one HTML file: markup, style, script and data in one, nothing fetched.
//!
//! Names come from traces, so they are untrusted: the data is JSON in which no character can end
//! the element around it, the script shows it as text only, and a content security policy lets
//! nothing run but the script whose hash it names.

#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::predicted::Predicted;
use crate::{DiffReport, Error, Report, TrainingReport};

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

/// The script of a page that compares two jobs.
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

/// The script of the page of a training run.
const TRAINING_SCRIPT: &str = concat!(
    "'use strict';\n(() => {\n",
    include_str!("page/format.js"),
    include_str!("page/dom.js"),
    include_str!("page/table.js"),
    include_str!("page/curve.js"),
    include_str!("page/training.js"),
    "})();\n"
);

/// The script of a page that shows a prediction.
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

/// Where a page comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file, which fetches nothing.
    File,
    /// A server that also has the trace, for ui.perfetto.dev.
    Server {
        /// The trace, as a path of the server.
        trace: String,
        /// What ui.perfetto.dev calls it.
        file_name: String,
    },
    /// A server that predicts the step again with edits.
    Editor {
        /// What answers edits, as a path of the server.
        edit: String,
    },
}

/// The page.
///
/// # Errors
/// [`Error::Data`].
pub fn page(report: &Report, origin: &Origin) -> Result<String, Error> {
    let data = embedded(&serde_json::to_string(report)?);
    assembled(&report.title, &data, SCRIPT, origin)
}

/// The page that compares two jobs.
///
/// # Errors
/// [`Error::Data`].
pub fn diff_page(report: &DiffReport) -> Result<String, Error> {
    let data = embedded(&serde_json::to_string(report)?);
    assembled(&report.title, &data, DIFF_SCRIPT, &Origin::File)
}

/// The page of a training run.
///
/// # Errors
/// [`Error::Data`].
pub fn training_page(report: &TrainingReport) -> Result<String, Error> {
    let data = embedded(&serde_json::to_string(report)?);
    assembled(&report.title, &data, TRAINING_SCRIPT, &Origin::File)
}

/// The page that shows a prediction; of a server, one that edits it.
///
/// # Errors
/// [`Error::Data`].
pub fn predicted_page(view: &Predicted, origin: &Origin) -> Result<String, Error> {
    let data = embedded(&serde_json::to_string(view)?);
    assembled(&view.title, &data, PREDICTED_SCRIPT, origin)
}

/// What the page of a prediction may do.
pub fn predicted_policy(origin: &Origin) -> String {
    policy_of(PREDICTED_SCRIPT, origin)
}

fn assembled(title: &str, data: &str, script: &str, origin: &Origin) -> Result<String, Error> {
    let server = embedded(&match origin {
        Origin::File => "null".to_owned(),
        Origin::Server { trace, file_name } => {
            serde_json::to_string(&serde_json::json!({ "trace": trace, "file_name": file_name }))?
        }
        Origin::Editor { edit } => serde_json::to_string(&serde_json::json!({ "edit": edit }))?,
    });
    let mut page = String::with_capacity(data.len() + STYLE.len() + script.len() + 8192);
    page.push_str("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    let policy = policy_of(script, origin);
    // Writing to a text cannot fail.
    let _ = writeln!(page, "<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.push_str("<meta name=\"color-scheme\" content=\"light dark\">\n");
    page.push_str("<meta name=\"referrer\" content=\"no-referrer\">\n");
    let _ = writeln!(page, "<title>{}</title>", text(title));
    let _ = writeln!(page, "<style>{STYLE}</style>\n</head>\n<body>\n{BODY}");
    let _ = writeln!(page, "<script type=\"application/json\" id=\"data\">{data}</script>");
    let _ = writeln!(page, "<script type=\"application/json\" id=\"server\">{server}</script>");
    let _ = writeln!(page, "<script>{script}</script>\n</body>\n</html>");
    Ok(page)
}

/// What the page may do: run this script, use this style, and nothing else.
pub fn policy(origin: &Origin) -> String {
    policy_of(SCRIPT, origin)
}

fn policy_of(script: &str, origin: &Origin) -> String {
    let connect = match origin {
        Origin::File => "",
        Origin::Server { .. } | Origin::Editor { .. } => " connect-src 'self';",
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

/// JSON without a character that means something to HTML or ends a line of script. They occur in
/// texts only, where an escape means the same.
fn embedded(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + json.len() / 64);
    for letter in json.chars() {
        match letter {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            other => out.push(other),
        }
    }
    out
}

/// Text as HTML.
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
