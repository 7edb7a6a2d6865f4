//! Classifies runtime calls and copies by name: which calls launch, wait or block, and in which
//! direction a copy goes. The classification uses names only, never times.

#[cfg(test)]
mod tests;

use trace::store::Trace;

/// The effect of a runtime call on the order of work: what it waits for, or what it makes wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// The call launches work, or has no effect on the order of work.
    Plain,
    StreamSync,
    /// The host waits for a recorded event.
    EventSync,
    DeviceSync,
    /// The call frees memory, which waits for all streams.
    Free,
    /// The call starts a copy and returns when the copy is done.
    BlockingCopy,
    /// The call makes other threads launch work, and returns when that work has ended.
    Execute,
    /// The call records an event on a stream.
    EventRecord,
    /// The call makes a stream wait for an event.
    StreamWait,
}

/// Direction of a copy between host and devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    ToDevice,
    ToHost,
    OnDevice,
    /// The copy runs between devices, or its name does not state the direction.
    Other,
}

/// Returns the direction of a copy from the name of its row, such as `Memcpy DtoH (Device ->
/// Pinned)` in CUDA and HIP, or `CopyDeviceToHost` in older HIP.
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

/// Returns whether the host memory of a copy is pageable, so that the driver must stage the data in
/// pinned memory.
pub fn is_pageable(copy: &str) -> bool {
    copy.contains("Pageable")
}

/// Returns whether a call only synchronizes, with the call names of any vendor.
pub fn is_synchronization(call: &str) -> bool {
    call.contains("Synchronize") || call == MTIA_WAIT
}

/// The call by which a host waits for a stream of Meta's MTIA accelerator.
const MTIA_WAIT: &str = "synchronizeStream";
/// Calls that run a part of a model on Meta's MTIA accelerator; an executor thread launches the
/// work.
const MTIA_EXECUTE: [&str; 2] = ["gif_merge", "gif_remote"];

impl CallKind {
    /// Returns whether the host may wait for device work inside a call of this kind.
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
/// The cost is linear in the total length of the strings.
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
    // CUPTI appends the version of a call to its name, as in `cudaMemcpy_v3020`.
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
