//! Writes measured links as a topology file, which `rowmill predict step --hardware FILE` reads.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use kernel_model::Error as KernelError;
use schema::Topology;

use setup::error::Error;
use setup::output;

/// Writes all-to-alls as the links between the hosts of `hardware`. `points` are the bytes that a
/// rank sends, and microseconds.
///
/// # Errors
/// The hardware is unknown, no all-to-all was measured, or the file cannot be written.
pub fn write(path: &Path, hardware: &str, mut points: Vec<(f64, f64)>) -> Result<(), Error> {
    Topology::parse(hardware).map_err(KernelError::from)?;
    points.retain(|(bytes, us)| *bytes > 0.0 && *us > 0.0);
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.dedup_by_key(|point| point.0);
    if points.is_empty() {
        let expected = "all-to-alls between at least two ranks for --write-topology".to_owned();
        return Err(predict::Error::Workload { expected, got: "none".to_owned() }.into());
    }
    // A message takes no longer than a larger one, so a longer time is noise.
    let mut least_us = f64::INFINITY;
    for (_, us) in points.iter_mut().rev() {
        least_us = us.min(least_us);
        *us = least_us;
    }
    let mut text = format!(
        "# Measured by rowmill doctor links: bytes that a rank sends, and microseconds.\n\
         hardware = {hardware:?}\n\n[between]\npoints = [\n"
    );
    for (bytes, us) in points {
        // Writing to a `String` never fails, so the result is ignored.
        let _ = writeln!(text, "  [{bytes:.0}, {us:.3}],");
    }
    text.push_str("]\n");
    output::put(path, |file| file.write_all(text.as_bytes()).map_err(Error::io(path, "write")))
}
