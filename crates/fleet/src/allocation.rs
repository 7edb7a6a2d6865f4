//! Reads which runs hold which GPUs. The sources are mapping folders of schedulers, control groups,
//! and environments of processes. [`crate::ownership`] decides which source counts.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use crate::process::Process;

/// Maximum number of files that are read from a mapping folder. A host has fewer GPUs and
/// instances.
const FILES_MAX: usize = 4096;
/// Maximum number of bytes that are read of a mapping file, which is enough for many jobs.
const FILE_MAX: u64 = 64 << 10;
/// Number of characters that are kept of a value from a job's environment.
const VALUE_MAX: usize = 256;
/// Number of characters of an invalid line that a message shows.
const SHOWN_MAX: usize = 60;
/// Number of characters that are kept of a workflow type's name.
const WORKFLOW_MAX: usize = 64;

/// Parts of the path of a pod's control group before the pod, as seen from another pod.
const RELATIVE: [&str; 4] = ["", "..", "burstable", "besteffort"];

/// A run of a user's job, identified by its scheduler or launcher.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SchedulerRun {
    /// `slurm`, `kubernetes`, `torchrun`, or `prolog` for runs from a mapping folder.
    pub scheduler: &'static str,
    /// Slurm's job number, which is unique even for tasks of an array, or the name of a pod.
    pub job: String,
    /// Another name of the same run: `123_4` for a task of an array, the UID of a pod.
    pub alias: Option<String>,
    /// Name of the job that the user chose.
    pub name: Option<String>,
    /// Name of the user, or the user id if the name is unknown.
    pub user: Option<String>,
    pub uid: Option<u32>,
    pub account: Option<String>,
    /// Slurm's partition, or the namespace of a pod.
    pub partition: Option<String>,
    /// Whether only environments of the user's own processes name the run, so that neither the
    /// scheduler nor a control group confirms that the run is the user's.
    pub is_claim: bool,
}

/// The runs that hold each GPU of a host. The key is the index (`0`, or `0-1` for an instance) or
/// the UUID.
pub type Holders = BTreeMap<String, Vec<SchedulerRun>>;

impl SchedulerRun {
    /// Whether this record and another one describe the same run.
    ///
    /// Slurm and mapping folders use the same job numbers. Names from launchers such as torchrun
    /// are not unique on a host, so two such runs are the same only if the user is the same as
    /// well.
    pub fn is_same(&self, other: &Self) -> bool {
        let family = |run: &Self| if run.scheduler == "prolog" { "slurm" } else { run.scheduler };
        if family(self) != family(other) {
            return false;
        }
        let differ = |one: &Option<String>, other: &Option<String>| {
            one.as_ref().zip(other.as_ref()).is_some_and(|(one, other)| one != other)
        };
        match self.scheduler {
            "kubernetes" if differ(&self.partition, &other.partition) => false,
            "torchrun" => self.job == other.job && self.uid == other.uid,
            _ => {
                let alias = |run: &Self| run.alias.clone().unwrap_or_default();
                self.job == other.job || alias(self) == other.job || self.job == alias(other)
            }
        }
    }

    /// Returns all names of this run: job, alias, and `namespace/name` of a pod.
    pub fn names(&self) -> Vec<String> {
        let is_pod = self.scheduler == "kubernetes";
        let namespace = self.partition.as_ref().filter(|_| is_pod);
        let in_namespace = namespace.map(|namespace| format!("{namespace}/{}", self.job));
        [Some(self.job.clone()), self.alias.clone(), in_namespace].into_iter().flatten().collect()
    }

    /// Whether `word` is one of the run's names.
    pub fn is_named(&self, word: &str) -> bool {
        self.names().iter().any(|name| name == word)
    }

