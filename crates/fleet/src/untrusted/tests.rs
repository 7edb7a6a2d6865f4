//! Tests attacks through folders whose owner is not trusted, grouped by the functions that they
//! attack.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::io::Errno;
use schema::Bytes;

use super::walk::{Mounts, open_name, open_name_by_steps};
use super::{
    Copying, Credentials, Expected, MissingFolder, OwnFolder, Owner, UntrustedError,
    UntrustedFolder,
};
use crate::process::{Process, own_uid};

/// Id of a user that is neither root nor the user who runs the tests.
const SOMEBODY: u32 = 54_321;
const LONG: Duration = Duration::from_secs(60);

fn own() -> Credentials {
    Process::read(std::process::id()).unwrap().credentials()
}

fn somebody() -> Credentials {
    Credentials { uid: SOMEBODY, gid: SOMEBODY, groups: Vec::new() }
}

fn expected() -> Expected {
    Expected { owner: Owner::Only(own_uid()), size_max: Bytes(1 << 20) }
}

fn open(path: &Path, who: &Credentials) -> Result<UntrustedFolder, UntrustedError> {
    UntrustedFolder::open(Path::new("/"), path, who)
}

fn pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
}

#[test]
fn only_regular_files_are_opened() {
    let place = tempfile::tempdir().unwrap();
    let folder = open(place.path(), &own()).unwrap();
    let path = |name: &str| place.path().join(name);
    fs::write(path("file"), "text").unwrap();
    symlink(path("file"), path("link")).unwrap();
    fs::create_dir(path("folder")).unwrap();
    pipe(&path("pipe"));
    let _socket = UnixListener::bind(path("socket")).unwrap();
    assert_eq!(folder.file("file", &expected()).unwrap().unwrap().size(), 4);
    assert!(folder.file("none", &expected()).unwrap().is_none());
    for (name, what) in [
        ("link", "a symbolic link"),
        ("folder", "a folder"),
        ("pipe", "a named pipe"),
        ("socket", "a socket"),
    ] {
        for found in
            [folder.file(name, &expected()).map(|_| ()), folder.size(name, &expected()).map(|_| ())]
        {
            let error = found.unwrap_err();
            assert!(
                matches!(&error, UntrustedError::Kind { got, .. } if *got == what),
                "{name}: {error}"
            );
        }
    }
    // Each of these names is a path or empty, so it must be refused.
    for name in ["../file", "folder/x", "/etc/passwd", "..", ".", ""] {
        assert!(folder.file(name, &expected()).is_err(), "{name}");
    }
}

#[test]
fn second_name_other_user_and_large_size_are_errors() {
    let place = tempfile::tempdir().unwrap();
    let folder = open(place.path(), &own()).unwrap();
    let path = place.path().join("file");
    fs::write(&path, [b'x'; 100]).unwrap();
    let small = Expected { size_max: Bytes(99), ..expected() };
    assert!(matches!(
        folder.file("file", &small),
        Err(UntrustedError::Size { got: Bytes(100), .. })
    ));
    fs::hard_link(&path, place.path().join("second")).unwrap();
    assert!(matches!(folder.file("file", &expected()), Err(UntrustedError::Names { got: 2, .. })));
    let anyones = Expected { owner: Owner::Anyone, ..expected() };
    assert!(folder.file("file", &anyones).unwrap().is_some());
    let others = Expected { owner: Owner::Only(SOMEBODY), ..expected() };
    assert!(
        matches!(folder.file("file", &others), Err(UntrustedError::Owner { got, .. }) if got == own_uid())
    );
}

#[test]
fn links_are_followed_only_if_root_made_them_out_of_reach() {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (real, link) = (place.path().join("real"), place.path().join("link"));
    fs::create_dir_all(real.join("deep")).unwrap();
    symlink("real", &link).unwrap();
    let refused = open(&link.join("deep"), &own());
    assert!(
        matches!(refused, Err(UntrustedError::Kind { got: "a symbolic link", .. })),
        "{refused:?}"
    );
    if !testkit::has_root("links of root") {
        return;
    }
    assert!(open(&link.join("deep"), &somebody()).is_ok());
    // In a folder that the user may write, the user may have moved a link of root to this place, so
    // it must be refused.
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(open(&link.join("deep"), &somebody()), Err(UntrustedError::Kind { .. })));
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::lchown(&link, Some(SOMEBODY), None).unwrap();
    assert!(matches!(open(&link.join("deep"), &somebody()), Err(UntrustedError::Kind { .. })));
    // A cycle of links must end with an error.
    symlink("circle", place.path().join("circle")).unwrap();
    assert!(matches!(
        open(&place.path().join("circle"), &somebody()),
        Err(UntrustedError::Kind { .. })
    ));
}

#[test]
fn links_and_parents_do_not_lead_above_the_root() {
    if !testkit::has_root("links of root") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(place.path().join("etc")).unwrap();
    symlink("/etc", place.path().join("absolute")).unwrap();
    symlink("../../../../../../etc", place.path().join("parents")).unwrap();
    for name in ["absolute", "parents", "../../../etc"] {
        let opened =
            UntrustedFolder::open(place.path(), &Path::new("/").join(name), &somebody()).unwrap();
        let inode = rustix::fs::fstat(&opened.descriptor).unwrap().st_ino;
        assert_eq!(inode, fs::metadata(place.path().join("etc")).unwrap().ino(), "{name}");
    }
}

