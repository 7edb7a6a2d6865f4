//! Opens the arrays of an `.npz` file, so that their rows can be read at the same time.

use std::path::Path;

use super::array::Array;
use crate::error::Error;
use crate::input::archive;
use crate::input::origin::ReadObserver;

/// Opens all arrays in numerical order of their names: `0.npy`, `1.npy`, …, `25.npy`.
pub(super) fn open(path: &Path, observer: &ReadObserver) -> Result<Vec<Array>, Error> {
    observer.hash_file(&path.display().to_string())?;
    let mut members = archive::list_members(path)?;
    members.sort_by_cached_key(|member| {
        let number: Option<u64> = member.name.strip_suffix(".npy").and_then(|n| n.parse().ok());
        (number, member.name.clone())
    });
    if members.is_empty() {
        let problem = "expected arrays, got an empty archive".to_owned();
        return Err(Error::Array { path: path.to_owned(), problem });
    }
    members
        .iter()
        .map(|member| Array::new(path.join(&member.name), member.open(path, observer)?))
        .collect()
}
