//! The command `rowmill predict kernels`, which predicts the times of single kernels on a device.

use kernel_model::Estimate;
use kernel_model::formula_kernels::{SingleKind, SingleWork};
use kernel_model::measured::operation;
use kernel_model::{Domain, Error as KernelError, KernelModel, Kind, Price, Work, roofline_ns};
use predict::step::{RankExchange, price_exchange};
use schema::TableRow;
use schema::{HardwareSpec, Topology};
use serde::Serialize;

use crate::args::PredictKernels;
use setup::Session;
use setup::error::{Error, UsageError};
use setup::hardware_file::find_topology;
use setup::kernel_files::read_model;
use setup::table_output::{self, TableTarget};

/// The predicted time of one kernel on one device.
#[derive(Serialize, TableRow)]
struct KernelPriceRow {
    work: String,
    hardware: String,
    mean_ns: f64,
    low_ns: f64,
    high_ns: f64,
    roofline_ns: f64,
    domain: String,
}

/// An operation as typed by the user, by the method that predicts its time.
enum TypedWork {
    /// An operation whose time a trained model predicts.
    Model(Work),
    Formula(SingleWork),
    /// An exchange between ranks, with the bytes that each rank contributes.
    Exchange(RankExchange, u64),
}

/// Runs `rowmill predict kernels` and prints its result.
pub fn run(args: &PredictKernels, session: &Session) -> Result<(), Error> {
    let topologies = args.hardware.iter().map(|name| find_topology(name));
    let topologies: Vec<Topology> = topologies.collect::<Result<_, _>>()?;
    let works: Vec<TypedWork> =
        args.works.iter().map(|text| parse_work(text)).collect::<Result<_, _>>()?;
    let has_kind = |kind: Kind| {
        works.iter().any(|one| matches!(one, TypedWork::Model(work) if work.kind() == kind))
    };
    let mut models: Vec<KernelModel> = Vec::new();
    for kind in Kind::ALL.into_iter().filter(|kind| has_kind(*kind)) {
        models.push(read_model(args.models.as_deref(), kind)?);
    }
    let mut rows = Vec::new();
    for (text, one) in args.works.iter().zip(&works) {
        for (name, topology) in args.hardware.iter().zip(&topologies) {
            rows.extend(match one {
                TypedWork::Model(work) => predict_by_model(&models, work, &topology.device),
                TypedWork::Formula(work) => Some(predict_by_formula(work, &topology.device)),
                TypedWork::Exchange(exchange, bytes) => {
                    Some(predict_exchange(text, *exchange, *bytes, name, topology)?)
                }
            });
        }
    }
    table_output::write_rows(
        session.console,
        &rows,
        TableTarget { output: args.output.as_deref(), top: None },
    )
}

/// Parses an operation with its sizes, such as `linear 512 1024 1024`.
fn parse_work(text: &str) -> Result<TypedWork, Error> {
    let mut words = text.split_whitespace();
    let name = words.next().unwrap_or_default();
    let sizes: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
    let sizes = sizes.ok_or_else(|| UsageError::WorkSizes { text: text.to_owned() })?;
    if let Some(collective) = RankExchange::named(name) {
        let &[bytes @ 1..=u64::MAX] = &sizes[..] else {
            let (kind, expected) = (collective.name(), "1 size above 0: bytes".to_owned());
            return Err(KernelError::Shape { kind, sizes, expected }.into());
        };
        return Ok(TypedWork::Exchange(collective, bytes));
    }
    match SingleKind::named(name) {
        Some(kind) => Ok(TypedWork::Formula(SingleWork::new(kind, &sizes)?)),
        None => Ok(TypedWork::Model(operation(name).map_err(add_formula_names)?.work(&sizes)?)),
    }
}

/// Adds the operations that formulas predict to the names that an error message lists.
fn add_formula_names(error: KernelError) -> KernelError {
    match error {
        KernelError::Operation { name, mut known } => {
            known.extend(SingleKind::ALL.iter().map(|kind| kind.name()));
            known.extend(RankExchange::ALL.iter().map(|collective| collective.name()));
            KernelError::Operation { name, known }
        }
        other => other,
    }
}

fn predict_by_model(
    models: &[KernelModel],
    work: &Work,
    device: &HardwareSpec,
) -> Option<KernelPriceRow> {
    let model = models.iter().find(|model| model.kind() == work.kind())?;
    let Price { mean_ns, low_ns, high_ns, domain } = model.price(work, device);
    Some(KernelPriceRow {
        work: work.to_string(),
        hardware: device.key.clone().into_owned(),
        mean_ns,
        low_ns,
        high_ns,
        roofline_ns: roofline_ns(work, device),
        domain: describe_domain(&domain),
    })
}

/// Predicts a kernel by a formula. The roofline is the time to move its bytes.
fn predict_by_formula(work: &SingleWork, device: &HardwareSpec) -> KernelPriceRow {
    let Estimate { mean_ns, low_ns, high_ns } = work.price(device);
    let domain = match work.is_measured(device) {
        true => "formula; the longest bag decides",
        false => "formula; not measured",
    };
    KernelPriceRow {
        work: work.to_string(),
        hardware: device.key.clone().into_owned(),
        mean_ns,
        low_ns,
        high_ns,
        roofline_ns: 1e9 * work.bytes() / device.dram,
        domain: domain.to_owned(),
    }
}

fn predict_exchange(
    text: &str,
    exchange: RankExchange,
    bytes: u64,
    hardware: &str,
    topology: &Topology,
) -> Result<KernelPriceRow, Error> {
    let Some(time) = price_exchange(exchange, bytes, topology) else {
        let expected =
            "several ranks, as in h100x8, on one host if they gather or scatter".to_owned();
        let got = format!("{hardware} for {text:?}");
        return Err(predict::Error::Workload { expected, got }.into());
    };
    // Above the largest measured size, the bandwidth is constant. The difference between the times
    // of two large exchanges therefore contains no latency, only the time per byte.
    let ns =
        |bytes: u64| price_exchange(exchange, bytes, topology).map_or(0.0, |time| time.mean_ns);
    let ns_per_byte = (ns(4 << 30) - ns(2 << 30)) / f64::from(1u32 << 31);
    let is_measured =
        topology.hosts == 1 && RankExchange::is_measured(&topology.device, &topology.within);
    let domain = if is_measured { "measured exchanges" } else { "link not measured" };
    Ok(KernelPriceRow {
        work: text.to_owned(),
        hardware: hardware.to_owned(),
        mean_ns: time.mean_ns,
        low_ns: time.low_ns,
        high_ns: time.high_ns,
        roofline_ns: bytes as f64 * ns_per_byte,
        domain: domain.to_owned(),
    })
}

fn describe_domain(domain: &Domain) -> String {
    let mut parts = Vec::new();
    if domain.is_unseen_device {
        parts.push("device not measured".to_owned());
    }
    if domain.is_adapted {
        parts.push("adapted".to_owned());
    }
    if let Some(outside) = &domain.outside {
        let (least, most) = (outside.least, outside.most);
        parts.push(format!("{} outside {least}..{most}", outside.size));
    }
    if domain.is_under_floor {
        parts.push("shorter than its launch".to_owned());
    }
    if parts.is_empty() { "measured".to_owned() } else { parts.join("; ") }
}
