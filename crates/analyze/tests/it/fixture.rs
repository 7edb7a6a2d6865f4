//! Reads jobs from the real traces of the fixtures.

pub use testkit::fixture::{path, text};
use trace::open::{self, ReadRequest};
use trace::store::Job;

/// Reads the job at a path below `traces`, or returns `None` if the fixtures are missing.
pub fn job(name: &str) -> Option<Job> {
    let paths = vec![path(&format!("traces/{name}"))?];
    Some(open::read(&ReadRequest { paths, threads: 1 }).expect("a trace"))
}
