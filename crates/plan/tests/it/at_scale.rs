//! Tests of the ready-made settings: what each technique gains, beside the published figures.

use plan::at_scale::{PublishedSetting, SettingName, SimulatedCase};
use predict::calibration::shipped::{JobKind, ShippedOverheads};
use predict::step::Models;

fn simulated(name: SettingName) -> (PublishedSetting, Vec<SimulatedCase>) {
    let models = Models::shipped().expect("models");
    let setting = PublishedSetting::new(name).expect("a setting");
    let host = ShippedOverheads::nearest(&setting.topology.device, JobKind::Recommendation)
        .read()
        .expect("overheads");
    let cases = setting.simulate(&models, &host).expect("steps");
    (setting, cases)
}

/// The published ratio is 7.6 ÷ 3.4.
#[test]
fn the_optimizations_of_torchrec_gain_about_as_much_as_published() {
    let (_, cases) = simulated(SettingName::Torchrec);
    let steps: Vec<f64> = cases.iter().map(|case| case.row.step_ns).collect();
    let [before, .., all] = steps[..] else { panic!("{steps:?}") };
    let ratio = before / all / (7.6 / 3.4);
    assert!((0.7..1.3).contains(&ratio), "{ratio}");
    for case in &cases {
        assert!(case.row.step_ns <= before && case.row.step_ns >= all, "{:?}", case.row);
        assert!(case.row.step_ns >= case.row.host_ns.max(case.row.device_ns) * 0.999);
    }
}

#[test]
fn each_technique_of_neo_gains_something() {
    let (setting, cases) = simulated(SettingName::Neo);
    let all = &cases[0].row;
    for case in &cases[1..] {
        assert!(case.row.step_ns > all.step_ns, "{:?}", case.row);
    }
    assert!(all.fits && !cases[4].row.fits, "tables of 32 bits need more than all memory");
    let models = Models::shipped().expect("models");
    let demands = setting.demands(&models, all.step_ns).expect("demands");
    // 12 T weights of two bytes with one state per row.
    let memory = demands.iter().find(|row| row.demand == "memory").expect("memory");
    assert!((24.0..24.5).contains(&memory.simulated), "{memory:?}");
    assert!(demands.iter().all(|row| row.simulated > 0.0));
}
