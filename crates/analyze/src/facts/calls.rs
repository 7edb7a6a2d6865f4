//! What calls of a device's runtime and copies do to the order of things, by their names. Knows no
//! times.

#[cfg(test)]
mod tests;

use trace::store::Trace;

/// What a call does to the order of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// Nothing, or it launches.
    Plain,
    /// Waits for a stream.
    StreamSync,
    /// Waits for a recorded event.
    EventSync,
    /// Waits for all streams.
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

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From the host to a device.
    ToDevice,
    /// From a device to the host.
    ToHost,
    OnDevice,
    /// Between devices, or its row does not say.
    Other,
}

/// Which way a copy goes, by the name of its row: `Memcpy DtoH (Device -> Pinned)` of CUDA and of
/// HIP, `CopyDeviceToHost` of older HIP.
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

/// Whether the host's side of a copy is memory that the operating system may move.
pub fn is_pageable(copy: &str) -> bool {
    copy.contains("Pageable")
}

/// Whether a call waits for a device and does nothing else, whatever the vendor.
pub fn is_synchronization(call: &str) -> bool {
    call.contains("Synchronize") || call == MTIA_WAIT
}

/// MTIA's wait of the host for a stream.
const MTIA_WAIT: &str = "synchronizeStream";
/// MTIA's calls that run a part of a model: an executor thread launches it.
const MTIA_EXECUTE: [&str; 2] = ["gif_merge", "gif_remote"];

impl CallKind {
    /// Whether the host may wait in such a call.
    pub fn waits(self) -> bool {
        !matches!(self, Self::Plain | Self::EventRecord | Self::StreamWait)
    }
}

/// Calls that set things up: memory from the driver and code loaded late.
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

/// What a call does, for each text of a trace.
///
/// # Cost
/// Linear in the texts.
pub fn names(trace: &Trace) -> Vec<CallKind> {
    trace.strings.iter().map(classify_call).collect()
}

/// What a call of a name does.
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
