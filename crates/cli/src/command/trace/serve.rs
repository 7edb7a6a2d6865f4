//! The command `rowmill trace serve`, which serves the report to a browser on this machine. The
//! command also serves the merged trace that the report's button passes to ui.perfetto.dev.

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
use crate::trace_files::{estimate_clocks, export_options};
use crate::trace_page::{build_report, open_content};
use setup::Session;
use setup::error::{Error, RunError};
use setup::interrupt;
use setup::render::Console;

/// The name under which the server offers the merged trace.
const TRACE: &str = "trace.pftrace";

/// Runs `rowmill trace serve` until Ctrl-C.
pub fn run(content: &ReportContent, port: u16, session: &Session) -> Result<(), Error> {
    let chosen = open_content(content, session)?;
    // The port is bound before the report is built, because building takes long and the port may be
    // in use.
    let server = Server::bind(port).map_err(|source| RunError::Serve { port, source })?;
    let origin = PageOrigin::Server { trace: server.path(TRACE), file_name: TRACE.to_owned() };
    let report = build_report(&chosen, content, session)?;
    let page = ServedPage {
        content_type: "text/html; charset=utf-8",
        policy: Some(html::policy(&origin)),
        body: html::page(&report, &origin)?.into_bytes(),
    };
    let folder = tempfile::tempdir().map_err(Error::io(std::env::temp_dir(), "create"))?;
    let file = folder.path().join(TRACE);
    let merged = ServedTrace { job: &chosen.job, file, is_written: Mutex::new(false) };
    let console = session.console;
    let find = |name: &str| match name {
        "" => Ok(Some(page.clone())),
        TRACE => merged.page(console).map(Some),
        _ => Ok(None),
    };
    let stop = interrupt::stop_flag("stopping");
    console.say("open this address in a browser on this machine; Ctrl-C stops the server");
    console.print(&server.to_string())?;
    Ok(server.run(&stop, &find).map_err(|source| RunError::Serve { port, source })?)
}

/// The file with the merged trace of all ranks. The file is written on the first request, because
/// merging takes long and few users open the merged trace.
struct ServedTrace<'a> {
    job: &'a Job,
    file: PathBuf,
    is_written: Mutex<bool>,
}

impl ServedTrace<'_> {
    fn page(&self, console: Console) -> io::Result<ServedPage> {
        // A panic while the lock was held left the flag unset, so the file is written again.
        let mut is_written = self.is_written.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_written {
            let mut offsets = Offsets::default();
            let ahead = estimate_clocks(self.job).into_iter();
            offsets.ahead_ns = ahead.map(|clock| (clock.rank, clock.correction_ns)).collect();
            let merged = merge::merge(self.job, &offsets);
            if let Err(error) = export::write(&self.file, &merged, &export_options()) {
                console
                    .warn(format_args!("the trace for ui.perfetto.dev cannot be written: {error}"));
                return Err(io::Error::other(error));
            }
            *is_written = true;
        }
        let body = fs::read(&self.file)?;
        Ok(ServedPage { content_type: "application/octet-stream", policy: None, body })
    }
}
