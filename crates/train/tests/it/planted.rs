//! Tests symbolic links that another user plants in a shared run folder.

use std::os::unix::fs::symlink;

use device::Cpu;
use schema::ShardingPlan;

use crate::run::{dataset, plan, request};

#[test]
fn planted_symbolic_links_in_a_run_folder_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let request = request(&folder.path().join("run"), &dataset, plan(ShardingPlan::table_wise, 1));
    let (file, other) = (folder.path().join("file"), folder.path().join("other"));
    std::fs::write(&file, "kept").unwrap();
    std::fs::create_dir_all(&other).unwrap();
    let checkpoints = request.run_folder.join("checkpoints");
    std::fs::create_dir_all(&checkpoints).unwrap();
    // A run opens each of these paths for writing, so following a link would change its target.
    symlink(&file, request.run_folder.join("lock")).unwrap();
    symlink(&file, checkpoints.join("best.tmp")).unwrap();
    for step in 0..40 {
        symlink(&other, checkpoints.join(format!("step-{step:012}.tmp"))).unwrap();
    }
    train::run(&request, Cpu::open, &mut |_| {}).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    assert_eq!(std::fs::read_dir(&other).unwrap().count(), 0);
    assert!(!train::checkpoint::list(&request.run_folder).unwrap().is_empty());
}
