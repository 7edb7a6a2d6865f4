//! NVIDIA's driver, called through `cudarc`, with the result of each raw call checked.
//!
//! `cudarc` opens the library at the first call and panics if it is missing. The only entry
//! point, [`NativeDevice::open`], therefore checks first that the library and its functions
//! exist. This module does not depend on the kernels.
#![expect(unsafe_code, reason = "calls into the GPU's driver; decisions 0002 and 0048")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, OnceLock};

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUevent, CUfunction, CUmodule, CUresult,
    CUstream,
};

use super::error::DriverError;
use super::grid::CheckedGrid;
use super::libraries::LibrarySearch;
use super::loader::LibraryVersion;
use super::nvrtc::{self, Nvrtc};
use super::options::{CudaOptions, EventPurpose};
use super::source::KernelSource;

/// The properties of a GPU that kernel launches depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuProperties {
    /// The target for which kernels are compiled, such as `sm_90a`.
    pub architecture: String,
    /// Major and minor version of the GPU's compute capability.
    pub compute_capability: [u32; 2],
    /// Bytes of shared memory that a block may have if its kernel requests more than 48 KiB.
    pub shared_bytes_max: usize,
}

/// Bytes of dynamic shared memory that every kernel may use without a request.
const SHARED_BY_DEFAULT: u32 = 48 << 10;

/// A GPU with its primary context.
pub(super) struct NativeDevice {
    pub name: String,
    context: usize,
    compute_capability: [c_int; 2],
    architecture: String,
    driver_version: LibraryVersion,
    elapsed_time: ElapsedTime,
    options: CudaOptions,
    compiler: OnceLock<Result<Nvrtc, DriverError>>,
    modules: Mutex<Vec<(&'static str, usize)>>,
    /// Bytes of shared memory available to a block after its kernel has requested them.
    pub shared_limit: usize,
    /// Bytes granted to each kernel that needs more than [`SHARED_BY_DEFAULT`].
    granted_shared: Mutex<BTreeMap<usize, u32>>,
}

/// The C signature of `cuEventElapsedTime`, which is looked up at run time.
type ElapsedTime = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;

/// Host memory that the driver has pinned, so that the device can copy it asynchronously.
pub(super) struct Pinned {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the memory of `Pinned` is plain bytes, and only this value refers to it.
unsafe impl Send for Pinned {}
// SAFETY: shared references to `Pinned` only read its memory.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Returns the pinned bytes, which are zero until they are first written.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the driver allocated `bytes` bytes, and `NativeDevice::pinned` zeroed them.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// Returns the pinned bytes for writing. Exclusive access ensures that no copy is started
    /// meanwhile.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the driver allocated `bytes` bytes, `NativeDevice::pinned` zeroed them, and `&mut
        // self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

/// Turns a result into an error that names the call.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: `NativeDevice::open` checked that the library and its functions exist, and made
        // the context current. Each handle comes from the driver, and each pointer refers to a
        // live value that the call fills.
        let result = unsafe { sys::$function($($argument),*) };
        checked(stringify!($function), result)
    }};
}

fn checked(call: &'static str, result: CUresult) -> Result<(), DriverError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = ptr::null();
    // SAFETY: the driver sets `text` to a static NUL-terminated text, or to null.
    let problem = unsafe {
        let _ = sys::cuGetErrorString(result, &raw mut text);
        if text.is_null() { "unknown".into() } else { CStr::from_ptr(text).to_string_lossy() }
    };
    let (code, problem) = (result as u32, problem.into_owned());
    Err(DriverError::Call { call, operation: None, code, problem })
}