#[test]
fn folder_is_created_only_where_its_user_may_create_it() {
    if !testkit::has_root("folders of another user") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let make = |mode: u32, who: &Credentials| {
        fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).unwrap();
        open(place.path(), who).and_then(|folder| folder.make("made", who))
    };
    assert!(matches!(make(0o700, &somebody()), Err(UntrustedError::Closed { .. })));
    assert!(matches!(make(0o755, &somebody()), Err(UntrustedError::Unwritable { .. })));
    chown(place.path(), None, Some(77)).unwrap();
    let member = Credentials { groups: vec![5, 77], ..somebody() };
    assert!(make(0o770, &member).is_ok());
    let made = fs::metadata(place.path().join("made")).unwrap();
    assert_eq!((made.uid(), made.gid(), made.mode() & 0o777), (SOMEBODY, SOMEBODY, 0o700));
    // An entry that already exists must not be given to the user.
    fs::remove_dir(place.path().join("made")).unwrap();
    symlink("/etc", place.path().join("made")).unwrap();
    assert!(matches!(make(0o777, &somebody()), Err(UntrustedError::Io { .. })));
    assert_eq!(fs::metadata("/etc").unwrap().uid(), 0);
}

#[test]
fn folder_replaced_after_creation_is_not_given_away() {
    let place = tempfile::tempdir().unwrap();
    let folder = open(place.path(), &own()).unwrap();
    // Simulates a folder that was replaced between its creation and its opening.
    fs::create_dir(place.path().join("made")).unwrap();
    fs::write(place.path().join("made/precious"), "x").unwrap();
    let entered = folder.enter("made").unwrap();
    assert!(matches!(entered.give(&somebody()), Err(UntrustedError::Replaced { .. })));
    symlink("made", place.path().join("link")).unwrap();
    assert!(matches!(folder.enter("link"), Err(UntrustedError::Replaced { .. })));
}

#[test]
fn removing_keeps_entries_of_others() {
    let place = tempfile::tempdir().unwrap();
    let folder = open(place.path(), &own()).unwrap();
    let made = folder.make("made", &own()).unwrap();
    let path = place.path().join("made");
    fs::write(place.path().join("outside"), "x").unwrap();
    for name in ["trace", "more"] {
        fs::write(path.join(name), "x").unwrap();
    }
    symlink(place.path().join("outside"), path.join("link")).unwrap();
    pipe(&path.join("pipe"));
    fs::create_dir(path.join("kept")).unwrap();
    assert!(!folder.remove("made", &made, own_uid()));
    assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    fs::remove_dir(path.join("kept")).unwrap();
    fs::write(path.join("others"), "x").unwrap();
    assert!(!folder.remove("made", &made, SOMEBODY) && path.join("others").exists());
    // A folder that replaced the created one must be kept, even if it is empty.
    fs::rename(&path, place.path().join("away")).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(!folder.remove("made", &made, own_uid()) && path.exists());
    fs::remove_dir(&path).unwrap();
    fs::rename(place.path().join("away"), &path).unwrap();
    assert!(folder.remove("made", &made, own_uid()) && !path.exists());
    assert!(place.path().join("outside").exists());
}

#[test]
fn copy_is_made_from_the_checked_file() {
    let place = tempfile::tempdir().unwrap();
    let folder = open(place.path(), &own()).unwrap();
    let (path, target) = (place.path().join("file"), place.path().join("copy"));
    let to = Arc::new(OwnFolder::hold(place.path()).unwrap());
    let open = |size: usize| {
        fs::write(&path, vec![b'x'; size]).unwrap();
        let file = folder.file("file", &Expected { size_max: Bytes(9 << 20), ..expected() });
        Copying::begin(file.unwrap().unwrap(), &to, "copy", None).unwrap()
    };
    // Replacing or removing the name must not affect a copy, which reads through a descriptor.
    let mut copying = open(3 << 20);
    fs::write(place.path().join("other"), "other").unwrap();
    fs::rename(place.path().join("other"), &path).unwrap();
    assert_eq!(copying.step(Duration::ZERO).unwrap(), None);
    fs::remove_file(&path).unwrap();
    assert!(!target.exists());
    assert_eq!(copying.step(LONG).unwrap(), Some(3 << 20));
    assert_eq!(fs::read(&target).unwrap(), vec![b'x'; 3 << 20]);
    drop(copying);
    fs::remove_file(&target).unwrap();
    // A file that became longer, shorter or was modified differs from the file that was checked, so
    // its copy must fail.
    for change in [(4 << 20), (1 << 20), 3 << 20] {
        let mut copying = open(3 << 20);
        std::thread::sleep(Duration::from_millis(20));
        fs::write(&path, vec![b'y'; change]).unwrap();
        assert!(matches!(copying.step(LONG), Err(UntrustedError::Changed { .. })), "{change}");
        drop(copying);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "{change}");
    }
}

