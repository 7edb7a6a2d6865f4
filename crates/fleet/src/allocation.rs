//! Whose a GPU is: what schedulers, prologs and launchers say. Allocation decides, not processes: a
//! GPU that a job holds without using it is the most expensive one.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use crate::process::Process;

/// Files of a mapping folder that are read: a host has fewer GPUs and instances.
const FILES_MAX: usize = 4096;
/// A line for each job, and a name is short.
const FILE_MAX: u64 = 64 << 10;
/// Letters of a value from a job's own environment that are kept.
const VALUE_MAX: usize = 256;
/// Letters of a workflow type's name.
const WORKFLOW_MAX: usize = 64;

/// A run of a user's job, as its scheduler or launcher names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SchedulerRun {
    /// `slurm`, `kubernetes`, `torchrun`, or `prolog` where a file names it.
    pub scheduler: &'static str,
    /// Its job, `123_4` for a task of an array.
    pub job: String,
    /// Its name.
    pub name: Option<String>,
    /// Its user, by name or number.
    pub user: Option<String>,
    /// Who pays.
    pub account: Option<String>,
    /// Partition or name space.
    pub partition: Option<String>,
}

/// Which runs hold which GPU, by its index (`0`, `0-1` for an instance) or UUID.
pub type Holders = BTreeMap<String, Vec<SchedulerRun>>;

/// The run a process belongs to; `None` if unknown.
pub fn run_of(process: &Process, group: Option<&str>) -> Option<SchedulerRun> {
    let variable = |name: &str| {
        let value = process.variable(name).filter(|value| !value.is_empty())?;
        Some(value.chars().filter(|c| !c.is_control()).take(VALUE_MAX).collect::<String>())
    };
    let by_group = group.and_then(group_run);
    if let Some(id) = variable("SLURM_JOB_ID").or_else(|| variable("SLURM_JOBID")) {
        let array = variable("SLURM_ARRAY_JOB_ID").zip(variable("SLURM_ARRAY_TASK_ID"));
        let job = array.map_or(id, |(job, task)| format!("{job}_{task}"));
        return Some(SchedulerRun {
            scheduler: "slurm",
            job,
            name: variable("SLURM_JOB_NAME"),
            user: variable("SLURM_JOB_USER").or_else(|| Some(process.uid.to_string())),
            account: variable("SLURM_JOB_ACCOUNT"),
            partition: variable("SLURM_JOB_PARTITION"),
        });
    }
    if by_group.is_some() {
        return by_group;
    }
    if let Some(pod) = variable("POD_NAME").or_else(|| variable("POD_UID")) {
        let (name, partition) = (variable("POD_NAME"), variable("POD_NAMESPACE"));
        let user = Some(process.uid.to_string());
        return Some(SchedulerRun {
            scheduler: "kubernetes",
            job: pod,
            name,
            user,
            account: None,
            partition,
        });
    }
    let job = variable("TORCHELASTIC_RUN_ID").filter(|id| id != "none");
    let job = job.or_else(|| {
        let (host, port) = (variable("MASTER_ADDR")?, variable("MASTER_PORT")?);
        Some(format!("{host}:{port}"))
    });
    let user = Some(process.uid.to_string());
    job.map(|job| SchedulerRun { scheduler: "torchrun", job, user, ..SchedulerRun::default() })
}

/// The workflow type of a process, whose runs are much alike: what it says itself, else its job's
/// name, else its script.
pub fn workflow_of(process: &Process, run: Option<&SchedulerRun>) -> String {
    let own = ["ROWMILL_WORKFLOW", "PT_PROFILER_JOB_NAME"].iter();
    let own = own.filter_map(|name| process.variable(name)).find(|name| !name.is_empty());
    let script = || {
        let words = process.command.iter().skip(1);
        let script = words.into_iter().find(|word| !word.starts_with('-'));
        script.or(process.command.first())?.rsplit('/').next()
    };
    let name = own.or_else(|| run?.name.as_deref()).or_else(script).unwrap_or_default();
    name.chars().filter(|c| !c.is_control()).take(WORKFLOW_MAX).collect()
}

/// The GPUs of Slurm that a process's job holds on this host.
pub fn gpus_of(process: &Process) -> Vec<String> {
    let given = process.variable("SLURM_JOB_GPUS").or_else(|| process.variable("SLURM_STEP_GPUS"));
    let list = given.unwrap_or_default().split(',').map(str::trim);
    list.filter(|gpu| !gpu.is_empty() && gpu.len() <= 64).map(str::to_owned).collect()
}

/// The run that a control group's path names: `…/job_7/step_0/…`, `…/kubepods…/pod<uid>…`.
pub fn group_run(path: &str) -> Option<SchedulerRun> {
    let mut parts = path.split('/');
    if path.contains("slurm") {
        let job = parts.find_map(|part| part.strip_prefix("job_"))?;
        let is_number = !job.is_empty() && job.bytes().all(|byte| byte.is_ascii_digit());
        return is_number.then(|| SchedulerRun {
            scheduler: "slurm",
            job: job.to_owned(),
            ..SchedulerRun::default()
        });
    }
    let pod = parts.filter(|_| path.contains("kubepods")).find_map(|part| {
        // With systemd: `kubepods-burstable-pod<uid>.slice`, with `_` for `-`.
        let at = part.find("pod").filter(|_| part != "kubepods.slice")?;
        let rest = part[at..].strip_prefix("pods").unwrap_or(&part[at..]);
        let rest = rest.rsplit("pod").next()?.trim_end_matches(".slice");
        let is_uid =
            rest.len() >= 32 && rest.bytes().all(|b| b.is_ascii_hexdigit() || b"-_".contains(&b));
        is_uid.then(|| rest.replace('_', "-"))
    })?;
    Some(SchedulerRun { scheduler: "kubernetes", job: pod, ..SchedulerRun::default() })
}

