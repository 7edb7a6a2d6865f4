//! Whether a model's tables fit this machine, and which `rows_cap` would make them fit.

use schema::{Bytes, ModelConfig, Optimizer};

use super::config::Job;
use crate::error::Error;
use crate::machine;

/// Share of the free memory tables may take; the rest is for batches, activations and the system.
const TABLE_SHARE: f64 = 0.9;

/// Refuses a job whose tables and optimizer state exceed the free memory.
pub fn check(job: &Job) -> Result<(), Error> {
    match machine::memory_available() {
        Some(available) => check_against(job, available),
        None => Ok(()),
    }
}

fn check_against(job: &Job, available: Bytes) -> Result<(), Error> {
    let optimizer = job.config.optimizer.sparse.kind;
    let needed = job.config.model.table_bytes(optimizer);
    let allowed = (available.0 as f64 * TABLE_SHARE) as u64;
    if needed.0 <= allowed {
        return Ok(());
    }
    let tables = job.config.model.table_bytes(Optimizer::Sgd);
    let rows_cap = fitting_cap(&job.config.model, optimizer, allowed);
    Err(Error::Memory { config: job.origin.clone(), tables, needed, available, rows_cap })
}

/// The largest cap, rounded down to one digit, under which the tables take at most `bytes`.
fn fitting_cap(model: &ModelConfig, optimizer: Optimizer, bytes: u64) -> u64 {
    let most = model.tables.iter().map(|table| table.rows).max().unwrap_or(1);
    let (mut fits, mut exceeds) = (1, most.saturating_add(1));
    while exceeds - fits > 1 {
        let middle = fits + (exceeds - fits) / 2;
        if bytes_capped(model, optimizer, middle) <= bytes {
            fits = middle;
        } else {
            exceeds = middle;
        }
    }
    let unit = 10u64.pow(fits.ilog10());
    fits / unit * unit
}

fn bytes_capped(model: &ModelConfig, optimizer: Optimizer, cap: u64) -> u64 {
    let mut capped = model.clone();
    for table in &mut capped.tables {
        table.rows = table.rows.min(cap);
    }
    capped.table_bytes(optimizer).0
}

#[cfg(test)]
mod tests {
    use schema::Bytes;

    use super::check_against;
    use crate::error::Error;
    use crate::resolve::config;

    #[test]
    fn the_cap_offered_fits_and_ten_times_it_does_not() {
        let job = config::job("dlrm-dcnv2", &[]).unwrap();
        let available = Bytes(16 << 30);
        let error = check_against(&job, available).unwrap_err();
        let Error::Memory { tables, needed, rows_cap, .. } = error else { panic!("{error}") };
        assert_eq!(tables.to_string(), "97.4 GiB");
        assert!(needed.0 > 90 << 30, "{needed}");
        let capped = |cap: u64| {
            let job = config::job("dlrm-dcnv2", &[("rows_cap".into(), cap.to_string())]).unwrap();
            check_against(&job, available)
        };
        assert!(capped(rows_cap).is_ok() && capped(rows_cap * 10).is_err(), "{rows_cap}");
    }
}