#[test]
fn openat2_and_its_fallback_give_the_same_results() {
    let place = tempfile::tempdir().unwrap();
    let folder = open(place.path(), &own()).unwrap();
    fs::write(place.path().join("file"), "x").unwrap();
    symlink("file", place.path().join("link")).unwrap();
    fs::create_dir(place.path().join("folder")).unwrap();
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for (name, expected) in
        [("file", None), ("folder", None), ("link", Some(Errno::LOOP)), ("no", Some(Errno::NOENT))]
    {
        let new = open_name(&folder.descriptor, name, flags, Mounts::Refuse);
        let old = open_name_by_steps(&folder.descriptor, name.as_ref(), flags, Mounts::Refuse);
        assert_eq!((new.err(), old.err()), (expected, expected), "{name}");
    }
    let proc = open(Path::new("/"), &own()).unwrap();
    let new = open_name(&proc.descriptor, "proc", OFlags::PATH, Mounts::Refuse);
    let old = open_name_by_steps(&proc.descriptor, "proc".as_ref(), OFlags::PATH, Mounts::Refuse);
    assert_eq!((new.err(), old.err()), (Some(Errno::XDEV), Some(Errno::XDEV)));
}

/// Opens `path` as a folder of our own, and creates it if it is missing.
fn own_folder(path: &Path) -> Result<OwnFolder, UntrustedError> {
    OwnFolder::open(path, MissingFolder::Make(0o700))
}

#[test]
fn replaceable_folder_is_not_accepted_as_own() {
    if !testkit::has_root("folders of another user") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    let mode = |name: &str, mode| fs::set_permissions(path(name), fs::Permissions::from_mode(mode));
    assert!(own_folder(&path("new/state")).is_ok());
    assert_eq!(fs::metadata(path("new/state")).unwrap().mode() & 0o7777, 0o700);
    for name in ["theirs", "open", "sticky"] {
        fs::create_dir(path(name)).unwrap();
    }
    chown(path("theirs"), Some(SOMEBODY), None).unwrap();
    mode("open", 0o777).unwrap();
    mode("sticky", 0o1777).unwrap();
    // The owner of a folder can replace its entries. Without a sticky bit, every user who may write
    // to the folder can do so, too.
    for name in ["theirs", "theirs/state"] {
        assert!(matches!(own_folder(&path(name)), Err(UntrustedError::Foreign { .. })), "{name}");
    }
    for name in ["open", "open/state", "sticky"] {
        assert!(matches!(own_folder(&path(name)), Err(UntrustedError::Shared { .. })), "{name}");
    }
    assert!(own_folder(&path("sticky/state")).is_ok());
    assert!(OwnFolder::open_shared(&path("sticky"), MissingFolder::Refuse).is_ok());
    // A link of root must be followed, and a link of another user must be refused.
    symlink(path("new"), path("link")).unwrap();
    assert!(own_folder(&path("link/state")).is_ok());
    symlink(path("new"), path("sticky/link")).unwrap();
    rustix::fs::chownat(
        CWD,
        path("sticky/link"),
        Some(rustix::fs::Uid::from_raw(SOMEBODY)),
        None,
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
    )
    .unwrap();
    let planted = own_folder(&path("sticky/link/state"));
    assert!(matches!(planted, Err(UntrustedError::Kind { .. })), "{planted:?}");
    let missing = OwnFolder::open(&path("none"), MissingFolder::Refuse).unwrap_err();
    assert!(missing.is_missing());
}

#[test]
fn links_in_our_own_folder_are_not_followed() {
    let place = tempfile::tempdir().unwrap();
    let outside = place.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "x").unwrap();
    let own = own_folder(&place.path().join("own")).unwrap();
    let path = |name: &str| place.path().join("own").join(name);
    symlink(&outside, path("folder")).unwrap();
    symlink(outside.join("kept"), path("file")).unwrap();
    pipe(&path("pipe"));
    let read = OFlags::RDONLY;
    assert!(own.folder("folder").is_err() && own.open_file("file", read).is_err());
    assert!(own.append("file").is_err() && own.create("file").is_err());
    assert!(matches!(own.open_file("pipe", read), Err(UntrustedError::Kind { .. })));
    assert!(own.open_file("../outside/kept", read).is_err() && own.folder("..").is_err());
    fs::create_dir_all(path("tree/below")).unwrap();
    symlink(&outside, path("tree/below/link")).unwrap();
    for name in ["tree", "folder", "file", "pipe", "none"] {
        own.remove_tree(name).unwrap();
    }
    assert!(own.names().unwrap().is_empty());
    assert_eq!(fs::read_to_string(outside.join("kept")).unwrap(), "x");
    own.replace("whole", b"text").unwrap();
    assert_eq!(own.read("whole", 3).unwrap().unwrap(), b"tex");
    assert_eq!((own.names().unwrap().len(), own.size("whole")), (1, 4));
    assert_eq!(own.read("none", 3).unwrap(), None);
}
