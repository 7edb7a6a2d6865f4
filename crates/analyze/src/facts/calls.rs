//! Classifies runtime calls and copies by name: which of them launch, wait or block, and in which
//! direction a copy goes. It uses names only, never times.

#[cfg(test)]
mod tests;

use trace::store::Trace;

/// How a runtime call orders work: what it waits for, or what it makes wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// Launches work, or has no effect on order.
    Plain,
    StreamSync,
    /// Waits for a recorded event.
    EventSync,
    DeviceSync,
    /// Frees memory, which waits for all streams.
    Free,
    /// A copy that returns when it is done.
    BlockingCopy,
    /// Has other threads launch work, and returns when that has ended.
    Execute,
    /// Records an event on a stream.
    EventRecord,
    /// Makes a stream wait for an event.
    StreamWait,
}

/// Direction of a copy between host and devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    ToDevice,
    ToHost,
    OnDevice,
    /// A copy between devices, or one whose row does not name its direction.
    Other,
}

/// Returns the direction of a copy from the name of its row: `Memcpy DtoH (Device -> Pinned)` of
/// CUDA and HIP, `CopyDeviceToHost` of older HIP.
pub fn direction(copy: &str) -> Direction {
    let has = |part: &str| copy.contains(part);
    if has("HtoD") || has("HostToDevice") {
        Direction::ToDevice
    } else if has("DtoH") || has("DeviceToHost") {
        Direction::ToHost
    } else if has("DtoD") || has("DeviceToDevice") {
        Direction::OnDevice
    } else {
        Direction::Other
    }
}

/// Returns whether the host memory of a copy is pageable, so that the driver must stage it.
pub fn is_pageable(copy: &str) -> bool {
    copy.contains("Pageable")
}

/// Returns whether a call is a pure synchronization, for any vendor.
pub fn is_synchronization(call: &str) -> bool {
    call.contains("Synchronize") || call == MTIA_WAIT
}

/// MTIA's wait of the host for a stream.
const MTIA_WAIT: &str = "synchronizeStream";
/// MTIA's calls that run a part of a model: an executor thread launches it.
const MTIA_EXECUTE: [&str; 2] = ["gif_merge", "gif_remote"];

impl CallKind {
    /// Returns whether the host may wait for device work inside such a call.
    pub fn waits(self) -> bool {
        !matches!(self, Self::Plain | Self::EventRecord | Self::StreamWait)
    }
}

/// Calls that allocate driver memory or load code, as programs do during set-up.
pub(crate) const SET_UP: [&str; 16] = [
    "cudaMalloc",
    "cudaMallocAsync",
    "cudaMallocHost",
    "cudaHostAlloc",
    "cudaHostRegister",
    "cudaFree",
    "cudaFreeHost",
    "cuMemCreate",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuLibraryLoadData",
    "hipMalloc",
    "hipHostMalloc",
    "hipFree",
    "Lazy Function Loading",
    "Runtime Triggered Module Loading",
];

/// Classifies each string of a trace as if it were the name of a call.
///
/// # Cost
/// Linear in the texts.
pub fn names(trace: &Trace) -> Vec<CallKind> {
    trace.strings.iter().map(classify_call).collect()
}

/// Classifies a runtime call by its name.
pub fn classify_call(name: &str) -> CallKind {
    if name == MTIA_WAIT {
        return CallKind::StreamSync;
    }
    if MTIA_EXECUTE.contains(&name) {
        return CallKind::Execute;
    }
    if !name.starts_with("cu") && !name.starts_with("hip") {
        return CallKind::Plain;
    }
    // CUPTI names versions of a call, such as `cudaMemcpy_v3020`.
    let plain = name.split_once("_v").map_or(name, |(plain, _)| plain);
    match plain {
        "cudaStreamSynchronize" | "cuStreamSynchronize" | "hipStreamSynchronize" => {
            CallKind::StreamSync
        }
        "cudaEventSynchronize" | "cuEventSynchronize" | "hipEventSynchronize" => {
            CallKind::EventSync
        }
        "cudaDeviceSynchronize"
        | "cuCtxSynchronize"
        | "hipDeviceSynchronize"
        | "cudaThreadSynchronize"
        | "hipCtxSynchronize" => CallKind::DeviceSync,
        "cudaFree" | "cuMemFree" | "hipFree" => CallKind::Free,
        "cudaMemcpy"
        | "hipMemcpy"
        | "hipMemcpyWithStream"
        | "cudaMemcpyToSymbol"
        | "cudaMemcpyFromSymbol"
        | "cudaMemcpy2D"
        | "cuMemcpyDtoH"
        | "cuMemcpyHtoD"
        | "hipMemcpyDtoH"
        | "hipMemcpyHtoD" => CallKind::BlockingCopy,
        _ if plain.contains("EventRecord") => CallKind::EventRecord,
        _ if plain.contains("StreamWaitEvent") => CallKind::StreamWait,
        _ => CallKind::Plain,
    }
}
