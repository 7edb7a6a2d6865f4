//! The CPUs that this process may use, grouped by NUMA node and core. This module does not depend
//! on what runs on them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::system;

/// The CPUs that this process may use, with their NUMA nodes and cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// CPUs of each NUMA node that has any, in ascending order. There is at least one node.
    nodes: Vec<Vec<usize>>,
    /// Number of cores with at least one usable CPU. Hardware threads of one core count once.
    cores: usize,
}

impl Topology {
    /// Detects the CPUs in the affinity mask of this process.
    #[must_use]
    pub fn detect() -> Self {
        Self::read(Path::new("/sys/devices/system"), &allowed())
    }

    /// Reads the topology of the `allowed` CPUs from a sysfs folder. If the folder has no data,
    /// the result is one node with one CPU per core.
    fn read(system: &Path, allowed: &[usize]) -> Self {
        let list = |path: &Path| fs::read_to_string(path).ok().map(|text| parse(&text));
        let mut nodes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for entry in fs::read_dir(system.join("node")).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number = name.to_string_lossy().strip_prefix("node").and_then(|n| n.parse().ok());
            let Some((number, cpus)) = number.zip(list(&entry.path().join("cpulist"))) else {
                continue;
            };
            let ours: Vec<usize> = cpus.into_iter().filter(|cpu| allowed.contains(cpu)).collect();
            if !ours.is_empty() {
                nodes.insert(number, ours);
            }
        }
        let mut nodes: Vec<Vec<usize>> = nodes.into_values().collect();
        if nodes.iter().map(Vec::len).sum::<usize>() != allowed.len() || nodes.is_empty() {
            nodes = vec![allowed.to_vec()];
        }
        let siblings = |cpu: usize| {
            let path = format!("cpu/cpu{cpu}/topology/thread_siblings_list");
            list(&system.join(path)).unwrap_or_else(|| vec![cpu])
        };
        // A core is identified by the first of its CPUs that this process may use.
        let first = |cpu: usize| siblings(cpu).into_iter().find(|other| allowed.contains(other));
        let cores = allowed.iter().filter(|cpu| first(**cpu).is_none_or(|first| first == **cpu));
        Self { cores: cores.count().max(1), nodes }
    }

    /// Creates the topology of a machine with these nodes.
    #[cfg(test)]
    pub(super) fn from_nodes(nodes: &[&[usize]]) -> Self {
        let nodes: Vec<Vec<usize>> = nodes.iter().map(|cpus| cpus.to_vec()).collect();
        Self { cores: nodes.iter().map(Vec::len).sum(), nodes }
    }

    /// Returns the number of CPUs that this process may use.
    pub(super) fn processors(&self) -> usize {
        self.nodes.iter().map(Vec::len).sum()
    }

    /// Returns the number of NUMA nodes with CPUs that this process may use.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of threads from which arithmetic benefits: one per core, but no more
    /// than the CPU quota allows. One thread can keep the multiply units of a core busy, so a
    /// second hardware thread does not help.
    #[must_use]
    pub fn cores(&self) -> usize {
        let granted = std::thread::available_parallelism().map_or(1, usize::from);
        self.cores.min(granted)
    }

    /// Returns the NUMA node of the CPU that runs the calling thread, or 0 if it is unknown.
    #[must_use]
    pub fn here(&self) -> usize {
        if self.nodes.len() < 2 {
            return 0;
        }
        let cpu = system::current();
        self.nodes.iter().position(|cpus| cpus.contains(&cpu)).unwrap_or_default()
    }

    /// Restricts the calling thread to the CPUs of a node. If the system refuses, only speed
    /// suffers.
    pub(super) fn bind(&self, node: usize) {
        if self.nodes.len() > 1 {
            system::bind(system::SELF, &self.nodes[node]);
        }
    }
}

/// Parses a list of CPU numbers such as `0-3,8,10-11`.
fn parse(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// Returns the CPUs in the affinity mask of this process, or all CPUs if the mask is unknown.
fn allowed() -> Vec<usize> {
    let cpus = system::allowed(system::SELF);
    if cpus.is_empty() { all() } else { cpus }
}

fn all() -> Vec<usize> {
    (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use testkit::Folder;

    use super::{Topology, allowed, parse};

    /// Creates a sysfs folder that describes two nodes of two cores with two hardware threads
    /// each.
    fn two_nodes() -> Folder {
        let system = Folder::new();
        system.write("node/node0/cpulist", "0-1,4-5\n");
        system.write("node/node1/cpulist", "2-3,6-7\n");
        for cpu in 0..8 {
            let core = cpu % 4;
            let path = format!("cpu/cpu{cpu}/topology/thread_siblings_list");
            system.write(&path, format!("{core},{}\n", core + 4));
        }
        system
    }

    #[test]
    fn processors_are_grouped_by_node_and_core() {
        let system = two_nodes();
        let all: Vec<usize> = (0..8).collect();
        let whole = Topology::read(system.root(), &all);
        assert_eq!(whole.nodes, [[0, 1, 4, 5], [2, 3, 6, 7]]);
        assert_eq!(whole.cores, 4);
        let part = Topology::read(system.root(), &[4, 6]);
        assert_eq!((part.nodes, part.cores), (vec![vec![4], vec![6]], 2));
    }

    #[test]
    fn a_system_without_topology_counts_as_one_node() {
        let topology = Topology::read(Path::new("/nowhere"), &[0, 3]);
        assert_eq!(topology, Topology { nodes: vec![vec![0, 3]], cores: 2 });
        assert_eq!(parse("0-2,7, x,9-8\n"), [0, 1, 2, 7]);
        let ours = Topology::detect();
        assert!(ours.cores() >= 1 && ours.here() < ours.nodes());
        assert!(!allowed().is_empty());
    }
}
