use schema::topology::hardware;

use super::{MlpGrid, MlpProblem, MlpSetting, Regressor, errors, problems, search, search_all};
use kernel_model::{Kind, Measured, Timed, Work, roofline_ns};

/// Creates layer norms that take twice their roofline time, but at least 40 µs.
fn rows() -> Vec<Measured> {
    let device = hardware("v100").expect("a device");
    let measured = |place: u32| {
        let sizes = [64 * (1 + u64::from(place)), 32 * (1 + u64::from(place * 7 % 60))];
        let work = Work::new(Kind::LayerNorm, &sizes).expect("a work");
        let latency_ns = (2.0 * roofline_ns(&work, device)).max(40_000.0);
        Measured { work, device, latency_ns, timed: Timed::Call, place }
    };
    (0..600).map(measured).collect()
}

/// A regressor that predicts one number for all rows. The number approaches 100 µs with each epoch
/// and then exceeds it.
struct Constant {
    ln_us: f32,
    step: f32,
}

impl Regressor for Constant {
    type Error = String;

    fn epoch(&mut self) -> Result<(), String> {
        self.ln_us += self.step;
        Ok(())
    }

    fn predict(&mut self, inputs: &[f32]) -> Result<Vec<f32>, String> {
        Ok(vec![self.ln_us; inputs.len() / 2])
    }
}

fn problem() -> MlpProblem {
    let mut problem = problems(Kind::LayerNorm, &rows()).remove(0);
    for part in [&mut problem.calibrate, &mut problem.test] {
        part.targets.fill(100f32.ln());
    }
    problem
}

#[test]
fn the_published_grid_has_280_settings_and_the_small_one_is_a_part_of_it() {
    let whole = MlpGrid::Whole.settings();
    assert_eq!(whole.len(), 5 * 4 * 2 * 7);
    assert!(MlpGrid::Small.settings().iter().all(|setting| whole.contains(setting)));
    let rates = whole.iter().map(|setting| setting.learning_rate);
    assert_eq!(rates.clone().fold(f64::MAX, f64::min), 1e-4);
    assert_eq!(rates.fold(0.0, f64::max), 0.1, "SGD's are ten times as high");
}

#[test]
fn the_setting_and_the_epoch_with_the_least_error_on_calibration_rows_are_chosen() {
    let wanted = MlpGrid::Small.settings()[5];
    let start = |setting: &MlpSetting| {
        // Predictions of all settings but one stay far from 100 µs. The wanted setting reaches 100
        // µs after twelve epochs.
        let step = if *setting == wanted { 0.1 } else { 0.0 };
        Ok(Constant { ln_us: 100f32.ln() - 1.1 - step, step: step.max(0.001) })
    };
    let chosen = search(&problem(), MlpGrid::Small, start).expect("no error").expect("a setting");
    assert_eq!((chosen.setting, chosen.epoch), (wanted, 12));
    assert!(chosen.calibrate_gmae_pct < 0.1, "{chosen:?}");
    assert!(chosen.predicted_ns.iter().all(|ns| (ns - 1e5).abs() < 1.0), "{chosen:?}");
}

#[test]
fn an_mlp_that_fails_or_is_never_finite_is_not_chosen() {
    let never = |_: &MlpSetting| Ok(Constant { ln_us: f32::NAN, step: 0.0 });
    assert_eq!(search(&problem(), MlpGrid::Small, never).expect("no error"), None);
    let failing = |_: &MlpSetting| Err::<Constant, _>("no room".to_owned());
    assert_eq!(search(&problem(), MlpGrid::Small, failing), Err("no room".to_owned()));
}

#[test]
fn results_follow_the_order_of_the_problems() {
    let (small, large) = (problem(), problem());
    let small = MlpProblem { device: "a100".to_owned(), ..small };
    let problems = [small, large];
    let start = |problem: &MlpProblem, setting: &MlpSetting| {
        let off = if problem.device == "a100" { 0.2 } else { 0.1 };
        Ok::<_, String>(Constant { ln_us: 100f32.ln() - off, step: setting.learning_rate as f32 })
    };
    let search_with = |threads| {
        let heard = std::sync::atomic::AtomicUsize::new(0);
        let hear = |_: &super::ChosenMlp| {
            heard.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        };
        let chosen = search_all(&problems, MlpGrid::Small, threads, start, hear).expect("no error");
        assert_eq!(heard.into_inner(), 2);
        chosen
    };
    let one = search_with(1);
    assert_eq!(one.iter().map(|one| &*one.device).collect::<Vec<_>>(), ["a100", "v100"]);
    assert_eq!(search_with(2), one);
}

#[test]
fn errors_of_an_mlp_are_those_of_its_predictions_for_test_rows() {
    let rows = rows();
    let mut targets = problems(Kind::LayerNorm, &rows).remove(0).test.targets;
    targets.iter_mut().for_each(|target| *target += 1.1f32.ln());
    let chosen = super::ChosenMlp {
        kind: Kind::LayerNorm,
        device: "v100".to_owned(),
        setting: MlpGrid::Small.settings()[0],
        epoch: 3,
        calibrate_gmae_pct: 10.0,
        predicted_ns: targets.iter().map(|target| 1e3 * f64::from(*target).exp()).collect(),
    };
    let mlp = errors(&chosen, &rows);
    assert!((mlp.mape_pct - 10.0).abs() < 0.01 && (mlp.gmae_pct - 10.04).abs() < 0.01, "{mlp:?}");
}
