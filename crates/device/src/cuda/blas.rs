//! cuBLASLt, NVIDIA's library of matrix products, which is opened at run time where it is
//! installed.
//!
//! The library chooses an algorithm at the first product of each size, within a preallocated
//! workspace. Each later product is one call in a stream, which neither allocates nor waits. This
//! module works on row-major matrices and does not depend on layers.
#![expect(unsafe_code, reason = "calls into cuBLASLt; decisions 0002 and 0047")]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex};

use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtEpilogue_t, cublasLtHandle_t, cublasLtMatmulAlgo_t,
    cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, cublasLtMatmulHeuristicResult_t,
    cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t,
    cudaDataType,
};
use schema::Precision;

use super::error::DriverError;
use super::libraries::{CudaLibrary, LibrarySearch};
use super::loader::{
    LibraryReport, LibraryVersion, OpenedLibrary, SharedLibrary, function_table, open_first,
};
use super::machine::GpuMachine;
use super::{Accuracy, Buffer, Driver, Stream};

/// Size of an algorithm's workspace in bytes, which NVIDIA recommends for its largest GPUs.
const WORKSPACE_BYTES: usize = 32 << 20;
/// The strictest alignment in bytes that an algorithm needs.
const ALIGNMENT: u64 = 256;

function_table! {
    /// Functions of `cublasLt.h`. Status codes are plain numbers, because a later version may
    /// return codes that this program does not define.
    CublasLtFunctions {
        cublasLtGetVersion: fn() -> usize;
        cublasLtGetStatusString: fn(u32) -> *const c_char;
        cublasLtCreate: fn(*mut cublasLtHandle_t) -> u32;
        cublasLtDestroy: fn(cublasLtHandle_t) -> u32;
        cublasLtMatmul: fn(
            cublasLtHandle_t,
            cublasLtMatmulDesc_t,
            *const c_void,
            *const c_void,
            cublasLtMatrixLayout_t,
            *const c_void,
            cublasLtMatrixLayout_t,
            *const c_void,
            *const c_void,
            cublasLtMatrixLayout_t,
            *mut c_void,
            cublasLtMatrixLayout_t,
            *const cublasLtMatmulAlgo_t,
            *mut c_void,
            usize,
            sys::cudaStream_t
        ) -> u32;
        cublasLtMatmulAlgoGetHeuristic: fn(
            cublasLtHandle_t,
            cublasLtMatmulDesc_t,
            cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t,
            cublasLtMatmulPreference_t,
            c_int,
            *mut cublasLtMatmulHeuristicResult_t,
            *mut c_int
        ) -> u32;
        cublasLtMatmulDescCreate: fn(
            *mut cublasLtMatmulDesc_t,
            cublasComputeType_t,
            cudaDataType
        ) -> u32;
        cublasLtMatmulDescDestroy: fn(cublasLtMatmulDesc_t) -> u32;
        cublasLtMatmulDescSetAttribute: fn(
            cublasLtMatmulDesc_t,
            cublasLtMatmulDescAttributes_t,
            *const c_void,
            usize
        ) -> u32;
        cublasLtMatmulPreferenceCreate: fn(*mut cublasLtMatmulPreference_t) -> u32;
        cublasLtMatmulPreferenceDestroy: fn(cublasLtMatmulPreference_t) -> u32;
        cublasLtMatmulPreferenceSetAttribute: fn(
            cublasLtMatmulPreference_t,
            cublasLtMatmulPreferenceAttributes_t,
            *const c_void,
            usize
        ) -> u32;
        cublasLtMatrixLayoutCreate: fn(
            *mut cublasLtMatrixLayout_t,
            cudaDataType,
            u64,
            u64,
            i64
        ) -> u32;
        cublasLtMatrixLayoutDestroy: fn(cublasLtMatrixLayout_t) -> u32;
    }
}

/// A matrix product `C[m, n] = f(β C + A B + bias)` of row-major matrices.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// The factors of the product, matrices `A` and `B`. `A` is `[m, k]`, or `[k, m]` if it is
    /// transposed; `B` is `[k, n]`, or `[n, k]` if it is transposed.
    pub factors: [&'a Buffer; 2],
    pub to: &'a Buffer,
    /// Bias `[n]` in f32, which is allowed only for an f32 result.
    pub bias: Option<&'a Buffer>,
    /// The properties by which the library chooses an algorithm.
    pub form: ProductForm,
}

/// Sizes and number formats of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProductForm {
    /// Sizes m, n and k of the product.
    pub sizes: [usize; 3],
    /// Whether `A` and `B` are stored transposed.
    pub transposed: [bool; 2],
    pub factors: NumberFormat,
    pub result: NumberFormat,
    /// Whether the product is added to the existing values, that is, β is 1 instead of 0.
    pub accumulates: bool,
    /// Whether a ReLU follows the product.
    pub relu: bool,
}

