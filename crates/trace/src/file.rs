//! Writes files atomically: a file is written under a temporary name, synced and renamed.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::Error;

/// Writes the file at `path` completely or not at all. An existing file stays in place until the
/// new one is on disk.
///
/// # Errors
/// [`Error::Write`] names the operation that failed. The temporary file is removed after an error.
pub fn put(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), Error> {
    let temporary = temporary_name(path);
    let done = fill_and_rename(path, &temporary, fill);
    if done.is_err() {
        // The first error is the one to report. Removal fails if the temporary file was never
        // created.
        let _ = fs::remove_file(&temporary);
    }
    done
}

/// Creates a file under a temporary name. If a file or link of that name exists, it is removed
/// first and never followed, because a killed process may have left it or another user may have
/// planted it.
///
/// # Errors
/// Fails if the existing file cannot be removed, if another process creates a file of that name in
/// the meantime, or if the system refuses to create the file.
pub fn create_anew(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::create_new(path),
    }
}

fn fill_and_rename(
    path: &Path,
    temporary: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), Error> {
    let failed = |action| {
        let path = path.to_path_buf();
        move |source| Error::Write { path, action, source }
    };
    let mut out = BufWriter::new(create_anew(temporary).map_err(failed("create"))?);
    fill(&mut out).and_then(|()| out.flush()).map_err(failed("write"))?;
    // Without a sync, a crash after the rename could leave an empty file under the final name.
    out.get_ref().sync_all().map_err(failed("sync"))?;
    fs::rename(temporary, path).map_err(failed("rename"))
}

fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Seek, Write};
    use std::os::unix::fs::symlink;

    use super::create_anew;

    #[test]
    fn planted_link_is_replaced_and_its_target_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (name, victim) = (folder.path().join("out.tmp"), folder.path().join("victim"));
        fs::write(&victim, "kept").unwrap();
        symlink(&victim, &name).unwrap();
        let mut file = create_anew(&name).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
        assert!(fs::symlink_metadata(&name).unwrap().is_file());
        let mut text = String::new();
        file.rewind().and_then(|()| file.read_to_string(&mut text)).unwrap();
        assert_eq!(text, "new", "the new file can be read too");
        fs::remove_file(&name).unwrap();
        fs::create_dir(&name).unwrap();
        assert!(create_anew(&name).is_err(), "a folder of the same name cannot be replaced");
    }
}
