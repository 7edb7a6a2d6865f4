//! Tests of GPUs that pods hold, with a server that speaks the protocol of the kubelet.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use axum::body::Bytes;
use axum::http::{HeaderMap, Response};
use tokio::net::UnixListener;

use crate::fixture::{Agent, value};
use crate::ownership::Poller;

/// Encodes a protobuf message whose fields are byte strings, given with their field numbers.
fn fields(fields: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, value) in fields {
        bytes.extend_from_slice(&[number << 3 | 2, u8::try_from(value.len()).unwrap()]);
        bytes.extend_from_slice(value);
    }
    bytes
}

/// Encodes a pod whose container holds the devices `ids` of one kind.
fn pod(name: &str, kind: &str, ids: &[&str]) -> Vec<u8> {
    let mut devices = vec![(1, kind.as_bytes())];
    devices.extend(ids.iter().map(|id| (2, id.as_bytes())));
    let container = fields(&[(1, b"train"), (2, &fields(&devices))]);
    fields(&[(1, name.as_bytes()), (2, b"research"), (3, &container)])
}

async fn serve(listener: UnixListener, answer: Bytes) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let answer = answer.clone();
        tokio::spawn(async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                assert_eq!(request.uri().path(), "/v1.PodResourcesLister/List");
                assert_eq!(request.headers()["content-type"], "application/grpc");
                let head = Response::builder().header("content-type", "application/grpc");
                let mut body = respond.send_response(head.body(()).unwrap(), false).unwrap();
                body.send_data(answer.clone(), false).unwrap();
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().unwrap());
                body.send_trailers(trailers).unwrap();
            }
        });
    }
}

/// Serves the pods like a kubelet, until the test process ends.
fn kubelet(socket: &Path, pods: &[Vec<u8>]) {
    let listed: Vec<(u8, &[u8])> = pods.iter().map(|pod| (1, pod.as_slice())).collect();
    let message = fields(&listed);
    let mut answer = vec![0];
    answer.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    answer.extend_from_slice(&message);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = {
        let _inside = runtime.enter();
        UnixListener::bind(socket).unwrap()
    };
    std::thread::spawn(move || runtime.block_on(serve(listener, answer.into())));
}

#[test]
fn unused_gpus_of_pods_are_allocated_but_idle() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let socket = folder.path().join("kubelet.sock");
    let uuid = |gpu: u32| format!("GPU-{gpu:08}-0000-0000-0000-000000000000");
    let shared = format!("{}::3", uuid(1));
    kubelet(
        &socket,
        &[
            pod("idle-0", "nvidia.com/gpu", &[&uuid(0)]),
            pod("shared-0", "nvidia.com/gpu.shared", &[&shared]),
            pod("network-0", "vendor.com/nic", &[&uuid(1)]),
        ],
    );
    let configuration = format!("pod_resources = '{}'\n", socket.display());
    let agent = Agent::start(&configuration, Some("gpu=0 util=0\ngpu=1 util=50\n"));
    let page = agent.until("an idle GPU that a pod holds", |agent| {
        let page = agent.page("/metrics", "text/plain").body;
        (value(&page, "rowmill_gpu_held_idle", &["gpu=\"0\""]) == Some(1.0)).then_some(page)
    });
    let run = |labels: &[&str]| value(&page, "rowmill_run_info", labels);
    let of_pod = ["gpu=\"0\"", "scheduler=\"kubernetes\"", "job_id=\"idle-0\"", "name=\"train\""];
    assert_eq!(run(&of_pod), Some(1.0), "{page}");
    assert_eq!(run(&["gpu=\"1\"", "job_id=\"shared-0\"", "partition=\"research\""]), Some(1.0));
    assert_eq!(run(&["network-0"]), None);
    assert_eq!(value(&page, "rowmill_gpu_held_idle", &["gpu=\"1\""]), Some(0.0));
}

/// A list of pods with the fields of `GET /api/v1/pods` that identify a pod, as the reference of
/// the Kubernetes API describes them. Other fields are cut.
const PODS: &str = r#"{"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "71"},
  "items": [{
    "metadata": {
      "name": "dlrm-worker-0", "namespace": "research", "generateName": "dlrm-worker-",
      "uid": "0f8a2c3e-1b2c-4d5e-8f90-a1b2c3d4e5f6", "resourceVersion": "70",
      "creationTimestamp": "2026-11-28T10:00:00Z",
      "labels": {"app": "dlrm", "example.org/owner": "ada"},
      "annotations": {"example.org/flow": "ranking"},
      "ownerReferences": [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "dlrm",
        "uid": "5e6f", "controller": true, "blockOwnerDeletion": true}]
    },
    "spec": {"nodeName": "gpu-17", "containers": [{"name": "train", "image": "t"}]},
    "status": {"phase": "Running", "podIP": "10.1.2.3"}}]}"#;

