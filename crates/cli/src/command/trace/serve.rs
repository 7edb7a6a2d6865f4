//! `rowmill trace serve`: the report in a browser of this machine, and the trace for
//! ui.perfetto.dev. The server handles requests.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use report::html::{self, PageOrigin};
use trace::export;
use trace::merge::{self, Offsets};
use trace::store::Job;

use crate::args::ReportContent;
use crate::server::{ServedPage, Server};
use crate::trace_files::{clocks, export_options};
use crate::trace_page::{build_report, open_content};
use setup::Session;
use setup::error::{Error, RunError};
use setup::interrupt;
use setup::render::Console;

/// What the server calls the trace.
const TRACE: &str = "trace.pftrace";

/// Runs the command until Ctrl-C.
pub fn run(content: &ReportContent, port: u16, session: &Session) -> Result<(), Error> {
    let chosen = open_content(content, session)?;
    let server = Server::bind(port).map_err(|source| RunError::Serve { port, source })?;
    let origin = PageOrigin::Server { trace: server.path(TRACE), file_name: TRACE.to_owned() };
    let shown = build_report(&chosen, content, session)?;
    let page = ServedPage {
        content_type: "text/html; charset=utf-8",
        policy: Some(html::policy(&origin)),
        body: html::page(&shown, &origin)?.into_bytes(),
    };
    let folder = tempfile::tempdir().map_err(Error::io(std::env::temp_dir(), "create"))?;
    let file = folder.path().join(TRACE);
    let merged = Merged { job: &chosen.job, file, is_written: Mutex::new(false) };
    let console = session.console;
    let find = |name: &str| match name {
        "" => Ok(Some(page.clone())),
        TRACE => merged.page(console).map(Some),
        _ => Ok(None),
    };
    let stop = interrupt::stop_flag("stopping");
    console.say("open this address in a browser of this machine; Ctrl-C ends");
    console.print(&server.to_string())?;
    Ok(server.run(&stop, &find).map_err(|source| RunError::Serve { port, source })?)
}

/// All ranks in one file, written on first request.
struct Merged<'a> {
    job: &'a Job,
    file: PathBuf,
    is_written: Mutex<bool>,
}

impl Merged<'_> {
    fn page(&self, console: Console) -> io::Result<ServedPage> {
        // Who panicked with the lock has written nothing that counts.
        let mut is_written = self.is_written.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_written {
            let mut offsets = Offsets::default();
            let ahead = clocks(self.job).into_iter();
            offsets.ahead_ns = ahead.map(|clock| (clock.rank, clock.correction_ns)).collect();
            let merged = merge::merge(self.job, &offsets);
            if let Err(error) = export::write(&self.file, &merged, &export_options()) {
                console.warn(format_args!("ui.perfetto.dev gets no trace: {error}"));
                return Err(io::Error::other(error));
            }
            *is_written = true;
        }
        let body = fs::read(&self.file)?;
        Ok(ServedPage { content_type: "application/octet-stream", policy: None, body })
    }
}