/// All driver functions that this file calls. `cudarc` panics at the first call of a function that
/// the library lacks, so [`NativeDevice::open`] checks all of them beforehand.
const FUNCTIONS: [&str; 31] = [
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRetain",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncSetAttribute",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// Returns the CUDA version that the driver supports. Works without a GPU.
///
/// # Errors
/// Fails with [`DriverError::NoDriver`], [`DriverError::NoFunction`] or [`DriverError::Call`].
pub fn driver_version() -> Result<LibraryVersion, DriverError> {
    // SAFETY: the call opens NVIDIA's driver library, whose constructors have no preconditions.
    if !unsafe { sys::is_culib_present() } {
        return Err(DriverError::NoDriver { names: "libcuda.so, libcuda.so.1" });
    }
    // SAFETY: the library has been opened above. Its symbol is only looked up, and never called
    // with this type.
    let has = |name: &str| unsafe { sys::culib().get::<fn()>(name.as_bytes()).is_ok() };
    super::error::complete("libcuda.so.1", &FUNCTIONS, has)?;
    let mut number: c_int = 0;
    call!(cuDriverGetVersion(&raw mut number))?;
    let number = u32::try_from(number).unwrap_or(0);
    Ok(LibraryVersion { major: number / 1000, minor: number % 1000 / 10, patch: None })
}

/// Returns the number of GPUs that are visible to this process.
///
/// # Errors
/// Fails in the same cases as [`driver_version`], and if the driver cannot be initialized.
pub fn device_count() -> Result<usize, DriverError> {
    driver_version()?;
    call!(cuInit(0))?;
    let mut count: c_int = 0;
    call!(cuDeviceGetCount(&raw mut count))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Looks up the function that measures the time between two events. Drivers since 12.8 also have
/// a second version of the function, which is preferred and behaves in the same way.
fn elapsed_time() -> Result<ElapsedTime, DriverError> {
    for name in ["cuEventElapsedTime_v2", "cuEventElapsedTime"] {
        // SAFETY: `driver_version` has opened the library, and both functions have this type.
        if let Ok(function) = unsafe { sys::culib().get::<ElapsedTime>(name.as_bytes()) } {
            return Ok(*function);
        }
    }
    let (library, function) = ("libcuda.so.1", "cuEventElapsedTime".to_owned());
    Err(DriverError::NoFunction { library, function })
}

fn attribute(device: CUdevice, attribute: CUdevice_attribute) -> Result<c_int, DriverError> {
    let mut value: c_int = 0;
    call!(cuDeviceGetAttribute(&raw mut value, attribute, device)).map(|()| value)
}

impl NativeDevice {
    /// Opens the device with this ordinal and retains its primary context.
    pub fn open(ordinal: usize, options: CudaOptions) -> Result<Self, DriverError> {
        let count = device_count()?;
        let driver_version = driver_version()?;
        if ordinal >= count {
            return Err(DriverError::NoDevice { ordinal, count });
        }
        let mut device = 0;
        call!(cuDeviceGet(&raw mut device, ordinal as c_int))?;
        let mut name = [0; 256];
        call!(cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device))?;
        let name = name.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
        let name = String::from_utf8(name).unwrap_or_default();
        use CUdevice_attribute as Attribute;
        let major = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let limit = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let shared_limit = usize::try_from(attribute(device, limit)?).unwrap_or(0);
        let mut context: CUcontext = ptr::null_mut();
        call!(cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        call!(cuCtxSetCurrent(context))?;
        // The suffix `a` allows instructions that only Hopper (9.0) has. Code for this target
        // runs on no other GPU.
        let suffix = if (major, minor) == (9, 0) { "a" } else { "" };
        Ok(Self {
            name,
            context: context as usize,
            compute_capability: [major, minor],
            architecture: format!("sm_{major}{minor}{suffix}"),
            driver_version,
            elapsed_time: elapsed_time()?,
            options,
            compiler: OnceLock::new(),
            modules: Mutex::default(),
            shared_limit,
            granted_shared: Mutex::default(),
        })
    }

    /// Makes the context current on the calling thread, because CUDA keeps a current context per
    /// thread.
    pub fn enter(&self) -> Result<(), DriverError> {
        call!(cuCtxSetCurrent(self.context as CUcontext))
    }

    /// Returns the properties of the GPU that decide which kernels it can run.
    pub fn properties(&self) -> GpuProperties {
        GpuProperties {
            architecture: self.architecture.clone(),
            compute_capability: self.compute_capability.map(|number| number as u32),
            shared_bytes_max: self.shared_limit,
        }
    }

    /// Returns whether the cache holds the compiled code of this source for the GPU's
    /// architecture.
    pub fn has_compiled(&self, source: KernelSource) -> bool {
        nvrtc::is_cached(source, &self.architecture, &self.options.cache)
    }

    /// Returns the search by which optional CUDA libraries are found.
    pub fn libraries(&self) -> &LibrarySearch {
        &self.options.libraries
    }

    /// Returns the highest CUDA version that the installed driver supports.
    pub fn driver_version(&self) -> LibraryVersion {
        self.driver_version
    }

    /// Returns the compiler, which is opened at first use. A machine without NVRTC can still run
    /// cached code.
    fn compiler(&self) -> Result<&Nvrtc, DriverError> {
        let open = || Nvrtc::open(&self.options.libraries, Some(self.driver_version));
        self.compiler.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    /// Returns the free and the total bytes of device memory.
    pub fn memory(&self) -> Result<[usize; 2], DriverError> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        call!(cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok([free, total])
    }

    /// Returns the module of a kernel's source, compiled and loaded at first use.
    pub fn module(&self, source: KernelSource) -> Result<usize, DriverError> {
        self.enter()?;
        let mut modules = self.modules.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((_, module)) = modules.iter().find(|(name, _)| *name == source.name) {
            return Ok(*module);
        }
        let compiler = || self.compiler();
        let image = nvrtc::cached(source, &self.architecture, compiler, &self.options.cache)?;
        let mut module: CUmodule = ptr::null_mut();
        call!(cuModuleLoadData(&raw mut module, image.as_ptr().cast::<c_void>()))?;
        modules.push((source.name, module as usize));
        Ok(module as usize)
    }

    /// Finds a kernel of a module by name, or returns `None` if the module does not define it.
    pub fn function(&self, module: usize, name: &str) -> Result<Option<usize>, DriverError> {
        self.enter()?;
        let Ok(name) = CString::new(name) else { return Ok(None) };
        let mut function: CUfunction = ptr::null_mut();
        let found =
            call!(cuModuleGetFunction(&raw mut function, module as CUmodule, name.as_ptr()));
        match found {
            Ok(()) => Ok(Some(function as usize)),
            Err(DriverError::Call { code, .. })
                if code == CUresult::CUDA_ERROR_NOT_FOUND as u32 =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Starts a kernel on a stream.
    pub fn launch(
        &self,
        function: usize,
        name: &str,
        stream: usize,
        grid: CheckedGrid,
        mut arguments: Vec<u8>,
    ) -> Result<(), DriverError> {
        self.enter()?;
        // The arguments are passed as one block of bytes. The constants 1, 2 and 0 are
        // CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE and CU_LAUNCH_PARAM_END of
        // cuda.h.
        let mut bytes = arguments.len();
        let mut extra: [*mut c_void; 5] = [
            ptr::without_provenance_mut(1),
            arguments.as_mut_ptr().cast(),
            ptr::without_provenance_mut(2),
            (&raw mut bytes).cast(),
            ptr::null_mut(),
        ];
        let CheckedGrid { blocks: [x, y], threads, shared_bytes } = grid;
        let (function, stream) = (function as CUfunction, stream as CUstream);
        self.grant_shared(function, shared_bytes)?;
        let launched = call!(cuLaunchKernel(
            function,
            x,
            y,
            1,
            threads,
            1,
            1,
            shared_bytes,
            stream,
            ptr::null_mut(),
            extra.as_mut_ptr(),
        ));
        self.finish(launched, stream as usize, || format!("kernel {name}"))
    }

    /// Completes an operation that was queued in `stream`. In synchronous mode it waits for the
    /// operation, so that a device error is reported by the operation that caused it.
    pub fn finish(
        &self,
        started: Result<(), DriverError>,
        stream: usize,
        operation: impl Fn() -> String,
    ) -> Result<(), DriverError> {
        let is_synchronous = self.options.synchronous;
        let finished = match started {
            Ok(()) if is_synchronous => call!(cuStreamSynchronize(stream as CUstream)),
            started => started,
        };
        finished.map_err(|error| error.in_operation(operation(), is_synchronous))
    }

    /// Allows blocks of `function` this much dynamic shared memory.
    fn grant_shared(&self, function: CUfunction, bytes: u32) -> Result<(), DriverError> {
        if bytes <= SHARED_BY_DEFAULT {
            return Ok(());
        }
        let granted = self.granted_shared.lock();
        let mut granted = granted.unwrap_or_else(std::sync::PoisonError::into_inner);
        let most = granted.entry(function as usize).or_default();
        if bytes > *most {
            use sys::CUfunction_attribute as Attribute;
            let dynamic = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            call!(cuFuncSetAttribute(function, dynamic, bytes as c_int))?;
            *most = bytes;
        }
        Ok(())
    }

    /// Allocates device memory with undefined contents.
    pub fn alloc(&self, bytes: usize) -> Result<u64, DriverError> {
        self.enter()?;
        let mut address = 0;
        // The driver refuses an allocation of 0 bytes.
        match call!(cuMemAlloc_v2(&raw mut address, bytes.max(1))) {
            Err(DriverError::Call { code, .. })
                if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32 =>
            {
                let [free, total] = self.memory()?;
                Err(DriverError::OutOfMemory { bytes, free, total })
            }
            result => result.map(|()| address),
        }
    }

    /// Frees device memory. Errors are ignored, because this runs on drop.
    pub fn free(&self, address: u64) {
        // The result is ignored, because `drop` cannot report a failure.
        let _ = self.enter().and_then(|()| call!(cuMemFree_v2(address)));
    }

    /// Allocates pinned host memory, which the device can copy asynchronously.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned, DriverError> {
        self.enter()?;
        let mut start: *mut c_void = ptr::null_mut();
        call!(cuMemHostAlloc(&raw mut start, bytes.max(1), 0))?;
        let start = start.cast::<u8>();
        // SAFETY: the driver has just allocated at least `bytes` bytes at `start`.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { start, bytes })
    }

    /// Frees pinned host memory. Errors are ignored, because this runs on drop.
    pub fn drop_pinned(&self, pinned: &Pinned) {
        let _ = self.enter().and_then(|()| call!(cuMemFreeHost(pinned.start.cast())));
    }

    /// Blocks the calling thread until the event has completed.
    pub fn synchronize_event(&self, event: usize) -> Result<(), DriverError> {
        self.enter()?;
        call!(cuEventSynchronize(event as CUevent))
    }

    /// Creates a stream that does not synchronize with the default stream.
    pub fn stream(&self) -> Result<usize, DriverError> {
        self.enter()?;
        let mut stream: CUstream = ptr::null_mut();
        let flag = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        call!(cuStreamCreate(&raw mut stream, flag))?;
        Ok(stream as usize)
    }

    /// Destroys a stream. Errors are ignored, because this runs on drop.
    pub fn drop_stream(&self, stream: usize) {
        let _ = self.enter().and_then(|()| call!(cuStreamDestroy_v2(stream as CUstream)));
    }

    /// Creates an event. Events that only order streams record no time, which makes them cheaper.
    pub fn event(&self, purpose: EventPurpose) -> Result<usize, DriverError> {
        self.enter()?;
        let flags = match purpose {
            EventPurpose::Order => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
            EventPurpose::Timing => sys::CUevent_flags::CU_EVENT_DEFAULT,
        };
        let mut event: CUevent = ptr::null_mut();
        call!(cuEventCreate(&raw mut event, flags as u32))?;
        Ok(event as usize)
    }

    /// Destroys an event. Errors are ignored, because this runs on drop.
    pub fn drop_event(&self, event: usize) {
        let _ = self.enter().and_then(|()| call!(cuEventDestroy_v2(event as CUevent)));
    }

    /// Copies pageable host memory to the device on a stream.
    pub fn upload(&self, stream: usize, address: u64, bytes: &[u8]) -> Result<(), DriverError> {
        self.enter()?;
        let (from, count) = (bytes.as_ptr().cast(), bytes.len());
        // The driver has read pageable memory when this call returns, as `Stream::upload`
        // promises.
        let started = call!(cuMemcpyHtoDAsync_v2(address, from, count, stream as CUstream));
        self.finish(started, stream, || format!("copy of {count} bytes to the device"))
    }

    /// Queues a copy from the device to the host. The bytes are valid once the stream has completed
    /// the copy.
    pub fn download(
        &self,
        stream: usize,
        address: u64,
        bytes: &mut [u8],
    ) -> Result<(), DriverError> {
        self.enter()?;
        let (to, count) = (bytes.as_mut_ptr().cast(), bytes.len());
        let started = call!(cuMemcpyDtoHAsync_v2(to, address, count, stream as CUstream));
        self.finish(started, stream, || format!("copy of {count} bytes to the host"))
    }

    /// Copies bytes within the device on a stream.
    pub fn copy(
        &self,
        stream: usize,
        [from, to]: [u64; 2],
        bytes: usize,
    ) -> Result<(), DriverError> {
        self.enter()?;
        let started = call!(cuMemcpyDtoDAsync_v2(to, from, bytes, stream as CUstream));
        self.finish(started, stream, || format!("copy of {bytes} bytes on the device"))
    }

    /// Sets each byte of a range to the same value, on a stream.
    pub fn fill(
        &self,
        stream: usize,
        address: u64,
        bytes: usize,
        byte: u8,
    ) -> Result<(), DriverError> {
        self.enter()?;
        let started = call!(cuMemsetD8Async(address, byte, bytes, stream as CUstream));
        self.finish(started, stream, || format!("fill of {bytes} bytes"))
    }

    /// Records an event on a stream. The event completes when the work launched on the stream so
    /// far is done.
    pub fn record(&self, event: usize, stream: usize) -> Result<(), DriverError> {
        self.enter()?;
        call!(cuEventRecord(event as CUevent, stream as CUstream))
    }

    /// Makes later work of a stream wait for an event, without blocking the host.
    pub fn wait(&self, stream: usize, event: usize) -> Result<(), DriverError> {
        self.enter()?;
        call!(cuStreamWaitEvent(stream as CUstream, event as CUevent, 0))
    }

    /// Returns whether an event has completed, without blocking.
    pub fn has_passed(&self, event: usize) -> Result<bool, DriverError> {
        self.enter()?;
        match call!(cuEventQuery(event as CUevent)) {
            Err(DriverError::Call { code, .. })
                if code == CUresult::CUDA_ERROR_NOT_READY as u32 =>
            {
                Ok(false)
            }
            result => result.map(|()| true),
        }
    }

    /// Returns the time between two completed events in milliseconds.
    pub fn elapsed_ms(&self, [from, to]: [usize; 2]) -> Result<f32, DriverError> {
        self.enter()?;
        let mut elapsed = 0.0;
        // SAFETY: `elapsed_time` returned a function of this type, and the driver created both
        // events.
        let result =
            unsafe { (self.elapsed_time)(&raw mut elapsed, from as CUevent, to as CUevent) };
        checked("cuEventElapsedTime", result).map(|()| elapsed)
    }

    /// Blocks the calling thread until all work of a stream is done.
    pub fn synchronize(&self, stream: usize) -> Result<(), DriverError> {
        self.enter()?;
        call!(cuStreamSynchronize(stream as CUstream))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_called_driver_function_is_loaded() {
        let source = include_str!("native.rs");
        let calls = source.split("call!(").chain(source.split("sys::"));
        let names = calls.filter_map(|rest| rest.split(['(', ')', ' ']).next());
        let is_function = |name: &&str| {
            let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_');
            is_name && name.starts_with("cu") && *name != "culib"
        };
        let called: Vec<&str> = names.filter(is_function).collect();
        assert!(called.len() >= 30, "{called:?}");
        for name in called {
            assert!(super::FUNCTIONS.contains(&name), "{name}");
        }
    }
}
