//! Reads properties of this machine: cores, memory, free disk space and the width of the terminal.

pub mod available_memory;

use std::io::IsTerminal;
use std::path::Path;

use schema::Bytes;

/// Counts the cores that this process may use. The hardware threads of one core count once.
pub fn cores() -> usize {
    device::cpu::Topology::detect().cores()
}

/// Returns the kernel's list of the CPUs that this process may use, or an empty text if it is
/// unknown.
pub fn allowed_cpus() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.unwrap_or_default().trim().to_owned()
}

/// Returns the free space on the disk of `folder` that users other than root may use.
pub fn disk_available(folder: &Path) -> Option<Bytes> {
    // The folder may not exist yet. For such a folder, the nearest existing ancestor is on the same
    // disk.
    let absolute = std::path::absolute(folder).ok()?;
    let existing = absolute.ancestors().find(|path| path.exists())?;
    let disk = rustix::fs::statvfs(existing).ok()?;
    Some(Bytes(disk.f_bavail.saturating_mul(disk.f_frsize)))
}

/// Returns the width of the terminal on standard output, or `None` if standard output is not a
/// terminal.
pub fn terminal_width() -> Option<usize> {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&stdout).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::disk_available;

    #[test]
    fn a_folder_to_come_has_the_disk_of_its_parent() {
        assert!(disk_available(Path::new("no/such/folder")).is_some());
    }
}
