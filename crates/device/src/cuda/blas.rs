//! NVIDIA's library of matrix products, cuBLASLt, opened at run time where it is installed.
//!
//! The library chooses an algorithm at the first product of each size, within a preallocated
//! workspace; later products are one call in a stream, which neither allocates nor waits. Knows
//! row-major matrices, and no layer.
#![expect(unsafe_code, reason = "calls into cuBLASLt; decisions 0002 and 0057")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::Mutex;

use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtEpilogue_t, cublasLtHandle_t, cublasLtMatmulAlgo_t,
    cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, cublasLtMatmulHeuristicResult_t,
    cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t,
    cublasStatus_t, cudaDataType,
};
use schema::Precision;

use super::error::DriverError;
use super::machine::GpuMachine;
use super::{Accuracy, Buffer, Driver, Stream};

/// Bytes that an algorithm may work in: what NVIDIA recommends for its largest GPUs.
const WORKSPACE_BYTES: usize = 32 << 20;
/// The strictest alignment that an algorithm needs.
const ALIGNMENT: u64 = 256;

/// Every function that is called here, as for the driver's library.
const FUNCTIONS: [&str; 13] = [
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtGetVersion",
];

/// A product `C[m, n] = f(β C + A B + bias)` of row-major matrices.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// `A`: `[m, k]`, or `[k, m]` where it is transposed; and `B`: `[k, n]`, or `[n, k]`.
    pub factors: [&'a Buffer; 2],
    /// The result.
    pub to: &'a Buffer,
    /// `[n]`, f32; only into f32.
    pub bias: Option<&'a Buffer>,
    /// What the library chooses an algorithm by.
    pub form: ProductForm,
}

/// Sizes and formats of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProductForm {
    /// m, n, k.
    pub sizes: [usize; 3],
    /// Whether `A` and `B` lie transposed.
    pub transposed: [bool; 2],
    /// Of both factors.
    pub factors: NumberFormat,
    /// Of the result.
    pub result: NumberFormat,
    /// Whether what is there is added to: β is 1, not 0.
    pub accumulates: bool,
    /// Whether negative results become 0.
    pub relu: bool,
}

/// How a number lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NumberFormat {
    /// 4 bytes.
    F32,
    /// 2 bytes.
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

/// The library with its plans and workspaces. One per rank: calls wait for each other.
pub struct Blas {
    driver: Driver,
    handle: usize,
    compute: cublasComputeType_t,
    state: Mutex<BlasState>,
}

#[derive(Default)]
struct BlasState {
    /// `None` where the library has no algorithm.
    plans: BTreeMap<PlanKey, Option<ProductPlan>>,
    /// By stream: products of different streams run at the same time.
    workspaces: BTreeMap<usize, Buffer>,
}

/// What a plan is made for: a form, whether there is a bias, and how addresses are aligned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PlanKey {
    form: ProductForm,
    has_bias: bool,
    alignments: [u32; 3],
}

/// Descriptions of a product, in the library's own memory, and the algorithm.
struct ProductPlan {
    operation: usize,
    layouts: [usize; 3],
    algorithm: cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
}

/// Turns a status into an error that names the call.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: `Blas::open` asked for the library and its functions; handles come from the
        // library, and pointers are to what the call reads or fills.
        let status = unsafe { sys::$function($($argument),*) };
        checked(stringify!($function), status)
    }};
}

fn checked(call: &'static str, status: cublasStatus_t) -> Result<(), DriverError> {
    if status == cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(DriverError::Call { call, code: status as u32, problem: format!("{status:?}") })
}