/// The number format of a matrix in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NumberFormat {
    /// The 32-bit format, which takes 4 bytes per value.
    F32,
    /// The bfloat16 format, which takes 2 bytes per value.
    Bf16,
}

impl From<Precision> for NumberFormat {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::F32,
            Precision::Bf16 => Self::Bf16,
        }
    }
}

impl NumberFormat {
    fn data_type(self) -> cudaDataType {
        match self {
            Self::F32 => cudaDataType::CUDA_R_32F,
            Self::Bf16 => cudaDataType::CUDA_R_16BF,
        }
    }
}

/// The opened cuBLASLt library, whose clones share it.
#[derive(Clone)]
pub struct CublasLt {
    library: Arc<OpenedLibrary<CublasLtFunctions>>,
}

/// The library with its handle, its plans and its workspaces. Each rank has its own, because a
/// lock lets only one call at a time use the library.
pub struct Blas {
    driver: Driver,
    library: CublasLt,
    handle: usize,
    compute: cublasComputeType_t,
    state: Mutex<BlasState>,
}

/// Products planned so far and their workspaces, behind the library's lock.
#[derive(Default)]
struct BlasState {
    /// A plan is `None` if the library has no algorithm for the product.
    plans: BTreeMap<PlanKey, Option<ProductPlan>>,
    /// One workspace per stream, because products on different streams run concurrently.
    workspaces: BTreeMap<usize, Buffer>,
}

/// The key of a plan: the form of a product, the address of its bias, and the alignment of the
/// other addresses. A plan's descriptor contains the address of the bias, so products with
/// different biases must not share a plan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PlanKey {
    form: ProductForm,
    bias: Option<u64>,
    alignments: [u32; 3],
}

/// The library's descriptors of a product, and the algorithm that it chose.
struct ProductPlan {
    library: CublasLt,
    operation: usize,
    layouts: [usize; 3],
    algorithm: cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
}

/// Turns a status into an error that names the call.
macro_rules! call {
    ($library:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let functions: &CublasLtFunctions = &$library.library.functions;
        // SAFETY: the handles come from the library, and the pointers refer to live values that
        // the call reads or writes.
        let status = unsafe { (functions.$function)($($argument),*) };
        functions.check(stringify!($function), status)
    }};
}

impl CublasLtFunctions {
    fn check(&self, call: &'static str, status: u32) -> Result<(), DriverError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library returns a static NUL-terminated text, or a null pointer.
        let problem = unsafe {
            let text = (self.cublasLtGetStatusString)(status);
            if text.is_null() { "unknown".into() } else { CStr::from_ptr(text).to_string_lossy() }
        };
        let problem = problem.into_owned();
        Err(DriverError::Call { call, operation: None, code: status, problem })
    }
}

impl CublasLt {
    /// Opens the first usable library of `search`. Skips libraries whose major version is later
    /// than the CUDA version of `driver`, because that driver cannot run them.
    ///
    /// # Errors
    /// Fails with [`DriverError::NoLibrary`] if none of the libraries can be used.
    pub fn open(
        search: &LibrarySearch,
        driver: Option<LibraryVersion>,
    ) -> Result<Self, DriverError> {
        let load = |library: &SharedLibrary| {
            let functions = CublasLtFunctions::load(library)?;
            // SAFETY: `cublasLtGetVersion` takes no arguments and returns a number.
            let number = unsafe { (functions.cublasLtGetVersion)() } as u32;
            let (major, minor) = (number / 10_000, number / 100 % 100);
            let version = LibraryVersion { major, minor, patch: Some(number % 100) };
            Ok((functions, version))
        };
        let library = Arc::new(open_first(search, CudaLibrary::CublasLt, driver, load)?);
        Ok(Self { library })
    }

    /// Returns the path and the version of the library.
    #[must_use]
    pub fn report(&self) -> LibraryReport {
        self.library.report(CudaLibrary::CublasLt)
    }

    fn set<T>(
        &self,
        operation: cublasLtMatmulDesc_t,
        attribute: cublasLtMatmulDescAttributes_t,
        value: &T,
    ) -> Result<(), DriverError> {
        let (value, bytes) = (ptr::from_ref(value).cast(), size_of::<T>());
        call!(self, cublasLtMatmulDescSetAttribute(operation, attribute, value, bytes))
    }

