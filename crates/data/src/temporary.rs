//! Files under temporary names. Knows nothing of their content.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Creates a file under a temporary name. An existing file or link of that name is removed first
/// and never followed: a killed process may have left it, or another user planted it.
///
/// # Errors
/// The name cannot be freed, somebody takes it again meanwhile, or the system refuses.
pub(crate) fn create_anew(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::create_new(path),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::create_anew;

    #[test]
    fn a_planted_link_is_replaced_and_its_target_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (name, victim) = (folder.path().join("out.tmp"), folder.path().join("victim"));
        fs::write(&victim, "kept").unwrap();
        symlink(&victim, &name).unwrap();
        let mut file = create_anew(&name).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
        assert!(fs::symlink_metadata(&name).unwrap().is_file());
        fs::remove_file(&name).unwrap();
        fs::create_dir(&name).unwrap();
        assert!(create_anew(&name).is_err(), "a folder is in the way");
    }
}