impl Blas {
    /// The library, for products on `driver`; `None` of the emulator, and where it is not
    /// installed.
    ///
    /// # Errors
    /// [`DriverError::NoFunction`], [`DriverError::Call`].
    pub fn open(driver: &Driver) -> Result<Option<Self>, DriverError> {
        let GpuMachine::Native(device) = &*driver.machine else { return Ok(None) };
        device.open_library("libcublasLt.so");
        // SAFETY: opens the library, whose constructors run.
        if !unsafe { sys::is_culib_present() } {
            return Ok(None);
        }
        // SAFETY: the library is there; a symbol is only looked for, not called.
        let has = |name: &str| unsafe { sys::culib().get::<fn()>(name.as_bytes()).is_ok() };
        super::error::complete("libcublasLt.so", &FUNCTIONS, has)?;
        device.enter()?;
        let mut handle: cublasLtHandle_t = ptr::null_mut();
        call!(cublasLtCreate(&raw mut handle))?;
        let compute = match driver.accuracy {
            Accuracy::F32 => cublasComputeType_t::CUBLAS_COMPUTE_32F,
            Accuracy::Tf32 => cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        };
        let (driver, handle) = (driver.clone(), handle as usize);
        Ok(Some(Self { driver, handle, compute, state: Mutex::default() }))
    }

    /// Such as 130100 for 13.1.0.
    #[must_use]
    pub fn version(&self) -> usize {
        // SAFETY: `open` asked for the function.
        unsafe { sys::cublasLtGetVersion() }
    }

    /// Allocates what products in `stream` work in.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`].
    pub fn prepare(&self, stream: &Stream) -> Result<(), DriverError> {
        let workspace = self.driver.alloc(WORKSPACE_BYTES)?;
        self.locked().workspaces.insert(stream.handle, workspace);
        Ok(())
    }