/// Answers each request with the list of pods, until the test process ends. Returns the URL.
fn api_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/api/v1/pods", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
            let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{PODS}", PODS.len());
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    url
}

#[test]
fn pods_are_named_by_their_job_and_owner_and_cannot_be_claimed_from_outside() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let socket = folder.path().join("kubelet.sock");
    let uuid = "GPU-00000000-0000-0000-0000-000000000000";
    kubelet(&socket, &[pod("dlrm-worker-0", "nvidia.com/gpu", &[uuid])]);
    let configuration = format!(
        "pod_resources = '{}'\n[kubernetes]\npods_url = '{}'\n\
         user_label = 'example.org/owner'\nworkflow_label = 'example.org/flow'\n",
        socket.display(),
        api_server()
    );
    let agent = Agent::start(&configuration, Some("gpu=0 util=50\n"));
    let variables = [("POD_NAME", "dlrm"), ("POD_NAMESPACE", "research")];
    let forged = Poller::start(&agent, &variables);
    let page = agent.until("a run of a pod and a refused claim", |agent| {
        let page = agent.page("/metrics", "text/plain").body;
        let refused = ["reason=\"unproven\""];
        let is_refused = value(&page, "rowmill_claims_refused_total", &refused) == Some(1.0);
        (is_refused && page.contains("job_id=\"dlrm\"")).then_some(page)
    });
    let labels = ["gpu=\"0\"", "job_id=\"dlrm\"", "name=\"ranking\"", "user=\"ada\""];
    assert_eq!(value(&page, "rowmill_run_info", &labels), Some(1.0), "{page}");
    assert_eq!(value(&page, "rowmill_run_info", &["partition=\"research\""]), Some(1.0));
    assert_eq!(page.matches("job_id=\"dlrm\"").count(), 1, "{page}");
    drop(forged);
}

#[test]
fn a_late_kubelet_is_noted_until_it_responds() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let socket = folder.path().join("kubelet.sock");
    let configuration = format!("pod_resources = '{}'\n", socket.display());
    let agent = Agent::start(&configuration, Some("gpu=0 util=0\n"));
    let has_note = |agent: &Agent| {
        let status = agent.local("GET", "/v1/status", "").body;
        status.contains("kubelet.sock: No such file") && status.contains("remove `pod_resources`")
    };
    agent.until("a note", |agent| has_note(agent).then_some(()));
    kubelet(&socket, &[]);
    agent.until("no note", |agent| (!has_note(agent)).then_some(()));
}

#[test]
fn a_check_names_sources_that_do_not_answer_and_what_to_do() {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_rowmill-agent"));
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::create_dir(folder.path().join("s")).unwrap();
    let text = "state_dir = 'state'\nnvml = '/none/libnvidia-ml.so.1'\njob_mapping = '/none/jobs'\n\
                pod_resources = '/none/kubelet.sock'\ndcgm_page = 'http://127.0.0.1:9/metrics'\n\
                [kubernetes]\npods_url = 'http://127.0.0.1:9/pods'\n";
    std::fs::write(folder.path().join("agent.toml"), text).unwrap();
    agent
        .args(["--check", "--config", "agent.toml", "--socket-dir", "s"])
        .current_dir(folder.path());
    let output = agent.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "the agent starts all the same: {told}");
    for wanted in [
        "note: NVML: /none/libnvidia-ml.so.1: cannot open",
        "otherwise make `nvidia-smi` work, or correct or remove `nvml`",
        "note: job_mapping: /none/jobs: cannot list the folder: No such file",
        "note: kubelet at /none/kubelet.sock: No such file or directory",
        "note: Kubernetes at http://127.0.0.1:9/pods: ",
        "remove [kubernetes]",
        "note: dcgm-exporter at http://127.0.0.1:9/metrics: ",
        "Start dcgm-exporter, correct `dcgm_page`, or remove it",
    ] {
        assert!(told.contains(wanted), "expected {wanted:?} in {told}");
    }
}
