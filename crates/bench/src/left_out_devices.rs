//! Evaluates kernel models on devices that were left out of training.
//!
//! The model has seen either none of the device's measurements or twenty of them. Simple
//! predictions are evaluated on the same rows.

use kernel_model::error_metrics::mape;
use kernel_model::evaluate::{CleanLatency, list_latencies};
use kernel_model::parallel::in_parallel;
use kernel_model::{KernelModel, Measured, Part, few_shot, hash, resembles_layers, roofline_ns};
use schema::HardwareSpec;
use serde::Serialize;

use crate::simple_predictions::{nearest, stock_features, train_stock_trees};

/// Number of measurements of the new device that calibrate a model.
const SHOTS: usize = 20;
/// Number of random draws of calibration rows. Reported errors are means over the draws.
const DRAWS: u64 = 5;
/// Prediction errors for one kind of kernel on a device that was left out of training. All errors
/// are mean absolute errors.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOutRow {
    pub kind: &'static str,
    pub device: String,
    /// Test rows above the floor, as in
    /// [`KernelRow::rows`](kernel_model::evaluate::KernelRow::rows).
    pub rows: usize,
    /// Error of max(roofline, launch overhead of the other devices).
    pub roofline_mape_pct: f64,
    /// Error of the latency on the nearest device without any change.
    pub unchanged_mape_pct: f64,
    /// Error of the nearest device's line, max(overhead, start · overhead + slope · roofline).
    pub nearest_line_mape_pct: f64,
    /// Error of gradient-boosted trees over sizes and hardware of the other devices.
    pub trees_mape_pct: f64,
    /// Error of the model, which knows only the other devices.
    pub mape_pct: f64,
    /// Error after calibration by twenty measurements of this device.
    pub shots_mape_pct: f64,
    /// Share of measured times above the floor within the interval for unmeasured devices.
    pub covered_pct: f64,
    /// Share of covered times among the rows that resemble layers of real models.
    pub layers_covered_pct: f64,
}

/// Leaves out each device of a model in turn and returns the prediction errors on that device.
/// `rows` are those on which the model was trained.
#[must_use]
pub fn evaluate_left_out_devices(
    model: &KernelModel,
    rows: &[Measured],
    threads: usize,
) -> Vec<LeftOutRow> {
    let is_known = |row: &CleanLatency| model.find_device(row.row.device).is_some();
    let mut latencies = list_latencies(model.kind(), rows);
    latencies.retain(is_known);
    let devices: Vec<&[CleanLatency]> =
        latencies.chunk_by(|one, next| one.row.device.key == next.row.device.key).collect();
    // With fewer than three devices, the remaining ones are too few for an interval.
    if devices.len() < 3 {
        return Vec::new();
    }
    in_parallel(threads, devices.len(), |at| row(model, rows, &devices, at))
}

fn row(
    model: &KernelModel,
    rows: &[Measured],
    devices: &[&[CleanLatency]],
    at: usize,
) -> LeftOutRow {
    let own = devices[at];
    let device: &HardwareSpec = own[0].row.device;
    let mut others = devices.to_vec();
    others.remove(at);
    let model = model.without_device(rows, device);
    let tested = own.iter().filter(|row| row.part == Part::Test && row.is_judged);
    let tested: Vec<&Measured> = tested.map(|latency| &latency.row).collect();
    let error = |predict: &dyn Fn(&Measured) -> f64| {
        mape(tested.iter().map(|row| (predict(row), row.latency_ns)))
    };
    let nearest = nearest(&others, device);
    let near = model.find_device(nearest);
    let trees = train_stock_trees(&others);
    let shots = (0..DRAWS).map(|draw| {
        few_shot::calibrate(model.clone(), &draw_rows(own, draw)).map_or(f64::NAN, |model| {
            error(&|row| model.predict_latency(&row.work, row.device).mean_ns)
        })
    });
    let covered_pct = |rows: &[&Measured]| {
        let is_covered =
            |row: &&&Measured| model.predict_latency(&row.work, row.device).covers(row.latency_ns);
        let covered = rows.iter().filter(is_covered);
        100.0 * covered.count() as f64 / rows.len().max(1) as f64
    };
    LeftOutRow {
        kind: model.kind().name(),
        device: device.key.clone().into_owned(),
        rows: tested.len(),
        roofline_mape_pct: error(&|row| {
            roofline_ns(&row.work, row.device).max(model.usual_floor_ns(&row.work))
        }),
        unchanged_mape_pct: error(&|row| model.predict_latency(&row.work, nearest).mean_ns),
        nearest_line_mape_pct: error(&|row| {
            near.map_or(f64::NAN, |near| near.line_ns(&row.work, row.device))
        }),
        trees_mape_pct: error(&|row| trees.predict(&stock_features(row)).exp()),
        mape_pct: error(&|row| model.predict_latency(&row.work, row.device).mean_ns),
        shots_mape_pct: shots.sum::<f64>() / DRAWS as f64,
        covered_pct: covered_pct(&tested),
        layers_covered_pct: covered_pct(&resembles_layers(&tested)),
    }
}

/// Draws training rows for calibration.
fn draw_rows(device: &[CleanLatency], draw: u64) -> Vec<Measured> {
    let training = device.iter().filter(|row| row.part == Part::Train);
    let mut rows: Vec<Measured> = training.map(|latency| latency.row).collect();
    // Element-wise operations of one size share a hash. A different salt for each operation draws
    // the operations independently.
    let salt = |row: &Measured| {
        1 + draw + DRAWS * row.work.element().map_or(0, |element| 1 + element as u64)
    };
    rows.sort_by_key(|row| (hash(&row.work, salt(row)), row.work));
    rows.truncate(SHOTS);
    rows
}

#[cfg(test)]
mod tests {
    use kernel_model::{Kind, Measured, Timed, Work, roofline_ns, train};
    use schema::random::CounterRng;
    use schema::topology::hardware;

    use super::evaluate_left_out_devices;

    #[test]
    fn a_device_is_predicted_better_from_others_than_by_its_roofline() {
        // Layer norms take three times their roofline, but at least 40 µs.
        let row = |key: &str, place: u32| {
            let device = hardware(key).expect("a device");
            let random = CounterRng::new(3, u64::from(place));
            let sizes = [1 + random.below(0, 20_000), 32 * (1 + random.below(1, 64))];
            let work = Work::new(Kind::LayerNorm, &sizes).expect("a work");
            let latency_ns = (3.0 * roofline_ns(&work, device)).max(40_000.0);
            Measured { work, device, latency_ns, timed: Timed::Call, place }
        };
        let rows: Vec<Measured> = ["v100", "a100", "t4"]
            .into_iter()
            .flat_map(|key| (0..500).map(move |place| row(key, place)))
            .collect();
        let model = train(Kind::LayerNorm, &rows, Vec::new(), 2).expect("a model");
        let left_out = evaluate_left_out_devices(&model, &rows, 2);
        assert_eq!(left_out.len(), 3);
        for row in &left_out {
            assert!(row.mape_pct < row.roofline_mape_pct, "{row:?}");
            assert!(row.shots_mape_pct < row.roofline_mape_pct, "{row:?}");
        }
        assert!(evaluate_left_out_devices(&model, &rows[..1_000], 2).is_empty());
    }
}
