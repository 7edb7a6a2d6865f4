//! Asks Kubernetes which pods run on this host, and to which job and owner each belongs. The API
//! server and the kubelet answer with the same list of pods. Which GPUs a pod holds is reported by
//! the kubelet's devices in [`crate::pods`], and which processes it has by control groups.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fleet::allocation::{Holders, SchedulerRun};
use serde::Deserialize;
use ureq::tls::TlsConfig;

/// Time between two questions while all pods that hold GPUs are known.
const PERIOD: Duration = Duration::from_secs(60);
/// Timeout of a question.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest size of an answer in bytes. Larger answers are refused.
const SIZE_MAX: u64 = 32 << 20;
/// Largest size in bytes of the files of the service account.
const FILE_MAX: u64 = 1 << 20;
/// Number of letters that are kept of a label's value.
const VALUE_MAX: usize = 256;
/// Folder of the service account in each pod.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Annotation of a static pod with the UID that its control group has.
const STATIC_UID: &str = "kubernetes.io/config.hash";
/// Label of a pod with the suffix that its deployment added to the name of the replica set.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// The section `[kubernetes]` of the configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KubernetesConfig {
    /// URL of the list of this node's pods. Without it, the API server of the cluster is asked.
    pub pods_url: Option<String>,
    /// Name of this node for the API server. Without it, the variable `NODE_NAME` counts.
    pub node: Option<String>,
    #[serde(default = "default_token")]
    pub token_file: PathBuf,
    #[serde(default = "default_ca")]
    pub ca: PathBuf,
    /// Label or annotation of a pod whose value is the user of its run.
    pub user_label: Option<String>,
    /// Label or annotation of a pod whose value is the workflow type of its run.
    pub workflow_label: Option<String>,
    /// Labels that name the job of a pod. The first one that a pod has counts.
    #[serde(default = "default_job_labels")]
    pub job_labels: Vec<String>,
}

fn default_token() -> PathBuf {
    Path::new(ACCOUNT).join("token")
}

fn default_ca() -> PathBuf {
    Path::new(ACCOUNT).join("ca.crt")
}

fn default_job_labels() -> Vec<String> {
    ["jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name"].map(str::to_owned).into()
}

/// The answer of Kubernetes, with the fields that the agent needs.
#[derive(Debug, Deserialize)]
struct PodList {
    /// The kubelet answers `null` if there is no pod.
    items: Option<Vec<Pod>>,
}

/// One pod of the answer.
#[derive(Debug, Deserialize)]
struct Pod {
    metadata: PodMetadata,
}

/// Names, labels and owners of a pod.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMetadata {
    name: String,
    namespace: String,
    uid: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    owner_references: Vec<OwnerReference>,
}

/// An object of Kubernetes that created a pod.
#[derive(Debug, Deserialize)]
struct OwnerReference {
    kind: String,
    name: String,
    #[serde(default)]
    controller: bool,
}

/// The pods of this host with their runs, as Kubernetes last listed them.
#[derive(Debug)]
pub struct PodDirectory {
    config: KubernetesConfig,
    runs_by_uid: BTreeMap<String, SchedulerRun>,
    /// The runs of pods by namespace and name.
    runs_by_name: BTreeMap<(String, String), SchedulerRun>,
    asked: Option<Instant>,
}

impl KubernetesConfig {
    /// Returns the first key with a wrong value: its name, what was expected, and what it has.
    pub fn problem(&self) -> Option<(&'static str, &'static str, String)> {
        let url = self.pods_url.as_ref().filter(|url| !is_safe(url));
        url.map(|url| {
            let expected = "https://…, or http:// with a loopback address such as 127.0.0.1:8001";
            ("pods_url", expected, format!("{url:?}"))
        })
    }

