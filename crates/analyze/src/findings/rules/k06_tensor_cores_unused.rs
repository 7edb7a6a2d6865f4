//! Rule K06 finds matrix products and convolutions that run without tensor cores.

use std::collections::BTreeMap;

use crate::facts::job::{RankFacts, WindowKernel};
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::hardware::{self, Maker};
use crate::findings::product::{self, DataType, Products};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::tables::kernels::short_name;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "K06",
    title: "tensor cores unused",
    category: FindingCategory::Kernel,
    side: CureSide::Device,
    confidence: Confidence::Medium,
    limits: &[
        limit(
            "time_pct",
            20.0,
            "minimum time of products without tensor cores, percent of compute",
        ),
        limit(
            "speedup_tf32",
            2.0,
            "assumed speedup of float32 with TF32, and of float64 and float32 on AMD, a factor",
        ),
        limit(
            "speedup_fp16",
            3.0,
            "assumed speedup of products in 16 bits, and of float32 ones moved to 16 bits, a factor",
        ),
    ],
    page: page!("K06"),
    detect: Detect::Rank(detect),
};

/// A product that ran without matrix units although its device has some.
#[derive(Clone, Copy)]
struct Plain<'a> {
    kernel: &'a WindowKernel,
    of: DataType,
    maker: Maker,
    /// Whether the device has matrix units for the data type of the product.
    has_units: bool,
}

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let devices = rank.scope.devices().into_iter();
    let makers: BTreeMap<i32, Maker> =
        devices.map(|device| (device, maker(rank, device))).collect();
    let products = Products::new(rank);
    let is_slow = |name: &str| !product::is_thin(name) && !product::uses_matrix_units(name);
    let slow = rank.names(is_slow);
    let plain: Vec<Plain<'_>> = rank
        .compute_kernels()
        .filter(|kernel| rank.is_named(&slow, kernel.row) && products.contains(kernel))
        .filter_map(|kernel| plain(rank, kernel, &makers))
        .collect();
    let time_ns: i64 = plain.iter().map(|one| one.kernel.duration).sum();
    let share = 100.0 * time_ns as f64 / rank.compute_ns().max(1) as f64;
    if plain.is_empty() || share < limits.value("time_pct") {
        return None;
    }
    let mut types: BTreeMap<DataType, i64> = BTreeMap::new();
    for one in &plain {
        *types.entry(one.of).or_default() += one.kernel.duration;
    }
    // The text and the advice are those of the data type on which most of the time is spent.
    let most = types.iter().max_by_key(|(_, ns)| **ns).map(|(of, _)| *of)?;
    let main = plain.iter().find(|one| one.of == most)?;
    let lost = |one: &Plain<'_>| {
        let speedup = limits.value(speedup(one)).max(1.0);
        one.kernel.duration as f64 * (1.0 - 1.0 / speedup)
    };
    let high: f64 = plain.iter().map(lost).sum();
    let rows: Vec<u32> = plain.iter().map(|one| one.kernel.row).collect();
    let evidence = rank.collect_evidence(rows.iter().copied());
    let named: Vec<&str> = types.keys().map(|of| of.name()).collect();
    let what = format!(
        "{share:.0} % of compute time ({} per step) goes to {} matrix products and convolutions \
         without {}, most to {}.",
        time(rank.per_step(time_ns)),
        named.join(" and "),
        units(main.maker),
        evidence.first().map_or("", |evidence| short_name(&evidence.name))
    );
    let edits = vec![rank.edit(rows, Action::Scale(1.0 - high / time_ns.max(1) as f64))];
    let found = RuleFindings::new(what, advice(rank, main))
        .number("time_pct_of_compute", share)
        .number("time_per_step_ns", rank.per_step(time_ns) as f64);
    Some(found.shown_by(evidence).saves(high as i64, edits))
}

/// Returns a product without matrix units, if its device has units that it could use.
fn plain<'a>(
    rank: &RankFacts<'_>,
    kernel: &'a WindowKernel,
    makers: &BTreeMap<i32, Maker>,
) -> Option<Plain<'a>> {
    let device = rank.device_info(kernel.device)?;
    let tensors = kernel.owner.and_then(|owner| rank.tensors(owner));
    let of = product::data_type(rank.name(kernel.row), tensors)?;
    let maker = *makers.get(&kernel.device)?;
    let has_units = hardware::has_matrix_units(maker, device, of);
    // Autocast would turn a float32 product into a 16-bit product.
    let can_have_units =
        of == DataType::Float32 && hardware::has_matrix_units(maker, device, DataType::Float16);
    (has_units || can_have_units).then_some(Plain { kernel, of, maker, has_units })
}

/// Returns the vendor of a device from its name, or else from the versions in the header, or else
/// from the names of calls.
fn maker(rank: &RankFacts<'_>, device: i32) -> Maker {
    let header = &rank.scope.trace.header.rest;
    let has = |keys: &[&str]| keys.iter().any(|key| header.contains_key(*key));
    let calls = |vendor: &str| {
        let is_launch = |text: &str| text.starts_with(vendor) && text.contains("Launch");
        rank.scope.trace.strings.iter().any(is_launch)
    };
    let named = rank.device_info(device).and_then(|known| hardware::maker(&known.name));
    named.unwrap_or_else(|| {
        if has(&["hip_runtime_version", "roctracer_version"]) || calls("hip") {
            Maker::Amd
        } else if has(&["cuda_runtime_version", "cupti_version"]) || calls("cu") {
            Maker::Nvidia
        } else {
            Maker::Other
        }
    })
}

/// Returns the name of the threshold that holds the assumed speedup by matrix units.
fn speedup(one: &Plain<'_>) -> &'static str {
    match one.of {
        DataType::Float32 if one.has_units => "speedup_tf32",
        DataType::Float64 => "speedup_tf32",
        _ => "speedup_fp16",
    }
}

fn units(maker: Maker) -> &'static str {
    if maker == Maker::Amd { "matrix cores (MFMA)" } else { "tensor cores" }
}

fn advice(rank: &RankFacts<'_>, main: &Plain<'_>) -> &'static str {
    let uses_tf32 = || rank.compute_kernels().any(|one| rank.name(one.row).contains("tf32"));
    match (main.of, main.maker) {
        (DataType::Float64, _) => {
            "Use float32 where its accuracy does: look for tensors that became float64 by accident \
             (NumPy arrays, Python numbers). Where float64 is meant, look at the sizes for which \
             the library falls back."
        }
        (DataType::Float16 | DataType::BFloat16 | DataType::Small, _) => {
            "The library falls back for these sizes or layouts: pad features, channels and \
             vocabulary to multiples of 8 (16 for 8-bit types), and keep tensors contiguous."
        }
        (DataType::Float32, Maker::Amd) => {
            "Train under torch.autocast with bfloat16. Float32 runs on matrix cores too, unless the \
             library falls back: look at the sizes of these products."
        }
        (DataType::Float32, _) if !main.has_units => {
            "Train under torch.autocast with float16 and a gradient scaler; keep sizes multiples of 8. \
             The device has no TF32."
        }
        (DataType::Float32, _) if uses_tf32() => {
            "TF32 is allowed, for other products use it: pad sizes to multiples of 4, allow it for \
             products and convolutions alike (torch.backends.cuda.matmul.allow_tf32, \
             torch.backends.cudnn.allow_tf32), or train under torch.autocast with bfloat16."
        }
        (DataType::Float32, _) => {
            "Allow TF32 (torch.set_float32_matmul_precision(\"high\")) or train under \
             torch.autocast with bfloat16."
        }
    }
}
