//! The command `rowmill predict serve`, which shows a recorded step beside its prediction. The user
//! edits the step in a browser of this machine, and the server answers the edits.

use std::io;

use predict::calibration::price::Prices;
use predict::edit::{Edit, Edits};
use predict::prediction::Draws;
use predict::prediction::what_if::Unedited;
use predict::recording::Step;
use report::html::{self, PageOrigin};
use report::predicted::{self, BarLanes, Predicted};

use super::calibrated::read_step;
use crate::args::PredictServe;
use crate::server::{ServedPage, Server};
use setup::Session;
use setup::error::{Error, RunError};
use setup::interrupt;
use setup::open_job::job_title;
use setup::recorded_steps::{open_recordings, whole_scopes};

/// The path, below the page's address, to which the browser sends edits.
const EDIT: &str = "edit";
/// The number of random draws is small, so that an edit is answered at once.
const DRAWS: Draws = Draws::new(20, 0);

/// Runs `rowmill predict serve` until Ctrl-C.
pub fn run(args: &PredictServe, session: &Session) -> Result<(), Error> {
    let traces = open_recordings(&args.paths, session)?;
    let scopes = whole_scopes(&traces);
    let calibrated =
        read_step(args.calibration.as_deref(), args.selection, &traces, &scopes, session)?;
    let port = args.port;
    let server = Server::bind(port).map_err(|source| RunError::Serve { port, source })?;
    let origin = PageOrigin::Editor { edit: server.path(EDIT) };
    let title = job_title(&args.paths);
    let step = &calibrated.step;
    let prices = Prices::new(&calibrated.calibration);
    let setting = prices.setting_of_devices(step);
    let base = Unedited::new(&step.program, &setting, &calibrated.calibration)?;
    calibrated.check_base(&base.recorded, session);
    let edited = EditedStepPage { title: &title, step, base };
    // The page without edits is built once, because it is the same for every request.
    let first = edited.with(&[], DRAWS)?;
    let page = ServedPage {
        content_type: "text/html; charset=utf-8",
        policy: Some(html::predicted_policy(&origin)),
        body: html::predicted_page(&first, &origin)?.into_bytes(),
    };
    let find = |name: &str| match name.split_once('?') {
        None if name.is_empty() => Ok(Some(page.clone())),
        Some((EDIT, query)) => edited.answer(query).map(Some),
        _ => Ok(None),
    };
    let stop = interrupt::stop_flag("stopping");
    let console = session.console;
    console.say("open this address in a browser of this machine; Ctrl-C ends");
    console.print(&server.to_string())?;
    Ok(server.run(&stop, &find).map_err(|source| RunError::Serve { port, source })?)
}

/// A recorded step and its prediction, from which pages with any edits are built.
pub struct EditedStepPage<'a> {
    pub title: &'a str,
    pub step: &'a Step,
    pub base: Unedited<'a>,
}

impl EditedStepPage<'_> {
    /// Builds the content of the page with the given edits applied.
    pub fn with(&self, edits: &[Edit], draws: Draws<'_>) -> Result<Predicted, Error> {
        let found = self.base.with("", edits, draws)?;
        Ok(predicted::build_page(self.title, self.step, &found, text(edits)))
    }

    /// Answers a query that contains edits with the predicted step, or with the reason why the
    /// edits cannot be applied. Recorded bars are left out because the page already shows them.
    fn answer(&self, query: &str) -> io::Result<ServedPage> {
        let edits = decoded(query).and_then(|text| serde_json::from_str::<Vec<Edit>>(&text).ok());
        let found = match edits {
            Some(edits) => self.with(&edits, DRAWS).map_err(|error| error.to_string()),
            None => Err("expected a list of edits".to_owned()),
        };
        let body = match found {
            Ok(mut view) => {
                view.ranks.iter_mut().for_each(|rank| rank.measured = BarLanes::default());
                serde_json::to_vec(&view)
            }
            Err(error) => serde_json::to_vec(&serde_json::json!({ "error": error })),
        };
        let body = body.map_err(io::Error::other)?;
        Ok(ServedPage { content_type: "application/json", policy: None, body })
    }
}

/// Returns the text of an edits file for `rowmill predict what-if`. The text is empty if there are
/// no edits.
fn text(edits: &[Edit]) -> String {
    match edits {
        [] => String::new(),
        some => toml::to_string(&Edits { edit: some.to_vec() }).unwrap_or_default(),
    }
}

/// Decodes percent-encoded text such as `%41`. Returns `None` if the text is malformed.
fn decoded(query: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(query.len());
    let mut rest = query.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn percent_encoded_queries_are_decoded() {
        assert_eq!(decoded("%5B%22\u{e4}%C3%A4%22%5D").as_deref(), Some("[\"ää\"]"));
        for broken in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(decoded(broken), None, "{broken}");
        }
    }
}
