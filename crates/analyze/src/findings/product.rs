//! Recognizes matrix products and convolutions by kernel name, and finds their data type and
//! whether they run on matrix units.

use trace::store::Trace;

use crate::facts::job::{RankFacts, Tensors, WindowKernel};
use crate::facts::named;

/// The data type of the factors of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DataType {
    Float64,
    Float32,
    Float16,
    BFloat16,
    /// Types of eight bits or fewer.
    Small,
}

impl DataType {
    /// Returns the name that findings print for this data type, in the spelling of PyTorch.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float64 => "float64",
            Self::Float32 => "float32",
            Self::Float16 => "float16",
            Self::BFloat16 => "bfloat16",
            Self::Small => "8-bit",
        }
    }
}

/// Substrings that mark kernels of matrix products and convolutions. Names with `Cijk_` are
/// products of AMD's library Tensile.
const PRODUCTS: [&str; 10] =
    ["Gemm", "GEMM", "conv", "Conv", "scudnn", "wgrad", "dgrad", "nvjet", "Cijk_", "fprop"];

/// Substrings that mark kernels that only prepare or finish matrix products.
const MOVING: [&str; 9] = [
    "nchwToNhwc",
    "nhwcToNchw",
    "im2col",
    "convert",
    "Convert",
    "copy",
    "reduce",
    "embedding",
    "elementwise",
];

/// Operators whose kernels are products even if the kernel name reveals only the library.
const OPERATORS: [&str; 12] = [
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::linear",
    "aten::matmul",
    "aten::convolution_backward",
    "aten::cudnn_convolution",
    "aten::cudnn_convolution_backward_input",
    "aten::cudnn_convolution_backward_weight",
    "aten::_convolution",
    "aten::conv2d",
];

/// Recognizes the matrix products and convolutions among the kernels of a rank.
pub(super) struct Products<'a> {
    trace: &'a Trace,
    /// Names that alone identify a product.
    named: Vec<bool>,
    /// Names of kernels that are products if an operator of `operators` owns them.
    owned: Vec<bool>,
    operators: Vec<bool>,
}

impl<'a> Products<'a> {
    /// Examines each name of the rank once.
    pub fn new(rank: &RankFacts<'a>) -> Self {
        let is_moving = |name: &str| MOVING.iter().any(|part| name.contains(part));
        Self {
            trace: rank.scope.trace,
            named: rank.names(|name| is_named(name) && !is_moving(name)),
            owned: rank.names(|name| name.contains("cutlass") && !is_moving(name)),
            operators: rank.names(|name| OPERATORS.contains(&name)),
        }
    }

    /// Returns whether a kernel is a matrix product or a convolution.
    pub fn contains(&self, kernel: &WindowKernel) -> bool {
        let has = |names: &[bool], row: u32| named::is_named(self.trace, names, row);
        let is_owned = || {
            has(&self.owned, kernel.row)
                && kernel.owner.is_some_and(|owner| has(&self.operators, owner))
        };
        has(&self.named, kernel.row) || is_owned()
    }
}

/// Returns whether a kernel name alone identifies a product.
pub(super) fn is_named(name: &str) -> bool {
    // FBGEMM is a library most of whose kernels are not matrix products, although its name contains
    // `gemm`.
    let is_library = |at: usize| name[..at].ends_with("fb");
    name.match_indices("gemm").any(|(at, _)| !is_library(at))
        || PRODUCTS.iter().any(|part| name.contains(part))
}

/// Parts of names, in lower case, of kernels that cannot use matrix units well. They are products
/// with a vector, of rank one or of one group per channel, which are bound by memory, or transforms
/// that replace the usual product.
const THIN: [&str; 10] = [
    "gemv",
    "gemmk1",
    "gemmsn",
    "dot_kernel",
    "grouped_direct",
    "depthwise",
    "fft",
    "sp3asmconv",
    "miopenconvfft",
    "naive_conv",
];

/// Returns whether a product is too thin for matrix units, in any data type.
pub(super) fn is_thin(name: &str) -> bool {
    let name = name.to_lowercase();
    THIN.iter().any(|part| name.contains(part))
}