    /// Describes a column-major matrix without padding between its columns.
    fn layout(
        &self,
        [rows, columns]: [usize; 2],
        format: NumberFormat,
    ) -> Result<cublasLtMatrixLayout_t, DriverError> {
        let mut layout: cublasLtMatrixLayout_t = ptr::null_mut();
        let (to, data_type, step) = (&raw mut layout, format.data_type(), rows as i64);
        let [rows, columns] = [rows, columns].map(|count| count as u64);
        call!(self, cublasLtMatrixLayoutCreate(to, data_type, rows, columns, step))?;
        Ok(layout)
    }

    fn preference(&self, alignments: [u32; 3]) -> Result<cublasLtMatmulPreference_t, DriverError> {
        use cublasLtMatmulPreferenceAttributes_t as Attribute;
        let mut preference: cublasLtMatmulPreference_t = ptr::null_mut();
        call!(self, cublasLtMatmulPreferenceCreate(&raw mut preference))?;
        let set = |attribute, value: *const c_void, bytes| {
            call!(self, cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes))
        };
        let most = WORKSPACE_BYTES;
        let attribute = Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        set(attribute, (&raw const most).cast(), size_of::<usize>())?;
        let [a, b, to] = alignments;
        for (attribute, alignment) in [
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, to),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, to),
        ] {
            set(attribute, (&raw const alignment).cast(), size_of::<u32>())?;
        }
        Ok(preference)
    }
}

