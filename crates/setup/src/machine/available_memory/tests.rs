//! Tests with artificial `/proc` and control-group folders, which check how much memory each
//! arrangement leaves to the process.

use std::fs;
use std::path::{Path, PathBuf};

use schema::Bytes;

use super::{AvailableMemory, MemoryLimit, read_from, unescaped};

const MIB: u64 = 1 << 20;
/// The limit that version 1 of control groups shows for a group without a limit.
const UNLIMITED: &str = "9223372036854771712";

/// A machine with 1000 MiB of free memory, whose process holds 10 MiB.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new(cgroup: &str, mounts: &[(&str, &str, &str)]) -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap() };
        machine.write("proc/meminfo", &format!("MemAvailable: {} kB\n", 1000 * 1024));
        machine.write("proc/self/status", &format!("RssAnon:\t {} kB\n", 10 * 1024));
        machine.write("proc/self/cgroup", cgroup);
        let line = |(kind, root, point): &(&str, &str, &str)| {
            let point = machine.path(point);
            let kind = match *kind {
                "v2" => "cgroup2 cgroup2 rw".to_owned(),
                controllers => format!("cgroup cgroup rw,{controllers}"),
            };
            format!("30 25 0:26 {root} {} rw,nosuid shared:9 - {kind}\n", point.display())
        };
        let lines: String = mounts.iter().map(line).collect();
        machine.write("proc/self/mountinfo", &format!("22 1 8:1 / / rw - ext4 disk rw\n{lines}"));
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Writes the files of a version 2 control group. The limit is written as given, and the usage
    /// and the page cache are in MiB.
    fn two(self, folder: &str, max: &str, used: u64, cache: u64) -> Self {
        self.write(&format!("{folder}/memory.max"), max);
        self.write(&format!("{folder}/memory.current"), &(used * MIB).to_string());
        let stat = format!("anon 1\nactive_file {}\ninactive_file {}\n", cache * MIB, cache * MIB);
        self.write(&format!("{folder}/memory.stat"), &stat);
        self
    }

    /// Writes the files of a version 1 control group.
    fn one(self, folder: &str, limit: &str, used: u64, cache: u64) -> Self {
        self.write(&format!("{folder}/memory.limit_in_bytes"), limit);
        self.write(&format!("{folder}/memory.usage_in_bytes"), &(used * MIB).to_string());
        let stat = format!(
            "inactive_file 0\nhierarchical_memory_limit {UNLIMITED}\ntotal_inactive_file {}\n\
             total_active_file {}\n",
            cache * MIB,
            cache * MIB
        );
        self.write(&format!("{folder}/memory.stat"), &stat);
        self
    }

    fn check(&self, mib: u64, group: Option<&str>) {
        let limit =
            group.map_or(MemoryLimit::Machine, |group| MemoryLimit::ControlGroup(self.path(group)));
        let expected = AvailableMemory { bytes: Bytes(mib * MIB), limit };
        assert_eq!(read_from(&self.path("proc")), Some(expected));
    }
}

fn mib(count: u64) -> String {
    (count * MIB).to_string()
}

#[test]
fn without_control_groups_the_machine_limits() {
    Machine::new("", &[]).check(1010, None);
}

#[test]
fn no_proc_means_no_memory_limit() {
    assert_eq!(read_from(Path::new("no/such/proc")), None);
}

#[test]
fn version_two_limits_and_its_page_cache_counts_as_free() {
    let machine = Machine::new("0::/job\n", &[("v2", "/", "cgroup")]);
    // 100 MiB are in use, of which 40 MiB are page cache and 10 MiB belong to this process.
    machine.two("cgroup/job", &mib(300), 100, 20).check(250, Some("cgroup/job"));
}

#[test]
fn version_two_without_a_limit_leaves_the_machine() {
    let machine = Machine::new("0::/job\n", &[("v2", "/", "cgroup")]);
    machine.two("cgroup/job", "max\n", 100, 0).check(1010, None);
}

#[test]
fn the_tightest_of_nested_groups_limits() {
    let mounts = [("v2", "/", "cgroup")];
    let machine = Machine::new("0::/a/b/c\n", &mounts)
        .two("cgroup/a/b/c", &mib(800), 20, 0)
        .two("cgroup/a/b", "max", 20, 0)
        // Other processes in this group hold 400 MiB.
        .two("cgroup/a", &mib(600), 410, 0);
    machine.check(200, Some("cgroup/a"));
}

#[test]
fn version_one_limits_with_its_ancestors() {
    let cgroup = "5:cpu,cpuacct:/x\n4:memory:/box/job\n0::/\n";
    let mounts = [("cpu,cpuacct", "/", "cpu"), ("memory", "/", "memory"), ("v2", "/", "unified")];
    let machine = Machine::new(cgroup, &mounts)
        .one("memory/box/job", UNLIMITED, 50, 0)
        .one("memory/box", &mib(500), 110, 25)
        .one("memory", UNLIMITED, 9000, 0);
    machine.check(450, Some("memory/box"));
}

#[test]
fn a_limit_around_what_is_mounted_shows_in_version_one() {
    let machine = Machine::new("4:memory:/job\n", &[("memory", "/", "memory")]);
    let machine = machine.one("memory/job", UNLIMITED, 10, 0);
    machine.write("memory/job/memory.stat", &format!("hierarchical_memory_limit {}\n", mib(70)));
    machine.check(70, Some("memory/job"));
}

#[test]
fn a_container_sees_its_own_group_at_the_mount_point() {
    // The path is that of the host, and so is the root of the mount.
    let mounts = [("memory", "/docker/1f", "memory")];
    let machine = Machine::new("4:memory:/docker/1f\n", &mounts);
    machine.one("memory", &mib(200), 10, 0).check(200, Some("memory"));
    // The process is in a group outside the part that its namespace shows.
    let machine = Machine::new("0::/../other\n", &[("v2", "/", "cgroup")]);
    machine.two("cgroup", &mib(100), 10, 0).check(100, Some("cgroup"));
}

#[test]
fn what_others_brought_into_a_full_group_leaves_nothing() {
    let machine = Machine::new("0::/job\n", &[("v2", "/", "cgroup")]);
    machine.two("cgroup/job", &mib(100), 500, 0).check(0, Some("cgroup/job"));
}

#[test]
fn files_that_are_no_numbers_limit_nothing() {
    let machine = Machine::new("0::/job\n4:memory\n::\n", &[("v2", "/", "cgroup")]);
    machine.two("cgroup/job", "many", 1, 0).check(1010, None);
}

#[test]
fn mount_points_are_unescaped() {
    assert_eq!(unescaped(r"/a\040b\134c"), r"/a b\c");
    assert_eq!(unescaped(r"/a\9"), r"/a\9");
    let machine = Machine::new("0::/job\n", &[("v2", "/", r"con\040trol")]);
    machine.two("con trol/job", &mib(300), 10, 0).check(300, Some("con trol/job"));
}