/// Parts of kernel names, in lower case, that show the use of NVIDIA's tensor cores.
const TENSOR_CORES: [&str; 20] = [
    "s884",
    "h884",
    "d884",
    "i8816",
    "s1688",
    "h1688",
    "s16816",
    "h16816",
    "16832",
    "161616",
    "tensorop",
    "tensor_op",
    "tensor16x8",
    "tensor8x8",
    "hmma",
    "imma",
    "gmma",
    "wmma",
    "tf32",
    "nvjet",
];
/// Parts of the names of kernels that run on AMD's matrix cores: composable kernels, kernels of
/// MIOpen, and hand-written ones.
const MATRIX_CORES: [&str; 5] = ["xdl", "gtcx", "mfma", "wmma", "matrix_core"];

/// Returns whether the name of a product shows that it runs on tensor cores or matrix cores.
pub(super) fn uses_matrix_units(name: &str) -> bool {
    let small = name.to_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| small.contains(part));
    if small.contains("cijk_") {
        // The name contains the shape of the matrix instruction, such as `_MI16x16x1_`.
        let behind = small.split("_mi").skip(1);
        return behind.into_iter().any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    }
    // Generated kernels of NVIDIA's libraries use tensor cores, except those for plain float32.
    let is_generated = small.contains("xmma_") || small.contains("_mma_");
    let is_plain = small.contains("f32f32_f32f32") || small.contains("simt");
    has(&TENSOR_CORES) || has(&MATRIX_CORES) || (is_generated && !is_plain)
}

/// Returns the data type of a product's factors from the kernel's name, or else from the operator's
/// tensors.
pub(super) fn data_type(name: &str, tensors: Option<&Tensors>) -> Option<DataType> {
    by_name(name).or_else(|| {
        let is_matrix = |(dims, _): &(&Vec<u64>, &String)| dims.len() >= 2;
        let tensors = tensors?;
        let (_, of) = tensors.dims.iter().zip(&tensors.types).rfind(is_matrix)?;
        by_tensor(of)
    })
}

fn by_tensor(of: &str) -> Option<DataType> {
    match of {
        "double" => Some(DataType::Float64),
        "float" => Some(DataType::Float32),
        "c10::Half" => Some(DataType::Float16),
        "c10::BFloat16" => Some(DataType::BFloat16),
        "signed char" | "unsigned char" => Some(DataType::Small),
        of if of.starts_with("c10::Float8") => Some(DataType::Small),
        _ => None,
    }
}

fn by_name(name: &str) -> Option<DataType> {
    if let Some((_, rest)) = name.split_once("Cijk_") {
        return parse_tensile(rest);
    }
    let small = name.to_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| small.contains(part));
    if has(&["bf16", "bfloat"]) {
        Some(DataType::BFloat16)
    } else if has(&["e4m3", "e5m2", "fp8", "i8816", "16832", "imma", "int8"]) {
        Some(DataType::Small)
    } else if has(&["hgemm", "h884", "h1688", "h16816", "fp16", "f16", "half"]) {
        Some(DataType::Float16)
    } else if has(&["dgemm", "d884", "double", "f64f64"]) {
        Some(DataType::Float64)
    } else if has(&["sgemm", "scudnn", "fp32", "f32", "float"]) {
        Some(DataType::Float32)
    } else {
        None
    }
}

/// Parses the data type of a Tensile name such as `Ailk_Bljk_BBS_BH_Bias_…`, which is the letter
/// after the indices of both factors. The result is `None` for complex types.
fn parse_tensile(rest: &str) -> Option<DataType> {
    let types = rest.split('_').nth(2)?;
    match types.as_bytes() {
        [b'F', b'8', ..] | [b'B', b'8', ..] | [b'I', ..] | [b'4', ..] => Some(DataType::Small),
        [b'D', ..] => Some(DataType::Float64),
        [b'S', ..] => Some(DataType::Float32),
        [b'H', ..] => Some(DataType::Float16),
        [b'B', ..] => Some(DataType::BFloat16),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