    /// Fills fields that are missing in this record from another record of the same run.
    pub fn fill(&mut self, other: &Self) {
        let fill = |own: &mut Option<String>, other: &Option<String>| {
            if own.is_none() {
                own.clone_from(other);
            }
        };
        fill(&mut self.name, &other.name);
        fill(&mut self.user, &other.user);
        fill(&mut self.account, &other.account);
        fill(&mut self.partition, &other.partition);
        if other.job != self.job {
            fill(&mut self.alias, &Some(other.job.clone()));
        }
        fill(&mut self.alias, &other.alias);
        self.uid = self.uid.or(other.uid);
        self.is_claim &= other.is_claim;
        if self.scheduler == "prolog" {
            self.scheduler = other.scheduler;
        }
    }
}

/// Returns the run that the environment of a process names. The result is not reliable, because
/// users choose the environments of their processes.
pub fn environment_run(process: &Process) -> Option<SchedulerRun> {
    let variable = |name: &str| {
        let value = process.variable(name).filter(|value| !value.is_empty())?;
        Some(value.chars().filter(|c| !c.is_control()).take(VALUE_MAX).collect::<String>())
    };
    if let Some(job) = variable("SLURM_JOB_ID").or_else(|| variable("SLURM_JOBID")) {
        let array = variable("SLURM_ARRAY_JOB_ID").zip(variable("SLURM_ARRAY_TASK_ID"));
        return Some(SchedulerRun {
            scheduler: "slurm",
            job,
            alias: array.map(|(job, task)| format!("{job}_{task}")),
            name: variable("SLURM_JOB_NAME"),
            account: variable("SLURM_JOB_ACCOUNT"),
            partition: variable("SLURM_JOB_PARTITION"),
            ..SchedulerRun::default()
        });
    }
    if let Some(job) = variable("POD_NAME").or_else(|| variable("POD_UID")) {
        let (alias, partition) = (variable("POD_UID"), variable("POD_NAMESPACE"));
        let scheduler = "kubernetes";
        return Some(SchedulerRun { scheduler, job, alias, partition, ..SchedulerRun::default() });
    }
    // `none` is torchrun's default id, which all runs without an id share.
    let job = variable("TORCHELASTIC_RUN_ID").filter(|id| id != "none");
    let job = job.or_else(|| {
        let (host, port) = (variable("MASTER_ADDR")?, variable("MASTER_PORT")?);
        Some(format!("{host}:{port}"))
    })?;
    Some(SchedulerRun { scheduler: "torchrun", job, ..SchedulerRun::default() })
}

/// Returns the workflow type of a process, which groups similar runs. The type is set by the
/// environment, otherwise it is the job's name, otherwise the script's name.
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

/// Returns the GPUs that Slurm assigned to the process's job on this host.
pub fn gpus_of(process: &Process) -> Vec<String> {
    let given = process.variable("SLURM_JOB_GPUS").or_else(|| process.variable("SLURM_STEP_GPUS"));
    let list = given.unwrap_or_default().split(',').map(str::trim);
    list.filter(|gpu| !gpu.is_empty() && gpu.len() <= 64).map(str::to_owned).collect()
}

