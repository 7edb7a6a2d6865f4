//! Finds the pods that hold GPUs, by calling the kubelet's gRPC method `PodResourcesLister/List`
//! (version 1) over its socket periodically. The kubelet reports allocations, not processes, so
//! idle pods are included.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::Request;
use fleet::allocation::{Holders, SchedulerRun};
use prost::Message;
use tokio::net::UnixStream;

use crate::kubernetes::PodDirectory;
use crate::state::{AgentState, lock};

/// Time between two calls of the kubelet.
const PERIOD: Duration = Duration::from_secs(10);
/// Timeout of a call of the kubelet.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest size of an answer in bytes. Larger answers are refused.
const SIZE_MAX: usize = 16 << 20;
/// Bytes of the header of a gRPC message, which contains a compression flag and the length.
const FRAME: usize = 5;
/// Prefix of the Kubernetes resource names of GPUs and MIG instances.
const VENDOR: &str = "nvidia.com/";

/// The kubelet's answer to `List`, with the fields that the agent needs.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListPodResourcesResponse {
    /// The pods that run on this host.
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// One pod, with the resources of its containers.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodResources {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// One container, with the devices that are allocated to it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerResources {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
}

/// The devices of one kind that are allocated to a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerDevices {
    /// Kubernetes resource name of the kind, such as `nvidia.com/gpu`.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// UUIDs of the devices. The UUID of a time-shared GPU is followed by `::N`.
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
}

/// Asks the kubelet and Kubernetes periodically and records the answers, until the agent ends.
pub fn run(state: &Arc<AgentState>) {
    let mut asked = None::<Instant>;
    let mut directory = state.config.kubernetes.clone().map(PodDirectory::new);
    while !state.is_ending() {
        if asked.is_none_or(|asked| asked.elapsed() >= PERIOD) {
            asked = Some(Instant::now());
            renew(state, directory.as_mut());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn renew(state: &AgentState, directory: Option<&mut PodDirectory>) {
    let mut holders_by_gpu = Holders::new();
    if let Some(socket) = &state.config.pod_resources {
        let answer = ask(socket);
        // After a failed call the recorded allocations may be outdated, so they are dropped.
        holders_by_gpu = answer.as_ref().map(holders).unwrap_or_default();
        state.set_source("pods", answer.map(drop));
    }
    if let Some(directory) = directory {
        if let Some(answer) = directory.renew(&holders_by_gpu) {
            state.set_source("kubernetes", answer);
            lock(&state.pod_runs).clone_from(directory.runs_by_uid());
        }
        directory.name_holders(&mut holders_by_gpu);
    }
    *lock(&state.pods) = holders_by_gpu;
}

/// Calls the kubelet once and returns the pods of this host.
///
/// # Errors
/// Returns a note with the problem, its consequence and a remedy.
pub fn ask(socket: &Path) -> Result<ListPodResourcesResponse, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let answer = runtime.map_err(|error| error.to_string()).and_then(|runtime| {
        runtime.block_on(async {
            tokio::time::timeout(PATIENCE, list(socket))
                .await
                .unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())))
        })
    });
    answer.map_err(|problem| {
        format!(
            "kubelet at {}: {problem}. GPUs are not attributed to pods. On a host without Kubernetes \
             remove `pod_resources`; otherwise check that the path is the kubelet's socket of \
             PodResources, mounted into the agent's container. The agent tries again every {} s",
            socket.display(),
            PERIOD.as_secs()
        )
    })
}

async fn list(socket: &Path) -> Result<ListPodResourcesResponse, String> {
    let words = |error: h2::Error| error.to_string();
    let stream = UnixStream::connect(socket).await.map_err(|error| error.to_string())?;
    let (client, connection) = h2::client::handshake(stream).await.map_err(words)?;
    // The connection is driven by a task of its own, which is aborted at the end of this call.
    let driven = tokio::spawn(connection);
    let mut client = client.ready().await.map_err(words)?;
    let request = Request::post("http://localhost/v1.PodResourcesLister/List")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .map_err(|error| error.to_string())?;
    let (answer, mut sent) = client.send_request(request, false).map_err(words)?;
    sent.send_data(Bytes::from_static(&[0; FRAME]), true).map_err(words)?;
    let answer = answer.await.map_err(words)?;
    if !answer.status().is_success() {
        return Err(format!("status {}", answer.status()));
    }
    let head = answer.headers().clone();
    let mut body = answer.into_body();
    let mut bytes = Vec::new();
    while let Some(part) = body.data().await {
        let part = part.map_err(words)?;
        body.flow_control().release_capacity(part.len()).map_err(words)?;
        bytes.extend_from_slice(&part);
        if bytes.len() > SIZE_MAX {
            return Err(format!("expected at most {SIZE_MAX} bytes, got more"));
        }
    }
    let trailers = body.trailers().await.map_err(words)?.unwrap_or(head);
    driven.abort();
    let status = trailers.get("grpc-status").and_then(|value| value.to_str().ok());
    if status.is_some_and(|status| status != "0") {
        let reason = trailers.get("grpc-message").and_then(|value| value.to_str().ok());
        return Err(format!("gRPC status {} {}", status.unwrap_or(""), reason.unwrap_or("")));
    }
    message(&bytes)
}

/// Decodes the body of an uncompressed gRPC answer, which contains a single message.
fn message(bytes: &[u8]) -> Result<ListPodResourcesResponse, String> {
    let wrong = || format!("expected one whole gRPC message, got {} bytes", bytes.len());
    let (head, body) = bytes.split_first_chunk::<FRAME>().ok_or_else(wrong)?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if head[0] != 0 || length != body.len() {
        return Err(wrong());
    }
    ListPodResourcesResponse::decode(body).map_err(|error| error.to_string())
}

/// Lists the pods that hold each GPU, by the UUID of the GPU.
pub fn holders(answer: &ListPodResourcesResponse) -> Holders {
    let mut holders_by_gpu = Holders::new();
    for pod in &answer.pod_resources {
        for container in &pod.containers {
            let run = SchedulerRun {
                scheduler: "kubernetes",
                job: pod.name.clone(),
                name: Some(container.name.clone()),
                partition: Some(pod.namespace.clone()),
                ..SchedulerRun::default()
            };
            let gpu_devices =
                container.devices.iter().filter(|kind| kind.resource_name.starts_with(VENDOR));
            for id in gpu_devices.flat_map(|kind| &kind.device_ids) {
                // A share of a time-shared GPU counts as the whole GPU.
                let uuid = id.split("::").next().unwrap_or(id);
                let runs: &mut Vec<SchedulerRun> =
                    holders_by_gpu.entry(uuid.to_owned()).or_default();
                if !runs.contains(&run) {
                    runs.push(run.clone());
                }
            }
        }
    }
    holders_by_gpu
}

#[cfg(test)]
mod tests {
    use super::message;

    #[test]
    fn malformed_grpc_bodies_are_refused() {
        assert_eq!(message(&[0; 5]).unwrap().pod_resources.len(), 0);
        for wrong in [&[][..], &[0; 4], &[1, 0, 0, 0, 0], &[0, 0, 0, 0, 2, 0], &[0, 0, 0, 0, 1, 9]]
        {
            assert!(message(wrong).is_err(), "{wrong:?}");
        }
    }
}
