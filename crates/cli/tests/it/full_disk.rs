//! Tests commands whose disk fills up while they write. The disk is a small file system in memory,
//! in a mount namespace of the test.

use std::fs;
use std::process::Command;

use crate::fixture::Place;

#[test]
fn a_disk_that_fills_up_is_named_and_holds_no_half_written_checkpoint_or_trace() {
    for (words, file) in [
        ("train job.toml --train train.csv --run disk/r", "checkpoints"),
        ("train job.toml --train train.csv --run r --trace disk/t --trace-steps 1..90", "disk/t"),
        // Two rows of 32 KiB fill the disk, and the cache has only 32 of 50.
        (
            "train job.toml --train train.csv --run r --set storage.folder=disk \
             --set storage.cache_mib=1 --set model.bottom=[8,8192] --set model.tables.a.dim=8192 \
             --set model.tables.b.dim=8192 --set checkpoint_every=3",
            "disk: cannot write rows in",
        ),
        ("init train.csv --output disk/full/job.toml", "disk/full/job.toml"),
    ] {
        let place = Place::new();
        fs::create_dir(place.path("disk")).unwrap();
        let rowmill = env!("CARGO_BIN_EXE_rowmill");
        let script = format!(
            "mount -t tmpfs -o size=64k none disk || exit 77; mkdir disk/full; \
             case '{words}' in init*) cat /dev/zero > disk/zeros 2> /dev/null;; esac; {rowmill} {words}; \
             code=$?; find disk -name '*.tmp' -o -name '*.partial' -o -name job.toml >&2; \
             exit $code"
        );
        let namespace = ["--user", "--map-root-user", "--mount", "sh", "-c", &script];
        let ran = Command::new("unshare").args(namespace).current_dir(place.path("")).output();
        let Some(ran) = ran.ok().filter(|ran| ran.status.code() != Some(77)) else {
            testkit::skip("a full disk", "permission to mount in a namespace");
            return;
        };
        let stderr = String::from_utf8(ran.stderr).unwrap();
        if stderr.contains("unshare failed") {
            testkit::skip("a full disk", "permission to mount in a namespace");
            return;
        }
        assert_eq!(ran.status.code(), Some(1), "{words}: {stderr}");
        assert!(stderr.contains("No space left on device"), "{words}: {stderr}");
        assert!(stderr.contains(file), "{words}: {stderr}");
        assert!(!stderr.contains(".tmp\n") && !stderr.contains(".partial\n"), "{words}: {stderr}");
        assert!(!stderr.contains("job.toml\n"), "{words}: {stderr}");
    }
}