impl Blas {
    /// Opens the library for products on `driver`. Returns `None` for the emulator, or if no
    /// library can be used.
    ///
    /// # Errors
    /// Fails with [`DriverError::Call`] if a call into the driver fails.
    pub fn open(driver: &Driver) -> Result<Option<Self>, DriverError> {
        let GpuMachine::Native(device) = &*driver.machine else { return Ok(None) };
        let library = match CublasLt::open(device.libraries(), Some(device.driver_version())) {
            Ok(library) => library,
            Err(DriverError::NoLibrary { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        device.enter()?;
        let mut handle: cublasLtHandle_t = ptr::null_mut();
        call!(library, cublasLtCreate(&raw mut handle))?;
        let compute = match driver.accuracy {
            Accuracy::F32 => cublasComputeType_t::CUBLAS_COMPUTE_32F,
            Accuracy::Tf32 => cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        };
        let (driver, handle) = (driver.clone(), handle as usize);
        Ok(Some(Self { driver, library, handle, compute, state: Mutex::default() }))
    }

    /// Returns the version of the opened library.
    #[must_use]
    pub fn version(&self) -> LibraryVersion {
        self.library.library.version
    }

    /// Allocates the workspace that products in `stream` use.
    ///
    /// # Errors
    /// Fails with [`DriverError::OutOfMemory`] if the device has too little free memory.
    pub fn prepare(&self, stream: &Stream) -> Result<(), DriverError> {
        let workspace = self.driver.alloc(WORKSPACE_BYTES)?;
        self.locked().workspaces.insert(stream.handle, workspace);
        Ok(())
    }

    /// Queues a product in `stream`. Returns `false` without doing anything if the library has no
    /// algorithm for it or the stream was not prepared.
    ///
    /// # Errors
    /// Fails with [`DriverError::Call`] if a call into the driver fails.
    pub fn product(&self, stream: &Stream, product: &Product<'_>) -> Result<bool, DriverError> {
        let GpuMachine::Native(device) = &*self.driver.machine else { return Ok(false) };
        let Product { factors: [a, b], to, bias, form } = product;
        let alignments = [a, b, to].map(|buffer| alignment(buffer.address()));
        let key = PlanKey { form: *form, bias: bias.map(Buffer::address), alignments };
        device.enter()?;
        let BlasState { plans, workspaces } = &mut *self.locked();
        let Some(workspace) = workspaces.get(&stream.handle) else { return Ok(false) };
        let plan = match plans.entry(key) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => entry.insert(self.plan(&key)?),
        };
        let Some(plan) = plan else { return Ok(false) };
        let operation = plan.operation as cublasLtMatmulDesc_t;
        let (alpha, beta) = (1.0f32, if form.accumulates { 1.0f32 } else { 0.0 });
        // The library reads matrices as column-major, and a row-major matrix is the transpose of
        // a column-major one. The factors are therefore swapped: Cᵀ = Bᵀ Aᵀ.
        let [first, second, result] = plan.layouts.map(|layout| layout as cublasLtMatrixLayout_t);
        let at = |buffer: &Buffer| ptr::without_provenance_mut::<c_void>(buffer.address() as usize);
        let (alpha, beta) = ((&raw const alpha).cast(), (&raw const beta).cast());
        let (algorithm, workspace_bytes) = (&raw const plan.algorithm, plan.workspace_bytes);
        let [a, b, to, workspace] = [a, b, to, workspace].map(at);
        let (handle, cuda_stream) =
            (self.handle as cublasLtHandle_t, stream.handle as sys::cudaStream_t);
        let started = call!(
            self.library,
            cublasLtMatmul(
                handle,
                operation,
                alpha,
                b,
                first,
                a,
                second,
                beta,
                to,
                result,
                to,
                result,
                algorithm,
                workspace,
                workspace_bytes,
                cuda_stream,
            )
        );
        let [m, n, k] = form.sizes;
        device.finish(started, stream.handle, || format!("product {m} × {n} × {k}"))?;
        Ok(true)
    }

    /// Creates the library's descriptors of a product and lets the library choose an algorithm.
    fn plan(&self, key: &PlanKey) -> Result<Option<ProductPlan>, DriverError> {
        use cublasLtMatmulDescAttributes_t as Attribute;
        let ProductForm { sizes: [m, n, k], transposed, factors, result, relu, .. } = key.form;
        let mut operation: cublasLtMatmulDesc_t = ptr::null_mut();
        let sums = cudaDataType::CUDA_R_32F;
        let (library, compute) = (&self.library, self.compute_of(factors));
        call!(library, cublasLtMatmulDescCreate(&raw mut operation, compute, sums))?;
        // The values are CUBLAS_OP_N (0) and CUBLAS_OP_T (1) of cublas_api.h.
        let turned = i32::from;
        library.set(operation, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &turned(transposed[1]))?;
        library.set(operation, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &turned(transposed[0]))?;
        let epilogue = match (key.bias.is_some(), relu) {
            (false, false) => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
            (false, true) => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU,
            (true, false) => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            (true, true) => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS,
        };
        library.set(operation, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &(epilogue as u32))?;
        if let Some(address) = key.bias {
            library.set(operation, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &address)?;
        }
        // The closure returns the rows and columns of a matrix in memory as the library sees it,
        // which reads it as column-major.
        let lies = |[rows, columns]: [usize; 2], is_transposed| {
            if is_transposed { [rows, columns] } else { [columns, rows] }
        };
        let first = library.layout(lies([k, n], transposed[1]), factors)?;
        let second = library.layout(lies([m, k], transposed[0]), factors)?;
        let layouts = [first, second, library.layout([n, m], result)?];
        let preference = library.preference(key.alignments)?;
        // SAFETY: the result struct has only plain numbers, for which all bits zero are valid.
        let mut found: cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        let mut count = 0;
        let [a, b, to] = layouts;
        let (handle, found_at, count_at) =
            (self.handle as cublasLtHandle_t, &raw mut found, &raw mut count);
        let asked = call!(
            library,
            cublasLtMatmulAlgoGetHeuristic(
                handle, operation, a, b, to, to, preference, 1, found_at, count_at
            )
        );
        call!(library, cublasLtMatmulPreferenceDestroy(preference))?;
        let has_none = asked.is_err() || count == 0;
        let plan = ProductPlan {
            library: library.clone(),
            operation: operation as usize,
            layouts: layouts.map(|layout| layout as usize),
            algorithm: found.algo,
            workspace_bytes: found.workspaceSize,
        };
        Ok(if has_none { None } else { Some(plan) })
    }

    fn compute_of(&self, factors: NumberFormat) -> cublasComputeType_t {
        match factors {
            NumberFormat::F32 => self.compute,
            NumberFormat::Bf16 => cublasComputeType_t::CUBLAS_COMPUTE_32F,
        }
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, BlasState> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Returns the largest power of two, at most [`ALIGNMENT`], that divides an address.
fn alignment(address: u64) -> u32 {
    1 << (address | ALIGNMENT).trailing_zeros()
}

impl Drop for ProductPlan {
    fn drop(&mut self) {
        // The status is ignored, because `drop` cannot report a failure.
        let _ =
            call!(self.library, cublasLtMatmulDescDestroy(self.operation as cublasLtMatmulDesc_t));
        for layout in self.layouts {
            let _ =
                call!(self.library, cublasLtMatrixLayoutDestroy(layout as cublasLtMatrixLayout_t));
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if let GpuMachine::Native(device) = &*self.driver.machine {
            let _ = device.enter();
        }
        *self.locked() = BlasState::default();
        let _ = call!(self.library, cublasLtDestroy(self.handle as cublasLtHandle_t));
    }
}

impl fmt::Debug for CublasLt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CublasLt").field("path", &self.library.path).finish_non_exhaustive()
    }
}

impl fmt::Debug for Blas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blas").finish_non_exhaustive()
    }
}