/// The control group of a process (version 2), or its Slurm group of version 1.
pub fn group_of(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = |line: &str| line.splitn(3, ':').nth(2).map(str::to_owned);
    let unified = text.lines().find(|line| line.starts_with("0::")).and_then(path);
    let slurm = text.lines().find(|line| line.contains("/slurm")).and_then(path);
    slurm.or(unified)
}

/// A folder with a file per GPU, named by its index (`0`, `0-1` for an instance) or UUID, as
/// dcgm-exporter's job mapping and the prologs of jobstats write it: a line for each job, `job` or
/// `job user`.
pub fn mapped(folder: &Path) -> Holders {
    let mut found = Holders::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().take(FILES_MAX) {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        if !is_file || name.starts_with('.') {
            continue;
        }
        let mut text = String::new();
        let opened = fs::File::open(entry.path());
        let read = opened.and_then(|file| file.take(FILE_MAX).read_to_string(&mut text));
        let runs: Vec<SchedulerRun> = text.lines().filter_map(line).collect();
        if read.is_ok() && !runs.is_empty() {
            found.insert(name, runs);
        }
    }
    found
}

fn line(text: &str) -> Option<SchedulerRun> {
    let mut words = text.split_ascii_whitespace();
    let job = words.next().filter(|job| job.len() <= VALUE_MAX && *job != "0")?;
    let user = words.next().map(str::to_owned);
    Some(SchedulerRun { scheduler: "prolog", job: job.to_owned(), user, ..SchedulerRun::default() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::{gpus_of, group_run, mapped, run_of, workflow_of};
    use crate::process::Process;

    fn process(variables: &[(&str, &str)]) -> Process {
        let pair = |&(a, b): &(&str, &str)| (a.to_owned(), b.to_owned());
        let environment: BTreeMap<String, String> = variables.iter().map(pair).collect();
        Process { environment: Some(environment), ..Process::read(std::process::id()).unwrap() }
    }

    #[test]
    fn slurm_tells_job_user_and_gpus() {
        let slurm = process(&[
            ("SLURM_JOB_ID", "77"),
            ("SLURM_JOB_USER", "ada"),
            ("SLURM_JOB_NAME", "train\u{1b}[2J"),
            ("SLURM_JOB_GPUS", "0,3"),
        ]);
        let run = run_of(&slurm, None).unwrap();
        assert_eq!(
            (run.scheduler, run.job.as_str(), run.user.as_deref()),
            ("slurm", "77", Some("ada"))
        );
        assert_eq!(run.name.as_deref(), Some("train[2J"));
        assert_eq!(gpus_of(&slurm), ["0", "3"]);
        let task = process(&[
            ("SLURM_JOB_ID", "78"),
            ("SLURM_ARRAY_JOB_ID", "70"),
            ("SLURM_ARRAY_TASK_ID", "4"),
        ]);
        assert_eq!(run_of(&task, None).unwrap().job, "70_4");
        let elastic =
            process(&[("TORCHELASTIC_RUN_ID", "none"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")]);
        assert_eq!(run_of(&elastic, None).unwrap().job, "a:1");
        assert_eq!(run_of(&process(&[]), None), None);
        assert_eq!(workflow_of(&slurm, Some(&run)), "train[2J");
        assert_eq!(workflow_of(&process(&[("ROWMILL_WORKFLOW", "ads")]), Some(&run)), "ads");
        let command = ["/usr/bin/python3", "-u", "/home/ada/ranking.py", "--lr"];
        let command = command.map(str::to_owned).to_vec();
        assert_eq!(workflow_of(&Process { command, ..process(&[]) }, None), "ranking.py");
    }

    #[test]
    fn control_groups_name_jobs_and_pods() {
        let job = |path: &str| group_run(path).map(|run| (run.scheduler, run.job));
        let slurm = Some(("slurm", "42".to_owned()));
        assert_eq!(job("/slurm/uid_1000/job_42/step_0"), slurm);
        assert_eq!(job("/system.slice/slurmstepd.scope/job_42/step_batch/user/task_0"), slurm);
        let uid = "0f8a2c3e-1b2c-4d5e-8f90-a1b2c3d4e5f6";
        let pod = Some(("kubernetes", uid.to_owned()));
        assert_eq!(job(&format!("/kubepods/burstable/pod{uid}/abc")), pod);
        let slice = uid.replace('-', "_");
        let path = format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/x"
        );
        assert_eq!(job(&path), pod);
        for none in ["/", "/user.slice/user-0.slice", "/kubepods/x", "/slurm/job_x"] {
            assert_eq!(job(none), None, "{none}");
        }
    }

    #[test]
    fn a_mapping_folder_is_read_and_what_is_no_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("0", "1234 1000\n");
        write("1-2", "99\n100 bob\n\n");
        write("GPU-5", "0\n");
        write(".hidden", "1");
        fs::create_dir(folder.path().join("3")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("4")).unwrap();
        let found = mapped(folder.path());
        assert_eq!(found.keys().collect::<Vec<_>>(), ["0", "1-2"]);
        assert_eq!(found["0"][0].user.as_deref(), Some("1000"));
        let jobs: Vec<&str> = found["1-2"].iter().map(|run| run.job.as_str()).collect();
        assert_eq!(jobs, ["99", "100"]);
        assert!(mapped(&folder.path().join("none")).is_empty());
    }
}