    /// Puts a product in `stream`; false where the library has no algorithm for it, or the stream
    /// was not prepared, and nothing was done.
    ///
    /// # Errors
    /// [`DriverError::Call`].
    pub fn product(&self, stream: &Stream, product: &Product<'_>) -> Result<bool, DriverError> {
        let GpuMachine::Native(device) = &*self.driver.machine else { return Ok(false) };
        let Product { factors: [a, b], to, bias, form } = product;
        let alignments = [a, b, to].map(|buffer| alignment(buffer.address()));
        let key = PlanKey { form: *form, has_bias: bias.is_some(), alignments };
        device.enter()?;
        let BlasState { plans, workspaces } = &mut *self.locked();
        let Some(workspace) = workspaces.get(&stream.handle) else { return Ok(false) };
        let plan = match plans.entry(key) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => entry.insert(self.plan(&key)?),
        };
        let Some(plan) = plan else { return Ok(false) };
        let operation = plan.operation as cublasLtMatmulDesc_t;
        if let Some(bias) = bias {
            let address = bias.address();
            set(
                operation,
                cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                &address,
            )?;
        }
        let (alpha, beta) = (1.0f32, if form.accumulates { 1.0f32 } else { 0.0 });
        // Row-major matrices are the transposed column-major ones, so the factors change places:
        // Cᵀ = Bᵀ Aᵀ.
        let [first, second, result] = plan.layouts.map(|layout| layout as cublasLtMatrixLayout_t);
        let at = |buffer: &Buffer| ptr::without_provenance_mut::<c_void>(buffer.address() as usize);
        call!(cublasLtMatmul(
            self.handle as cublasLtHandle_t,
            operation,
            (&raw const alpha).cast(),
            at(b),
            first,
            at(a),
            second,
            (&raw const beta).cast(),
            at(to),
            result,
            at(to),
            result,
            &raw const plan.algorithm,
            at(workspace),
            plan.workspace_bytes,
            stream.handle as sys::cudaStream_t,
        ))?;
        Ok(true)
    }

    /// The library's descriptions of a product and its choice of an algorithm.
    fn plan(&self, key: &PlanKey) -> Result<Option<ProductPlan>, DriverError> {
        use cublasLtMatmulDescAttributes_t as Attribute;
        let ProductForm { sizes: [m, n, k], transposed, factors, result, relu, .. } = key.form;
        let mut operation: cublasLtMatmulDesc_t = ptr::null_mut();
        let sums = cudaDataType::CUDA_R_32F;
        call!(cublasLtMatmulDescCreate(&raw mut operation, self.compute_of(factors), sums))?;
        // CUBLAS_OP_N and CUBLAS_OP_T of cublas_api.h.
        let turned = i32::from;
        set(operation, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &turned(transposed[1]))?;
        set(operation, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &turned(transposed[0]))?;
        let epilogue = match (key.has_bias, relu) {
            (false, false) => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
            (false, true) => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU,
            (true, false) => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            (true, true) => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS,
        };
        set(operation, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &(epilogue as u32))?;
        // As they lie in memory, rows and columns of the column-major matrix.
        let lies = |[rows, columns]: [usize; 2], is_transposed| {
            if is_transposed { [rows, columns] } else { [columns, rows] }
        };
        let first = layout(lies([k, n], transposed[1]), factors)?;
        let second = layout(lies([m, k], transposed[0]), factors)?;
        let layouts = [first, second, layout([n, m], result)?];
        let preference = preference(key.alignments)?;
        // SAFETY: plain numbers, which the library writes.
        let mut found: cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        let mut count = 0;
        let asked = call!(cublasLtMatmulAlgoGetHeuristic(
            self.handle as cublasLtHandle_t,
            operation,
            layouts[0],
            layouts[1],
            layouts[2],
            layouts[2],
            preference,
            1,
            &raw mut found,
            &raw mut count,
        ));
        call!(cublasLtMatmulPreferenceDestroy(preference))?;
        let has_none = asked.is_err() || count == 0;
        let plan = ProductPlan {
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

/// The alignment of an address, at most [`ALIGNMENT`].
fn alignment(address: u64) -> u32 {
    1 << (address | ALIGNMENT).trailing_zeros()
}

fn set<T>(
    operation: cublasLtMatmulDesc_t,
    attribute: cublasLtMatmulDescAttributes_t,
    value: &T,
) -> Result<(), DriverError> {
    let (value, bytes) = (ptr::from_ref(value).cast(), size_of::<T>());
    call!(cublasLtMatmulDescSetAttribute(operation, attribute, value, bytes))
}

/// A column-major matrix without gaps.
fn layout(
    [rows, columns]: [usize; 2],
    format: NumberFormat,
) -> Result<cublasLtMatrixLayout_t, DriverError> {
    let mut layout: cublasLtMatrixLayout_t = ptr::null_mut();
    let (data_type, step) = (format.data_type(), rows as i64);
    call!(cublasLtMatrixLayoutCreate(
        &raw mut layout,
        data_type,
        rows as u64,
        columns as u64,
        step
    ))?;
    Ok(layout)
}

fn preference(alignments: [u32; 3]) -> Result<cublasLtMatmulPreference_t, DriverError> {
    use cublasLtMatmulPreferenceAttributes_t as Attribute;
    let mut preference: cublasLtMatmulPreference_t = ptr::null_mut();
    call!(cublasLtMatmulPreferenceCreate(&raw mut preference))?;
    let most = WORKSPACE_BYTES;
    let most = (&raw const most).cast();
    call!(cublasLtMatmulPreferenceSetAttribute(
        preference,
        Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        most,
        size_of::<usize>(),
    ))?;
    let [a, b, to] = alignments;
    for (attribute, alignment) in [
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, to),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, to),
    ] {
        let value = (&raw const alignment).cast();
        call!(cublasLtMatmulPreferenceSetAttribute(
            preference,
            attribute,
            value,
            size_of::<u32>()
        ))?;
    }
    Ok(preference)
}

impl Drop for ProductPlan {
    fn drop(&mut self) {
        // Nothing can be done about a failure while a value is dropped.
        let _ = call!(cublasLtMatmulDescDestroy(self.operation as cublasLtMatmulDesc_t));
        for layout in self.layouts {
            let _ = call!(cublasLtMatrixLayoutDestroy(layout as cublasLtMatrixLayout_t));
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if let GpuMachine::Native(device) = &*self.driver.machine {
            let _ = device.enter();
        }
        *self.locked() = BlasState::default();
        let _ = call!(cublasLtDestroy(self.handle as cublasLtHandle_t));
    }
}

impl fmt::Debug for Blas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blas").finish_non_exhaustive()
    }
}
