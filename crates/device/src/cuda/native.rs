//! NVIDIA's driver through `cudarc`: the raw calls, each with its result checked.
//!
//! `cudarc` opens the library at the first call and panics if it is missing, so the only entry
//! point checks first. Knows no kernel.
#![expect(unsafe_code, reason = "calls into the GPU's driver; decisions 0002 and 0048")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::Mutex;

use cudarc::driver::sys::{self, CUcontext, CUevent, CUfunction, CUmodule, CUresult, CUstream};

use super::error::DriverError;
use super::grid::CheckedGrid;
use super::nvrtc;
use super::source::KernelSource;

/// Bytes of dynamic shared memory that every kernel may have without asking for more.
const SHARED_BY_DEFAULT: u32 = 48 << 10;

/// A GPU with its primary context.
pub(super) struct NativeDevice {
    pub name: String,
    context: usize,
    /// Such as `sm_90a`.
    architecture: String,
    libraries: Option<PathBuf>,
    cache: PathBuf,
    modules: Mutex<Vec<(&'static str, usize)>>,
    /// Bytes of shared memory that a block may have, once its kernel is granted them.
    pub shared_limit: usize,
    /// Bytes granted to each function above [`SHARED_BY_DEFAULT`].
    granted_shared: Mutex<BTreeMap<usize, u32>>,
}

/// Memory of the host that the driver has pinned.
pub(super) struct Pinned {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory that this value alone refers to.
unsafe impl Send for Pinned {}
// SAFETY: shared references only read it.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the driver gave so many bytes, which were zeroed.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the driver gave so many bytes, which were zeroed; `&mut self` is the one
        // reference to them.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

/// Turns a result into an error that names the call.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the library is there (`Device::open` asked), the context is current, and each
        // handle and pointer comes from the driver or points to what the call is to fill.
        let result = unsafe { sys::$function($($argument),*) };
        checked(stringify!($function), result)
    }};
}

fn checked(call: &'static str, result: CUresult) -> Result<(), DriverError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = ptr::null();
    // SAFETY: the driver sets the pointer to a text of its own, or to nothing.
    let problem = unsafe {
        let _ = sys::cuGetErrorString(result, &raw mut text);
        if text.is_null() { "unknown".into() } else { CStr::from_ptr(text).to_string_lossy() }
    };
    Err(DriverError::Call { call, code: result as u32, problem: problem.into_owned() })
}

