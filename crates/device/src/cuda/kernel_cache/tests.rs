//! Tests that damaged files, and files and folders of other users, are rejected.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use testkit::Folder;

use super::{CachedCode, KernelCache};

fn set_mode(path: &PathBuf, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn cached_code_round_trips_and_damage_is_detected() {
    let temporary = Folder::new();
    let folder = temporary.path("above/cache");
    let cache = KernelCache::new(&folder).unwrap();
    assert_eq!(cache.read("a.cubin"), Ok(None));
    let code = b"\x7fELF code\n of a kernel\n".to_vec();
    let path = cache.write("a.cubin", &code, "nvrtc-13.0").unwrap();
    let whole = fs::read(&path).unwrap();
    assert!(whole.starts_with(&code));
    let compiler = "nvrtc-13.0".to_owned();
    assert_eq!(cache.read("a.cubin"), Ok(Some(CachedCode { code: code.clone(), compiler })));
    assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
    let names: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["a.cubin"]);
    // The cache must detect every truncated file and every altered byte.
    for end in 0..whole.len() {
        fs::write(&path, &whole[..end]).unwrap();
        let error = cache.read("a.cubin").unwrap_err().to_string();
        assert!(error.contains("a.cubin: "), "{end}: {error}");
    }
    for at in 0..whole.len() {
        let mut altered = whole.clone();
        altered[at] ^= 1;
        fs::write(&path, altered).unwrap();
        assert!(cache.read("a.cubin").is_err(), "byte {at}");
    }
    // A file with the code of another kernel must be rejected.
    fs::write(folder.join("b.cubin"), &whole).unwrap();
    let error = cache.read("b.cubin").unwrap_err().to_string();
    assert!(error.contains("the file was altered"), "{error}");
}

#[test]
fn a_folder_that_others_can_write_is_refused() {
    let temporary = Folder::new();
    let folder = temporary.path("writable");
    fs::create_dir(&folder).unwrap();
    set_mode(&folder, 0o755);
    KernelCache::new(&folder).unwrap().write("a", b"code", "host").unwrap();
    set_mode(&folder.join("a"), 0o666);
    let error = KernelCache::new(&folder).unwrap().read("a").unwrap_err().to_string();
    assert!(error.contains("other users may write it (mode 666)"), "{error}");
    set_mode(&folder, 0o777);
    let error = KernelCache::new(&folder).unwrap_err().to_string();
    assert!(error.contains("other users may write it (mode 777)"), "{error}");
    // Everybody may write to the parent of this folder, so everybody could replace the folder.
    let below = folder.join("below");
    fs::create_dir(&below).unwrap();
    set_mode(&below, 0o700);
    let error = KernelCache::new(&below).unwrap_err().to_string();
    assert!(error.contains("where everybody can replace it"), "{error}");
    set_mode(&folder, 0o1777);
    KernelCache::new(&below).unwrap();
}

#[test]
fn a_folder_of_another_user_is_refused() {
    if !testkit::has_root("a folder of another user") {
        return;
    }
    let temporary = Folder::new();
    let folder = temporary.path("foreign");
    fs::create_dir(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(12_345), Some(12_345)).unwrap();
    let error = KernelCache::new(&folder).unwrap_err().to_string();
    assert!(error.contains("belongs to user 12345, expected user 0 or root"), "{error}");
    let link = temporary.path("link");
    symlink(&folder, &link).unwrap();
    assert!(KernelCache::new(&link).is_err());
}