    /// Returns the URL of the list of pods.
    fn url(&self, variable: impl Fn(&str) -> Option<String>) -> Result<String, String> {
        if let Some(url) = &self.pods_url {
            return Ok(url.clone());
        }
        let host = variable("KUBERNETES_SERVICE_HOST").ok_or(
            "expected the variable KUBERNETES_SERVICE_HOST, which each pod has, or `pods_url`",
        )?;
        let port = variable("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
        let node = self.node.clone().or_else(|| variable("NODE_NAME"));
        let node = node.ok_or("expected `node`, or the variable NODE_NAME of the DaemonSet")?;
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        Ok(format!("https://{host}:{port}/api/v1/pods?fieldSelector=spec.nodeName%3D{node}"))
    }

    /// Asks Kubernetes for the pods of this node.
    ///
    /// # Errors
    /// Returns a note with the problem, its consequence and a remedy.
    pub fn ask(&self) -> Result<PodRuns, String> {
        let url = self.url(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
        let listed = url.clone().and_then(|url| self.fetch(&url));
        let listed = listed.and_then(|text| {
            serde_json::from_str::<PodList>(&text)
                .map_err(|error| format!("not a PodList: {error}"))
        });
        let place = url.unwrap_or_else(|_| "the API server".to_owned());
        let pods = listed.map_err(|problem| {
            format!(
                "Kubernetes at {place}: {problem}. Runs of new pods lack their job and owner. The service account \
                 needs the verb `list` for pods, as in deploy/kubernetes/daemonset.yaml; on a host without Kubernetes \
                 remove [kubernetes]. The agent tries again"
            )
        })?;
        let pods = pods.items.unwrap_or_default().into_iter();
        Ok(PodRuns(pods.map(|pod| (self.run(&pod.metadata), pod)).collect()))
    }

    fn fetch(&self, url: &str) -> Result<String, String> {
        let is_encrypted = url.starts_with("https://");
        let mut builder = ureq::Agent::config_builder()
            .https_only(is_encrypted)
            .max_redirects(0)
            .timeout_global(Some(PATIENCE));
        let mut token = None;
        if is_encrypted {
            builder = builder.tls_config(self.tls()?);
            // The token changes every hour, so it is read each time.
            token = Some(read_file(&self.token_file)?);
        }
        let mut request = builder.build().new_agent().get(url);
        if let Some(token) = token {
            request = request.header("Authorization", format!("Bearer {}", token.trim()));
        }
        let mut answer = request.call().map_err(|error| error.to_string())?;
        let body = answer.body_mut().with_config().limit(SIZE_MAX);
        body.read_to_string().map_err(|error| error.to_string())
    }

    fn tls(&self) -> Result<TlsConfig, String> {
        let text = read_file(&self.ca)?;
        let wrong = || format!("{}: expected a certificate in PEM, got none", self.ca.display());
        fleet::trust::trust_only(text.as_bytes()).ok_or_else(wrong)
    }

    /// Returns the run of a pod: the job of the whole namespace to which the pod belongs.
    fn run(&self, pod: &PodMetadata) -> SchedulerRun {
        let value = |key: &String| pod.labels.get(key).or_else(|| pod.annotations.get(key));
        let clean = |value: &String| -> String {
            value.chars().filter(|letter| !letter.is_control()).take(VALUE_MAX).collect()
        };
        let owner = pod.owner_references.iter().find(|owner| owner.controller);
        let job = self.job_labels.iter().find_map(|label| pod.labels.get(label));
        let job = job.or_else(|| owner.map(|owner| &owner.name)).unwrap_or(&pod.name);
        let workflow = self.workflow_label.as_ref().and_then(value).map(clean);
        let workflow = workflow.unwrap_or_else(|| stable_name(&clean(job), owner, pod).to_owned());
        SchedulerRun {
            scheduler: "kubernetes",
            job: clean(job),
            alias: Some(pod.uid.clone()),
            name: Some(workflow),
            user: self.user_label.as_ref().and_then(value).map(clean),
            partition: Some(pod.namespace.clone()),
            ..SchedulerRun::default()
        }
    }
}

/// The runs of the pods of one answer.
#[derive(Debug)]
pub struct PodRuns(Vec<(SchedulerRun, Pod)>);

impl PodDirectory {
    /// Creates an empty directory.
    pub fn new(config: KubernetesConfig) -> Self {
        let (runs_by_uid, runs_by_name) = Default::default();
        Self { config, runs_by_uid, runs_by_name, asked: None }
    }

    /// Asks Kubernetes if the last answer is old, or lacks a pod that holds a GPU. After a failed
    /// question the last answer is kept, because the run of a pod does not change. Returns `None`
    /// if nothing was asked.
    ///
    /// # Errors
    /// Returns a note with the problem, its consequence and a remedy.
    pub fn renew(&mut self, holders: &Holders) -> Option<Result<(), String>> {
        let is_known = |run: &SchedulerRun| self.named(run).is_some();
        let is_recent = self.asked.is_some_and(|asked| asked.elapsed() < PERIOD);
        if is_recent && holders.values().flatten().all(is_known) {
            return None;
        }
        self.asked = Some(Instant::now());
        Some(self.config.ask().map(|runs| self.replace(runs)))
    }

    fn replace(&mut self, runs: PodRuns) {
        self.runs_by_uid.clear();
        self.runs_by_name.clear();
        for (run, Pod { metadata }) in runs.0 {
            if let Some(uid) = metadata.annotations.get(STATIC_UID) {
                self.runs_by_uid.insert(uid.clone(), run.clone());
            }
            self.runs_by_uid.insert(metadata.uid, run.clone());
            self.runs_by_name.insert((metadata.namespace, metadata.name), run);
        }
    }

    /// Replaces the pods that hold GPUs by their runs. Unknown pods stay.
    pub fn name_holders(&self, holders: &mut Holders) {
        for run in holders.values_mut().flatten() {
            if let Some(named) = self.named(run) {
                *run = named.clone();
            }
        }
        // Two pods of one job may share a GPU.
        holders.values_mut().for_each(|runs| runs.dedup_by(|a, b| a.is_same(b)));
    }

    /// The runs of all pods, by the UID that the control groups of their processes have.
    pub fn runs_by_uid(&self) -> &BTreeMap<String, SchedulerRun> {
        &self.runs_by_uid
    }

    fn named(&self, run: &SchedulerRun) -> Option<&SchedulerRun> {
        let namespace = run.partition.clone().unwrap_or_default();
        self.runs_by_name.get(&(namespace, run.job.clone()))
    }
}

/// Returns the name of a job without what its controller adds for each run: the time that a CronJob
/// adds to the names of its jobs, and the hash that a Deployment adds to those of replica sets.
fn stable_name<'a>(job: &'a str, owner: Option<&OwnerReference>, pod: &PodMetadata) -> &'a str {
    let stable = match owner.map(|owner| owner.kind.as_str()) {
        Some("Job") => job.rsplit_once('-').filter(|(_, time)| {
            // Minutes since 1970, which have eight digits until 2160.
            time.len() == 8 && time.bytes().all(|digit| digit.is_ascii_digit())
        }),
        Some("ReplicaSet") => {
            let hash = pod.labels.get(TEMPLATE_HASH);
            job.rsplit_once('-').filter(|(_, end)| hash.is_some_and(|hash| hash == end))
        }
        _ => None,
    };
    stable.map_or(job, |(name, _)| name)
}