/// Every function that is called here: `cudarc` panics at the first call of one that the library
/// lacks, so [`NativeDevice::open`] asks for all of them.
const FUNCTIONS: [&str; 31] = [
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRetain",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime_v2",
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

impl NativeDevice {
    pub fn open(
        ordinal: usize,
        libraries: Option<PathBuf>,
        cache: PathBuf,
    ) -> Result<Self, DriverError> {
        // SAFETY: opens the library, whose constructors run.
        if !unsafe { sys::is_culib_present() } {
            return Err(DriverError::NoDriver { names: "libcuda.so, libcuda.so.1" });
        }
        // SAFETY: the library is there; a symbol is only looked for, not called.
        let has = |name: &str| unsafe { sys::culib().get::<fn()>(name.as_bytes()).is_ok() };
        super::error::complete("libcuda.so.1", &FUNCTIONS, has)?;
        call!(cuInit(0))?;
        let mut count: c_int = 0;
        call!(cuDeviceGetCount(&raw mut count))?;
        let count = usize::try_from(count).unwrap_or(0);
        if ordinal >= count {
            return Err(DriverError::NoDevice { ordinal, count });
        }
        let mut device = 0;
        call!(cuDeviceGet(&raw mut device, ordinal as c_int))?;
        let mut name = [0; 256];
        call!(cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device))?;
        let name = name.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
        let name = String::from_utf8(name).unwrap_or_default();
        let attribute = |attribute| {
            let mut value: c_int = 0;
            call!(cuDeviceGetAttribute(&raw mut value, attribute, device)).map(|()| value)
        };
        use sys::CUdevice_attribute as Attribute;
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let shared = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let shared_limit = usize::try_from(attribute(shared)?).unwrap_or(0);
        let mut context: CUcontext = ptr::null_mut();
        call!(cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        call!(cuCtxSetCurrent(context))?;
        // Only code for 9.0 itself may use what Hopper alone has.
        let suffix = if (major, minor) == (9, 0) { "a" } else { "" };
        Ok(Self {
            name,
            context: context as usize,
            architecture: format!("sm_{major}{minor}{suffix}"),
            libraries,
            cache,
            modules: Mutex::default(),
            shared_limit,
            granted_shared: Mutex::default(),
        })
    }

    /// The context belongs to the thread that made it until another one takes it.
    pub fn enter(&self) -> Result<(), DriverError> {
        call!(cuCtxSetCurrent(self.context as CUcontext))
    }

    /// Opens a library of the folder of CUDA libraries, where it is there: it is then found by its
    /// name alone.
    pub fn open_library(&self, prefix: &str) {
        if let Some(folder) = &self.libraries {
            // Without it the linker looks where it always does.
            let _ = nvrtc::open_library(folder, prefix);
        }
    }

    pub fn memory(&self) -> Result<[usize; 2], DriverError> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        call!(cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok([free, total])
    }

    pub fn module(&self, source: KernelSource) -> Result<usize, DriverError> {
        self.enter()?;
        let mut modules = self.modules.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((_, module)) = modules.iter().find(|(name, _)| *name == source.name) {
            return Ok(*module);
        }
        let request = nvrtc::CompileRequest {
            source,
            architecture: &self.architecture,
            libraries: self.libraries.as_deref(),
        };
        let image = nvrtc::cached(&request, &self.cache)?;
        let mut module: CUmodule = ptr::null_mut();
        call!(cuModuleLoadData(&raw mut module, image.as_ptr().cast::<c_void>()))?;
        modules.push((source.name, module as usize));
        Ok(module as usize)
    }

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

    pub fn launch(
        &self,
        function: usize,
        _: &str,
        stream: usize,
        grid: CheckedGrid,
        mut arguments: Vec<u8>,
    ) -> Result<(), DriverError> {
        self.enter()?;
        // The arguments as one block of bytes: CU_LAUNCH_PARAM_BUFFER_POINTER,
        // CU_LAUNCH_PARAM_BUFFER_SIZE and CU_LAUNCH_PARAM_END of cuda.h.
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
        call!(cuLaunchKernel(
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
        ))
    }

    /// Lets blocks of `function` have so many bytes of dynamic shared memory.
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

    pub fn alloc(&self, bytes: usize) -> Result<u64, DriverError> {
        self.enter()?;
        let mut address = 0;
        // The driver refuses 0 bytes.
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

    pub fn free(&self, address: u64) {
        // Nothing can be done about a failure while a value is dropped.
        let _ = self.enter().and_then(|()| call!(cuMemFree_v2(address)));
    }

    pub fn pinned(&self, bytes: usize) -> Result<Pinned, DriverError> {
        self.enter()?;
        let mut start: *mut c_void = ptr::null_mut();
        call!(cuMemHostAlloc(&raw mut start, bytes.max(1), 0))?;
        let start = start.cast::<u8>();
        // SAFETY: the driver gave so many bytes.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { start, bytes })
    }

    pub fn drop_pinned(&self, pinned: &Pinned) {
        let _ = self.enter().and_then(|()| call!(cuMemFreeHost(pinned.start.cast())));
    }

    pub fn synchronize_event(&self, event: usize) -> Result<(), DriverError> {
        self.enter()?;
        call!(cuEventSynchronize(event as CUevent))
    }

    pub fn stream(&self) -> Result<usize, DriverError> {
        self.enter()?;
        let mut stream: CUstream = ptr::null_mut();
        let flag = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        call!(cuStreamCreate(&raw mut stream, flag))?;
        Ok(stream as usize)
    }

    pub fn drop_stream(&self, stream: usize) {
        let _ = self.enter().and_then(|()| call!(cuStreamDestroy_v2(stream as CUstream)));
    }

    pub fn event(&self) -> Result<usize, DriverError> {
        self.enter()?;
        let mut event: CUevent = ptr::null_mut();
        call!(cuEventCreate(&raw mut event, 0))?;
        Ok(event as usize)
    }

    pub fn drop_event(&self, event: usize) {
        let _ = self.enter().and_then(|()| call!(cuEventDestroy_v2(event as CUevent)));
    }

    pub fn upload(&self, stream: usize, address: u64, bytes: &[u8]) -> Result<(), DriverError> {
        self.enter()?;
        let (from, stream) = (bytes.as_ptr().cast(), stream as CUstream);
        call!(cuMemcpyHtoDAsync_v2(address, from, bytes.len(), stream))?;
        // Pageable memory has been read when the call returns; see `Stream::upload`.
        Ok(())
    }

    /// The bytes are there once the stream has come so far.
    pub fn download(
        &self,
        stream: usize,
        address: u64,
        bytes: &mut [u8],
    ) -> Result<(), DriverError> {
        self.enter()?;
        let to = bytes.as_mut_ptr().cast();
        call!(cuMemcpyDtoHAsync_v2(to, address, bytes.len(), stream as CUstream))
    }

    pub fn copy(
        &self,
        stream: usize,
        [from, to]: [u64; 2],
        bytes: usize,
    ) -> Result<(), DriverError> {
        self.enter()?;
        call!(cuMemcpyDtoDAsync_v2(to, from, bytes, stream as CUstream))
    }

    pub fn fill(
        &self,
        stream: usize,
        address: u64,
        bytes: usize,
        byte: u8,
    ) -> Result<(), DriverError> {
        self.enter()?;
        call!(cuMemsetD8Async(address, byte, bytes, stream as CUstream))
    }

    pub fn record(&self, event: usize, stream: usize) -> Result<(), DriverError> {
        self.enter()?;
        call!(cuEventRecord(event as CUevent, stream as CUstream))
    }

    pub fn wait(&self, stream: usize, event: usize) -> Result<(), DriverError> {
        self.enter()?;
        call!(cuStreamWaitEvent(stream as CUstream, event as CUevent, 0))
    }

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

    pub fn elapsed_ms(&self, [from, to]: [usize; 2]) -> Result<f32, DriverError> {
        self.enter()?;
        let mut elapsed = 0.0;
        call!(cuEventElapsedTime_v2(&raw mut elapsed, from as CUevent, to as CUevent))?;
        Ok(elapsed)
    }

    pub fn synchronize(&self, stream: usize) -> Result<(), DriverError> {
        self.enter()?;
        call!(cuStreamSynchronize(stream as CUstream))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_function_that_is_called_is_asked_for() {
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
