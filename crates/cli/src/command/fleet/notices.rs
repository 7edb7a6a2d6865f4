//! The command `rowmill fleet notices`: what owners of idle GPUs were told, or would be, and why
//! others were not.

use std::process::ExitCode;

use super::hub::{HOUR_S, HubClient, TimeRange};
use super::notice_answer::{HubHeld, HubIdleRun, HubNotice, HubNotices};
use super::report::{moment, number};
use crate::args::FleetNotices;
use setup::Session;
use setup::error::Error;
use setup::error_text::plain;
use setup::render;

/// Lists the notices of a time.
pub fn run(args: &FleetNotices, session: &Session) -> Result<ExitCode, Error> {
    let client = HubClient::open(&args.place)?;
    let notices = HubNotices::ask(&client, TimeRange::before(None, args.since))?;
    session.console.report(&notices, notices_text)?;
    Ok(ExitCode::SUCCESS)
}

fn notices_text(answer: &HubNotices) -> String {
    let looked = answer
        .looked_unix_s
        .map_or("not looked yet".to_owned(), |looked| format!("last look at {}", moment(looked)));
    let state = match (answer.is_on, answer.is_dry_run) {
        (false, _) => {
            "The hub does not look for idle GPUs: it has no section [notices].".to_owned()
        }
        (true, true) => format!("Dry run: nothing is sent; {looked}."),
        (true, false) => format!("Notices are sent; {looked}."),
    };
    let notice = |one: &HubNotice| {
        let way = match (one.is_dry_run, one.sent.is_empty()) {
            (true, _) => "dry run".to_owned(),
            (false, false) => one.sent.join(", "),
            (false, true) => format!("not sent: {}", one.problems.join("; ")),
        };
        let cancel = one.cancel.as_ref().map_or(String::new(), |cancel| cancel.why.clone());
        [vec![moment(one.time_unix_s)], cells(&one.run), vec![plain(&way), plain(&cancel)]].concat()
    };
    let rows: Vec<Vec<String>> = answer.notices.iter().map(notice).collect();
    let heads =
        ["told", "job", "owner", "workflow", "idle GPUs", "idle GPU h", "since", "by", "job then"];
    let mut text = format!("{state}\n\n{}", render::grid(&heads, &rows));
    if !answer.held_back.is_empty() {
        let held = |one: &HubHeld| [cells(&one.run), vec![plain(&one.why)]].concat();
        let rows: Vec<Vec<String>> = answer.held_back.iter().map(held).collect();
        let heads =
            ["job", "owner", "workflow", "idle GPUs", "idle GPU h", "since", "why not told"];
        text += &format!("\n\nOther jobs with idle GPUs now:\n{}", render::grid(&heads, &rows));
    }
    text
}

fn cells(run: &HubIdleRun) -> Vec<String> {
    vec![
        plain(&run.run),
        plain(&run.user),
        plain(&run.workflow),
        format!("{} of {}", run.idle_gpus, run.gpus),
        number(run.idle_gpu_s / HOUR_S),
        moment(run.since_unix_s),
    ]
}
