//! What calls of a device's runtime do to the order of things, by their names. Knows no times.

use trace::store::Trace;

/// What a call does to the order of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
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
    /// Records an event on a stream.
    EventRecord,
    /// Makes a stream wait for an event.
    StreamWait,
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

/// Whether a thread waits for a device in a call of this name, whatever the vendor.
pub(crate) fn is_synchronization(call: &str) -> bool {
    call.contains("Synchronize")
}

/// What a call does, for each text of a trace.
///
/// # Cost
/// Linear in the texts.
pub fn names(trace: &Trace) -> Vec<Call> {
    trace.strings.iter().map(of_name).collect()
}

/// What a call of a name does.
pub fn of_name(name: &str) -> Call {
    if !name.starts_with("cu") && !name.starts_with("hip") {
        return Call::Plain;
    }
    // CUPTI names versions of a call, such as `cudaMemcpy_v3020`.
    let plain = name.split_once("_v").map_or(name, |(plain, _)| plain);
    match plain {
        "cudaStreamSynchronize" | "cuStreamSynchronize" | "hipStreamSynchronize" => {
            Call::StreamSync
        }
        "cudaEventSynchronize" | "cuEventSynchronize" | "hipEventSynchronize" => Call::EventSync,
        "cudaDeviceSynchronize"
        | "cuCtxSynchronize"
        | "hipDeviceSynchronize"
        | "cudaThreadSynchronize"
        | "hipCtxSynchronize" => Call::DeviceSync,
        "cudaFree" | "cuMemFree" | "hipFree" => Call::Free,
        "cudaMemcpy"
        | "hipMemcpy"
        | "hipMemcpyWithStream"
        | "cudaMemcpyToSymbol"
        | "cudaMemcpyFromSymbol"
        | "cudaMemcpy2D"
        | "cuMemcpyDtoH"
        | "cuMemcpyHtoD"
        | "hipMemcpyDtoH"
        | "hipMemcpyHtoD" => Call::BlockingCopy,
        _ if plain.contains("EventRecord") => Call::EventRecord,
        _ if plain.contains("StreamWaitEvent") => Call::StreamWait,
        _ => Call::Plain,
    }
}
