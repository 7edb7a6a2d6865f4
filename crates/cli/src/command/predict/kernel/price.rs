//! `rowmill predict kernels`: what single kernels take on a device.

use predict::kernel::measured::operation;
use predict::kernel::{Domain, Error as KernelError, KernelModel, Kind, Price, Work, roofline_ns};
use schema::topology::hardware;
use serde::Serialize;

use super::model;
use crate::args::PredictKernels;
use crate::error::Error;
use crate::resolve::Session;
use crate::sheet::{self, Target};

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

/// Runs the command.
pub fn run(args: &PredictKernels, session: &Session) -> Result<(), Error> {
    let devices = args.hardware.iter().map(|name| hardware(name));
    let devices: Vec<_> = devices.collect::<Result<_, _>>().map_err(KernelError::from)?;
    let works: Vec<Work> = args.works.iter().map(|text| work(text)).collect::<Result<_, _>>()?;
    let mut models: Vec<KernelModel> = Vec::new();
    for kind in Kind::ALL.into_iter().filter(|kind| works.iter().any(|w| w.kind() == *kind)) {
        models.push(model(args.models.as_deref(), kind)?);
    }
    let mut rows = Vec::new();
    for work in &works {
        for device in &devices {
            let model = models.iter().find(|model| model.kind() == work.kind());
            let Some(price) = model.map(|model| model.price(work, device)) else { continue };
            let Price { mean_ns, low_ns, high_ns, domain } = price;
            rows.push(Row {
                work: work.to_string(),
                hardware: device.key.clone().into_owned(),
                mean_ns,
                low_ns,
                high_ns,
                roofline_ns: roofline_ns(work, device),
                domain: described(&domain),
            });
        }
    }
    sheet::put(session.console, &rows, Target { output: args.output.as_deref(), top: None })
}

/// Such as `linear 512 1024 1024`.
fn work(text: &str) -> Result<Work, Error> {
    let mut words = text.split_whitespace();
    let operation = operation(words.next().unwrap_or_default())?;
    let sizes: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
    let sizes = sizes.ok_or_else(|| Error::WorkSizes { text: text.to_owned() })?;
    Ok(operation.work(&sizes)?)
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