/// Returns the run that the path of a control group names: `…/job_7/step_0/…`,
/// `…/kubepods…/pod<uid>…`.
///
/// Groups below `user.slice` are ignored, because systemd allows users to create groups of any name
/// there.
pub fn group_run(path: &str) -> Option<SchedulerRun> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    if path.split('/').any(|part| part == "user.slice") {
        return None;
    }
    // Slurm's groups are `/slurm/uid_N/job_N` in cgroup v1 and
    // `/system.slice/slurmstepd.scope/job_N` in cgroup v2.
    let first = parts.next()?;
    let second = || parts.clone().next().unwrap_or_default();
    let is_slurm = |part: &str| part.starts_with("slurm") || part.ends_with("slurmstepd.scope");
    if is_slurm(first) || (first == "system.slice" && is_slurm(second())) {
        let job = parts.find_map(|part| part.strip_prefix("job_"))?;
        let is_number = !job.is_empty() && job.bytes().all(|byte| byte.is_ascii_digit());
        return is_number.then(|| SchedulerRun {
            scheduler: "slurm",
            job: job.to_owned(),
            ..SchedulerRun::default()
        });
    }
    let is_relative = path.starts_with("/../") && !path.contains("kubepods");
    let parts = path.split('/').filter(|_| path.contains("kubepods"));
    // An agent in a container sees groups of other pods relative to its own one, such as
    // `/../../burstable/pod<uid>`. Only the first part counts, because pods may create groups
    // below.
    let first = path.split('/').filter(|part| is_relative && !RELATIVE.contains(part)).take(1);
    let pod = parts.chain(first.filter(|part| part.starts_with("pod"))).find_map(|part| {
        // With systemd, the group is `kubepods-burstable-pod<uid>.slice`, and the UID has `_`
        // instead of `-`.
        let at = part.find("pod").filter(|_| part != "kubepods.slice")?;
        let rest = part[at..].strip_prefix("pods").unwrap_or(&part[at..]);
        let rest = rest.rsplit("pod").next()?.trim_end_matches(".slice");
        // A pod's UID has 32 hexadecimal digits, with or without hyphens.
        let is_uid =
            rest.len() >= 32 && rest.bytes().all(|b| b.is_ascii_hexdigit() || b"-_".contains(&b));
        is_uid.then(|| rest.replace('_', "-"))
    })?;
    Some(SchedulerRun { scheduler: "kubernetes", job: pod, ..SchedulerRun::default() })
}

/// Reads the names of users from `/etc/passwd`. Users that exist only in a network directory such
/// as LDAP are not found.
pub fn user_names() -> BTreeMap<u32, String> {
    let text = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    // The lines are read in reverse, because the C library uses the first of several lines with the
    // same user id.
    text.lines().rev().filter_map(line).collect()
}

/// Returns the control group of a process.
pub fn group_of(pid: u32) -> Option<String> {
    group_in(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// Selects the group in `/proc/PID/cgroup` that names a run. If no group does, selects the group of
/// cgroup v2, or the group of the memory controller in v1.
fn group_in(text: &str) -> Option<String> {
    let path = |line: &str| line.splitn(3, ':').nth(2).map(str::to_owned);
    let named = text.lines().filter_map(path).find(|path| group_run(path).is_some());
    let path_after = |start: &str| text.lines().find(|line| line.contains(start)).and_then(path);
    named
        .or_else(|| path_after("0::").filter(|path| path != "/"))
        .or_else(|| path_after(":memory:"))
        .or(path_after("0::"))
}

/// Reads the names of pods by UID from the kubelet's log folders, which are named
/// `namespace_name_uid`. The names connect the kubelet's list of devices, which has only names,
/// with control groups, which have only UIDs.
pub fn pod_names(logs: &Path) -> BTreeMap<String, SchedulerRun> {
    let entries = fs::read_dir(logs).into_iter().flatten().flatten();
    let pod = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let [namespace, name, uid] = name.split('_').collect::<Vec<_>>().try_into().ok()?;
        let (namespace, name, uid) = (namespace.to_owned(), name.to_owned(), uid.to_owned());
        let run = SchedulerRun {
            scheduler: "kubernetes",
            job: name,
            alias: Some(uid.clone()),
            partition: Some(namespace),
            ..SchedulerRun::default()
        };
        Some((uid, run))
    };
    entries.filter_map(pod).collect()
}

/// The content of a mapping folder. A mapping folder has one file per GPU, named by index (`0`, or
/// `0-1` for an instance) or UUID, with one line per job. dcgm-exporter's job mapping and the
/// prologs of jobstats use such folders.
///
/// A line is `job` (dcgm-exporter), `job user`, or `job user uid [array_task]`
/// (`deploy/slurm/prolog.sh`). A line `0` means that no job holds the GPU.
#[derive(Debug, Default)]
pub struct JobMapping {
    pub holders: Holders,
    /// The first problem with the folder, a file or a line.
    pub problem: Option<String>,
}

impl JobMapping {
    /// Reads all files of a mapping folder. Invalid lines are skipped, and the first problem is
    /// kept.
    pub fn read(folder: &Path) -> Self {
        let mut mapping = Self::default();
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) => {
                mapping.problem =
                    Some(format!("{}: cannot list the folder: {error}", folder.display()));
                return mapping;
            }
        };
        for entry in entries.flatten().take(FILES_MAX) {
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            if is_file && !name.starts_with('.') {
                mapping.add_file(&entry.path(), name);
            }
        }
        mapping
    }

    /// Checks that all files and lines of the folder were understood.
    ///
    /// # Errors
    /// Returns a note with the problem, its effect and its fix.
    pub fn check(&self) -> Result<(), String> {
        let Some(problem) = &self.problem else { return Ok(()) };
        Err(format!(
            "job_mapping: {problem}. GPUs lack the jobs that it should name. Correct it, or `job_mapping`; \
             deploy/slurm/prolog.sh makes the folder and writes its files"
        ))
    }

    fn add_file(&mut self, path: &Path, name: String) {
        let mut text = String::new();
        let opened = fs::File::open(path);
        let read = opened.and_then(|file| file.take(FILE_MAX).read_to_string(&mut text));
        if let Err(error) = read {
            self.problem.get_or_insert(format!("{}: cannot read: {error}", path.display()));
            return;
        }
        let mut runs = Vec::new();
        let lines = text.lines().map(str::trim).enumerate();
        for (at, line) in lines.filter(|(_, line)| !line.is_empty() && *line != "0") {
            match mapped_run(line) {
                Some(run) => runs.push(run),
                None => {
                    let shown: String = line.chars().take(SHOWN_MAX).collect();
                    self.problem.get_or_insert(format!(
                        "{}:{}: expected `job`, `job user` or `job user uid`, got {shown:?}",
                        path.display(),
                        at + 1
                    ));
                }
            }
        }
        if !runs.is_empty() {
            self.holders.insert(name, runs);
        }
    }
}

