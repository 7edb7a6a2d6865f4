//! `rowmill predict kernels`: what single kernels take on a device.

use predict::kernel::embedding::{self, TableLookup};
use predict::kernel::measured::operation;
use predict::kernel::{Domain, Error as KernelError, KernelModel, Kind, Price, Work, roofline_ns};
use schema::HardwareSpec;
use schema::topology::hardware;
use serde::Serialize;

use super::model;
use crate::args::PredictKernels;
use crate::error::Error;
use crate::resolve::Session;
use crate::sheet::{self, SheetTarget};

/// What a pooled lookup is called.
const LOOKUP: &str = "embedding";

/// One price.
#[derive(Serialize)]
struct Row {
    work: String,
    hardware: String,
    mean_ns: f64,
    low_ns: f64,
    high_ns: f64,
    roofline_ns: f64,
    domain: String,
}

/// What is priced.
enum Asked {
    /// By a learnt model.
    Work(Work),
    /// By a formula: so many tables alike.
    Lookup(Vec<TableLookup>),
}

/// Runs the command.
pub fn run(args: &PredictKernels, session: &Session) -> Result<(), Error> {
    let devices = args.hardware.iter().map(|name| hardware(name));
    let devices: Vec<_> = devices.collect::<Result<_, _>>().map_err(KernelError::from)?;
    let asked: Vec<Asked> = args.works.iter().map(|text| asked(text)).collect::<Result<_, _>>()?;
    let is_asked = |kind: Kind| {
        asked.iter().any(|one| matches!(one, Asked::Work(work) if work.kind() == kind))
    };
    let mut models: Vec<KernelModel> = Vec::new();
    for kind in Kind::ALL.into_iter().filter(|kind| is_asked(*kind)) {
        models.push(model(args.models.as_deref(), kind)?);
    }
    let mut rows = Vec::new();
    for (text, one) in args.works.iter().zip(&asked) {
        for device in &devices {
            rows.extend(match one {
                Asked::Work(work) => learnt(&models, work, device),
                Asked::Lookup(tables) => Some(by_formula(text, tables, device)),
            });
        }
    }
    sheet::put(session.console, &rows, SheetTarget { output: args.output.as_deref(), top: None })
}

/// Such as `linear 512 1024 1024`.
fn asked(text: &str) -> Result<Asked, Error> {
    let mut words = text.split_whitespace();
    let name = words.next().unwrap_or_default();
    let sizes: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
    let sizes = sizes.ok_or_else(|| Error::WorkSizes { text: text.to_owned() })?;
    if name != LOOKUP {
        return Ok(Asked::Work(operation(name)?.work(&sizes)?));
    }
    let &[batch, tables @ 1..=100_000, rows, dim, pooling] = &sizes[..] else {
        let expected = "5 sizes: batch, tables up to 100000, rows, dim, pooling".to_owned();
        return Err(KernelError::Shape { kind: LOOKUP, sizes, expected }.into());
    };
    let table = TableLookup::uniform(batch, rows, dim, pooling)?;
    Ok(Asked::Lookup(vec![table; tables as usize]))
}

fn learnt(models: &[KernelModel], work: &Work, device: &HardwareSpec) -> Option<Row> {
    let model = models.iter().find(|model| model.kind() == work.kind())?;
    let Price { mean_ns, low_ns, high_ns, domain } = model.price(work, device);
    Some(Row {
        work: work.to_string(),
        hardware: device.key.clone().into_owned(),
        mean_ns,
        low_ns,
        high_ns,
        roofline_ns: roofline_ns(work, device),
        domain: described(&domain),
    })
}

/// Where the longest bag decides, lookups of V100 were within 10 %. All else is unmeasured, so the
/// interval is a factor of two.
fn by_formula(text: &str, tables: &[TableLookup], device: &HardwareSpec) -> Row {
    let mean_ns = embedding::forward_ns(tables, device, embedding::V100);
    let longest = tables.iter().map(|table| table.longest_bag).max().unwrap_or(0) as f64;
    let line = embedding::V100.start_ns + longest * embedding::V100.row_ns;
    let is_measured = device.key.starts_with("v100") && mean_ns <= line;
    let factor = if is_measured { 1.15 } else { 2.0 };
    let domain = match is_measured {
        true => "formula; the longest bag decides",
        false => "formula; not measured",
    };
    Row {
        work: text.to_owned(),
        hardware: device.key.clone().into_owned(),
        mean_ns,
        low_ns: mean_ns / factor,
        high_ns: mean_ns * factor,
        roofline_ns: embedding::published_ns(tables, device),
        domain: domain.to_owned(),
    }
}

fn described(domain: &Domain) -> String {
    let mut parts = Vec::new();
    if domain.is_unseen_device {
        parts.push("device not measured".to_owned());
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
