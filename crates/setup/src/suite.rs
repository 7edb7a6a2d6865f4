//! Reads a suite that `bench/collect` recorded: its list of files, its GPU and its microbenchmarks.
//! The models that are trained on these measurements are in other crates.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kernel_model::formula_kernels::{SingleKind, SingleWork};
use kernel_model::{Element, Kind, Work};
use schema::HardwareSpec;
use schema::topology::hardware;
use serde::Deserialize;

use crate::error::{Error, UsageError};

/// A kernel of a recorded suite with its measured time.
#[derive(Clone, Copy, Debug)]
pub struct SuiteMeasured {
    pub work: SuiteWork,
    pub ns: f64,
}

/// A kernel of a suite, whose time a trained model or a formula predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SuiteWork {
    Learned(Work),
    Single(SingleWork),
}

/// Name of the file that lists the files of a suite.
pub const SUITE: &str = "suite.json";

/// The list of a suite's files. Other fields of the JSON are ignored.
#[derive(Deserialize)]
pub struct SuiteFile {
    schema: String,
    version: u32,
    environments: BTreeMap<String, Environment>,
    pub files: Vec<SuiteEntry>,
}

/// A machine on which files of the suite were recorded.
#[derive(Deserialize)]
struct Environment {
    gpu: Option<Gpu>,
}

/// The GPU of an environment. Only the name of the GPU is read, to find the hardware specification.
#[derive(Deserialize)]
struct Gpu {
    name: String,
}

/// An entry of the suite's list: a recorded file with its kind.
#[derive(Deserialize)]
pub struct SuiteEntry {
    pub path: PathBuf,
    pub kind: String,
}

impl SuiteFile {
    /// Returns the name of the GPU, or `None` for a suite that was recorded on a CPU.
    pub fn gpu(&self) -> Option<&str> {
        let gpu = self.environments.values().find_map(|one| one.gpu.as_ref());
        gpu.map(|gpu| gpu.name.as_str())
    }
}

/// Reads the list of files of the suite in `folder`.
///
/// # Errors
/// Returns an error if the file cannot be read, or is not the list of a suite.
pub fn read(folder: &Path) -> Result<SuiteFile, Error> {
    let path = folder.join(SUITE);
    let text = std::fs::read_to_string(&path).map_err(Error::io(&path, "read"))?;
    let expected = "the list of a suite that bench/collect recorded, version 1".to_owned();
    let wrong = |got: String| {
        let source = kernel_model::Error::Model { expected: expected.clone(), got };
        Error::from(UsageError::Kernels { path: path.clone(), source })
    };
    let suite: SuiteFile = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if (suite.schema.as_str(), suite.version) == ("rowmill-suite", 1) {
        return Ok(suite);
    }
    Err(wrong(format!("{} of version {}", suite.schema, suite.version)))
}

/// Reads the GPU of the suite in `folder`, and its microbenchmarks.
///
/// # Errors
/// Returns an error if a file cannot be read, or if the suite was recorded on a CPU.
pub fn read_kernels(folder: &Path) -> Result<(&'static HardwareSpec, Vec<SuiteMeasured>), Error> {
    let suite = read(folder)?;
    let Some(gpu) = suite.gpu() else {
        let source = kernel_model::Error::Model {
            expected: "a suite that was recorded on a GPU".to_owned(),
            got: "one of a CPU".to_owned(),
        };
        return Err(UsageError::Kernels { path: folder.join(SUITE), source }.into());
    };
    let device = hardware(gpu).map_err(kernel_model::Error::from)?;
    Ok((device, read_microbenchmarks(folder, &suite)?))
}