/// Whether a URL may be asked: over TLS, or at a loopback address, where `kubectl proxy` listens.
fn is_safe(url: &str) -> bool {
    let place = |rest: &str| rest.split(['/', '?']).next().unwrap_or_default().to_owned();
    if let Some(rest) = url.strip_prefix("https://") {
        return !place(rest).is_empty() && !place(rest).contains('@');
    }
    let place = url.strip_prefix("http://").map(place);
    let address = place.and_then(|place| place.parse::<SocketAddr>().ok());
    address.is_some_and(|address| address.ip().is_loopback())
}

fn read_file(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = fs::File::open(path).and_then(|file| file.take(FILE_MAX).read_to_string(&mut text));
    read.map(|_| text).map_err(|error| format!("{}: cannot read: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{KubernetesConfig, Pod, is_safe};

    fn config(text: &str) -> KubernetesConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn the_api_server_is_found_by_the_variables_of_a_pod() {
        let url = |text: &str, variables: &[(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(key, _)| *key == name);
            config(text).url(|name| find(name).map(|(_, value)| (*value).to_owned()))
        };
        let host = ("KUBERNETES_SERVICE_HOST", "10.96.0.1");
        let all = [host, ("KUBERNETES_SERVICE_PORT", "6443"), ("NODE_NAME", "gpu-7")];
        let expected = "https://10.96.0.1:6443/api/v1/pods?fieldSelector=spec.nodeName%3Dgpu-7";
        assert_eq!(url("", &all).unwrap(), expected);
        let ipv6 = ("KUBERNETES_SERVICE_HOST", "fd00::1");
        let expected = "https://[fd00::1]:443/api/v1/pods?fieldSelector=spec.nodeName%3Da";
        assert_eq!(url("node = 'a'", &[ipv6]).unwrap(), expected);
        assert!(url("", &[host]).unwrap_err().contains("NODE_NAME"));
        assert!(url("", &[]).unwrap_err().contains("KUBERNETES_SERVICE_HOST"));
        let kubelet = "pods_url = 'https://127.0.0.1:10250/pods'";
        assert_eq!(url(kubelet, &[]).unwrap(), "https://127.0.0.1:10250/pods");
    }

    #[test]
    fn pods_are_asked_for_over_tls_or_on_this_host() {
        for safe in ["https://k:10250/pods", "http://127.0.0.1:8001/api", "http://[::1]:1/pods"] {
            assert!(is_safe(safe), "{safe}");
        }
        for wrong in ["http://10.0.0.1:1/pods", "http://localhost:1/", "https://", "https://a@b/"] {
            assert!(!is_safe(wrong), "{wrong}");
        }
        assert!(
            config("pods_url = 'ftp://x'").problem().is_some_and(|(key, ..)| key == "pods_url")
        );
    }

    #[test]
    fn workflows_are_named_without_what_differs_between_runs() {
        let name = |metadata: &str| {
            let text = format!(r#"{{"metadata": {{"namespace": "ads", "uid": "u", {metadata}}}}}"#);
            let pod: Pod = serde_json::from_str(&text).unwrap();
            let run = config("workflow_label = 'team/flow'").run(&pod.metadata);
            format!("{} {}", run.job, run.name.unwrap())
        };
        let owner = |kind: &str, name: &str| {
            format!(
                r#""name": "p-x1", "ownerReferences": [{{"kind": "Other", "name": "o"}},
                    {{"kind": "{kind}", "name": "{name}", "controller": true}}]"#
            )
        };
        assert_eq!(name(r#""name": "alone""#), "alone alone");
        assert_eq!(name(&owner("Job", "nightly-29399280")), "nightly-29399280 nightly");
        assert_eq!(name(&owner("Job", "train-2024")), "train-2024 train-2024");
        let hash = r#", "labels": {"pod-template-hash": "5d4f8"}"#;
        assert_eq!(name(&(owner("ReplicaSet", "web-5d4f8") + hash)), "web-5d4f8 web");
        let kubeflow = r#", "labels": {"training.kubeflow.org/job-name": "dlrm"}"#;
        assert_eq!(name(&(owner("PyTorchJob", "x") + kubeflow)), "dlrm dlrm");
        let annotated = r#", "annotations": {"team/flow": "ranking"}"#;
        assert_eq!(name(&(owner("Job", "a") + annotated)), "a ranking");
    }
}