/// Parses a line of a mapping folder. If the line has a user, the job is the number of a scheduler.
fn mapped_run(line: &str) -> Option<SchedulerRun> {
    let is_word = |word: &str, more: &str| {
        word.chars().all(|letter| letter.is_alphanumeric() || more.contains(letter))
    };
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let number = |word: &str| word.parse::<u32>().ok();
    let (job, user, uid, alias) = match words[..] {
        [job] => (job, None, None, None),
        [job, user] => (job, Some(user), number(user), None),
        [job, user, uid] => (job, Some(user), Some(number(uid)?), None),
        [job, user, uid, task] => (job, Some(user), Some(number(uid)?), Some(task)),
        _ => return None,
    };
    let is_number = job.starts_with(|letter: char| letter.is_ascii_digit());
    let is_right = line.len() <= VALUE_MAX
        && [Some(job), alias].into_iter().flatten().all(|word| is_word(word, "_-.:+/@[]%"))
        && user.is_none_or(|user| is_number && is_word(user, "_-.@\\$+"));
    let (job, user) = (job.to_owned(), user.map(str::to_owned));
    let (scheduler, alias) = ("prolog", alias.map(str::to_owned));
    let run = SchedulerRun { scheduler, job, alias, user, uid, ..SchedulerRun::default() };
    is_right.then_some(run)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::{
        JobMapping, SchedulerRun, environment_run, gpus_of, group_in, group_run, pod_names,
        workflow_of,
    };
    use crate::process::Process;

    fn process(variables: &[(&str, &str)]) -> Process {
        let pair = |&(a, b): &(&str, &str)| (a.to_owned(), b.to_owned());
        let environment: BTreeMap<String, String> = variables.iter().map(pair).collect();
        Process { environment: Some(environment), ..Process::read(std::process::id()).unwrap() }
    }

    #[test]
    fn slurm_variables_name_job_array_task_and_gpus() {
        let slurm = process(&[
            ("SLURM_JOB_ID", "77"),
            ("SLURM_JOB_USER", "ada"),
            ("SLURM_JOB_NAME", "train\u{1b}[2J"),
            ("SLURM_JOB_GPUS", "0,3"),
        ]);
        let run = environment_run(&slurm).unwrap();
        assert_eq!((run.scheduler, run.job.as_str(), run.user.as_deref()), ("slurm", "77", None));
        assert_eq!(run.name.as_deref(), Some("train[2J"));
        assert_eq!(gpus_of(&slurm), ["0", "3"]);
        let task = environment_run(&process(&[
            ("SLURM_JOB_ID", "78"),
            ("SLURM_ARRAY_JOB_ID", "70"),
            ("SLURM_ARRAY_TASK_ID", "4"),
        ]));
        let task = task.unwrap();
        assert_eq!((task.job.as_str(), task.alias.as_deref()), ("78", Some("70_4")));
        assert!(task.is_named("78") && task.is_named("70_4") && !task.is_named("70"));
        let elastic =
            process(&[("TORCHELASTIC_RUN_ID", "none"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")]);
        assert_eq!(environment_run(&elastic).unwrap().job, "a:1");
        assert_eq!(environment_run(&process(&[])), None);
        assert_eq!(workflow_of(&slurm, Some(&run)), "train[2J");
        assert_eq!(workflow_of(&process(&[("ROWMILL_WORKFLOW", "ads")]), Some(&run)), "ads");
        let command = ["/usr/bin/python3", "-u", "/home/ada/ranking.py", "--lr"];
        let command = command.map(str::to_owned).to_vec();
        assert_eq!(workflow_of(&Process { command, ..process(&[]) }, None), "ranking.py");
    }

    #[test]
    fn sources_agree_on_the_identity_of_a_run() {
        let run = |scheduler: &'static str, job: &str| SchedulerRun {
            scheduler,
            job: job.to_owned(),
            ..SchedulerRun::default()
        };
        let alias =
            |run: SchedulerRun, alias: &str| SchedulerRun { alias: Some(alias.to_owned()), ..run };
        let task = alias(run("slurm", "78"), "70_4");
        assert!(task.is_same(&run("prolog", "78")) && run("prolog", "70_4").is_same(&task));
        assert!(!task.is_same(&run("slurm", "70")) && !task.is_same(&run("kubernetes", "78")));
        let pod = |name: &str, namespace: &str| SchedulerRun {
            partition: Some(namespace.to_owned()),
            ..alias(run("kubernetes", name), "uid-of-pod")
        };
        assert!(pod("train-0", "ads").is_same(&run("kubernetes", "uid-of-pod")));
        assert!(!pod("train-0", "ads").is_same(&pod("train-0", "ranking")));
        assert!(pod("train-0", "ads").is_named("ads/train-0"));
        let run_of_user = |uid: u32| SchedulerRun { uid: Some(uid), ..run("torchrun", "a:1") };
        let (one, other) = (run_of_user(1), run_of_user(2));
        assert!(one.is_same(&one) && !one.is_same(&other));
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
        assert_eq!(job(&format!("/../../burstable/pod{uid}/abc")), pod);
        assert_eq!(job(&format!("/../../../kubepods-pod{slice}.slice/x")), pod);
        assert_eq!(job("/system.slice/node7_slurmstepd.scope/job_42/step_0"), slurm);
        let of_user = "/user.slice/user-1000.slice/user@1000.service";
        for none in [
            "/",
            of_user,
            "/kubepods/x",
            "/slurm/job_x",
            "/docker/slurm/job_42",
            &format!("{of_user}/slurm/uid_0/job_42/step_0"),
            &format!("{of_user}/kubepods/burstable/pod{uid}/abc"),
            &format!("/../../docker/x/pod{uid}"),
            &format!("/../..{of_user}/pod{uid}"),
        ] {
            assert_eq!(job(none), None, "{none}");
        }
    }

    #[test]
    fn cgroup_with_a_run_is_found_in_v1_and_v2() {
        let version_1 = "12:devices:/slurm/uid_1000/job_42\n4:memory:/slurm/uid_1000/job_42/step_0\n\
                         1:name=systemd:/system.slice/slurmd.service\n";
        assert_eq!(group_in(version_1).as_deref(), Some("/slurm/uid_1000/job_42"));
        let other = "4:memory:/user.slice\n1:name=systemd:/x\n";
        assert_eq!(group_in(other).as_deref(), Some("/user.slice"));
        let hybrid = "4:memory:/docker/a\n0::/\n";
        assert_eq!(group_in(hybrid).as_deref(), Some("/docker/a"));
        assert_eq!(group_in("0::/user.slice/x\n").as_deref(), Some("/user.slice/x"));
        assert_eq!(group_in("0::/\n").as_deref(), Some("/"));
    }

    #[test]
    fn log_folders_join_names_and_uids_of_pods() {
        let logs = tempfile::tempdir().unwrap();
        for name in ["ads_train-0_0f8a2c3e", "no-pod", "a_b_c_d"] {
            fs::create_dir(logs.path().join(name)).unwrap();
        }
        let pods = pod_names(logs.path());
        let pod = &pods["0f8a2c3e"];
        assert_eq!((pods.len(), pod.job.as_str()), (1, "train-0"));
        assert!(pod.is_named("ads/train-0") && pod.is_named("0f8a2c3e"));
    }

    #[test]
    fn mapping_folder_is_read_and_subfolders_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("0", "1234 1000\n");
        write("1-2", "99\n100 bob\n\n");
        write("2", "7 ada 1000 5_2\n8 ada 1000\nnightly-ads\n");
        write("GPU-5", "0\n");
        write(".hidden", "1");
        fs::create_dir(folder.path().join("3")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("4")).unwrap();
        let mapping = JobMapping::read(folder.path());
        assert_eq!(mapping.problem, None);
        let found = mapping.holders;
        assert_eq!(found.keys().collect::<Vec<_>>(), ["0", "1-2", "2"]);
        assert_eq!((found["0"][0].user.as_deref(), found["0"][0].uid), (Some("1000"), Some(1000)));
        let of_prolog = |run: &SchedulerRun| (run.job.clone(), run.uid, run.alias.clone());
        assert_eq!(
            found["2"].iter().map(of_prolog).collect::<Vec<_>>(),
            [
                ("7".to_owned(), Some(1000), Some("5_2".to_owned())),
                ("8".to_owned(), Some(1000), None),
                ("nightly-ads".to_owned(), None, None),
            ]
        );
        let jobs: Vec<&str> = found["1-2"].iter().map(|run| run.job.as_str()).collect();
        assert_eq!(jobs, ["99", "100"]);
    }

    #[test]
    fn problems_of_a_mapping_folder_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let problem = |path: &std::path::Path| JobMapping::read(path).check().unwrap_err();
        assert!(problem(&path("none")).contains("none: cannot list the folder: No such file"));
        fs::write(path("0"), "99\n").unwrap();
        assert!(problem(&path("0")).contains("0: cannot list the folder: Not a directory"));
        assert_eq!(JobMapping::read(folder.path()).check(), Ok(()));
        for garbage in ["job=8812 uid=0", "8812 ada x", "ada 8812 1000", "1 2 3 4 5", "\u{1b}[2J"] {
            fs::write(path("0"), format!("99\n{garbage}\n")).unwrap();
            let mapping = JobMapping::read(folder.path());
            assert_eq!(mapping.holders["0"].len(), 1, "{garbage}");
            let note = mapping.check().unwrap_err();
            assert!(note.contains("0:2: expected `job`, `job user` or"), "{note}");
            assert!(!note.contains('\u{1b}'), "{note}");
        }
    }
}