/// Reads the microbenchmarks of a suite, which are kernels in f32 and copies.
///
/// # Errors
/// Returns an error if a table cannot be read, or if a field is missing or malformed.
pub fn read_microbenchmarks(folder: &Path, suite: &SuiteFile) -> Result<Vec<SuiteMeasured>, Error> {
    let mut rows = Vec::new();
    for recorded in suite.files.iter().filter(|file| file.kind == "microbench") {
        let path = folder.join(&recorded.path);
        let mut header: Vec<String> = Vec::new();
        data::small_table::for_each_record(&path, |line, fields| {
            if header.is_empty() {
                header = fields.iter().map(|field| (*field).to_owned()).collect();
                return Ok(());
            }
            let text = |column: &'static str| {
                let at = header.iter().position(|name| name == column);
                let field = at.and_then(|at| fields.get(at).copied());
                let missing = || kernel_model::Error::Column { column, got: header.clone() };
                field.ok_or_else(missing)
            };
            let read = || -> Result<Option<SuiteMeasured>, kernel_model::Error> {
                let (op, shape, dtype) = (text("op")?, text("shape")?, text("dtype")?);
                let median = text("median_us")?;
                // Copies have no type of number, and the suite records them as `uint8`.
                let is_f32 = matches!(dtype, "float32" | "uint8");
                let Some(work) = work(op, shape).filter(|_| is_f32) else {
                    return Ok(None);
                };
                let us = median.parse::<f64>().ok().filter(|us| us.is_finite() && *us > 0.0);
                let us = us.ok_or_else(|| kernel_model::Error::Rows {
                    count: 1,
                    rows: line as usize,
                    line,
                    expected: "microseconds above 0".to_owned(),
                    got: median.to_owned(),
                })?;
                Ok(Some(SuiteMeasured { work, ns: 1e3 * us }))
            };
            let found =
                read().map_err(|source| UsageError::Kernels { path: path.clone(), source })?;
            rows.extend(found);
            Ok::<(), Error>(())
        })?;
    }
    Ok(rows)
}

/// Returns the work of a microbenchmark, or `None` for a kind without a model.
fn work(op: &str, shape: &str) -> Option<SuiteWork> {
    let size = |name: &str| {
        let mut pairs = shape.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.find(|pair| pair.0 == name)?.1.parse::<u64>().ok()
    };
    let all = |names: &[&str]| names.iter().map(|name| size(name)).collect::<Option<Vec<u64>>>();
    let lookup = ["b", "t", "e", "d", "l"];
    let single = |kind: SingleKind, names: &[&str]| {
        Some(SuiteWork::Single(SingleWork::new(kind, &all(names)?).ok()?))
    };
    let element =
        |element: Element| Some(SuiteWork::Learned(Work::element_wise(element, size("n")?).ok()?));
    let (kind, sizes) = match op {
        "embedding_forward" => return single(SingleKind::EmbeddingForward, &lookup),
        "embedding_backward" => return single(SingleKind::EmbeddingBackward, &lookup),
        "concat" => return single(SingleKind::Concat, &["b", "t", "d"]),
        "transpose" => return single(SingleKind::Transpose, &["b", "t", "d"]),
        "tril_forward" => return single(SingleKind::TrilForward, &["b", "t"]),
        "tril_backward" => return single(SingleKind::TrilBackward, &["b", "t"]),
        "batch_norm" | "batch_norm_backward" => {
            let kind = match op {
                "batch_norm" => SingleKind::BatchNorm,
                _ => SingleKind::BatchNormBackward,
            };
            let sizes = [size("b")?, size("c")?, size("hw")?.checked_pow(2)?];
            return Some(SuiteWork::Single(SingleWork::new(kind, &sizes).ok()?));
        }
        "conv_forward" => {
            let [b, c, k, hw, r] = ["b", "c", "k", "hw", "r"].map(size);
            let (hw, r) = (hw?, r?);
            let sizes = [b?, c?, k?, hw, hw, r, r, 1, r / 2, r / 2];
            return Some(SuiteWork::Single(SingleWork::new(SingleKind::Conv2d, &sizes).ok()?));
        }
        "conv2d_forward" => {
            let names = ["b", "c", "k", "h", "w", "rh", "rw", "stride", "ph", "pw"];
            return single(SingleKind::Conv2d, &names);
        }
        "memcpy_on_device" => return single(SingleKind::Copy, &["bytes"]),
        "memcpy_to_device_pinned" => return single(SingleKind::CopyToDevice, &["bytes"]),
        "memcpy_to_device_pageable" => {
            return single(SingleKind::CopyToDevicePageable, &["bytes"]);
        }
        "memcpy_to_host_pinned" => return single(SingleKind::CopyToHost, &["bytes"]),
        "memcpy_to_host_pageable" => return single(SingleKind::CopyToHostPageable, &["bytes"]),
        "gemm" => (Kind::Linear, all(&["m", "n", "k"])?),
        "bmm" => (Kind::Bmm, all(&["b", "t", "t", "d"])?),
        "layer_norm" => (Kind::LayerNorm, all(&["rows", "columns"])?),
        "softmax" => (Kind::Softmax, all(&["rows", "columns"])?),
        "relu" => return element(Element::Relu),
        "add" => return element(Element::Add),
        _ => return None,
    };
    Some(SuiteWork::Learned(Work::new(kind, &sizes).ok()?))
}
