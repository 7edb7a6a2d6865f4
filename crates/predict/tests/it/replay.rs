//! Replays the recorded step of eight ranks, and predicts each rank from the others.

use predict::evaluate::{geomean_pct, iterations, leave_out, replay};

use crate::fixture::Recording;

const JOB: &str = "dlrm8/dlrm_kineto.tar.gz";
/// Ranks from which the constants are derived.
const CALIBRATED: [usize; 4] = [0, 1, 2, 3];

#[test]
fn a_step_of_eight_ranks_is_replayed_from_twelve_constants_of_four() {
    let Some(recording) = Recording::read(JOB) else { return };
    let step = recording.step(0);
    let replay = replay::replay_step(&step, &CALIBRATED).expect("no cycle");
    assert!(replay.constants.count() <= 12, "{:?}", replay.constants);
    assert_eq!(replay.ranks.len(), 8);
    for row in &replay.ranks {
        assert!(row.error_pct.abs() <= 0.5, "{row:?}");
        assert!((row.idle_pct - row.measured_idle_pct).abs() <= 1.0, "{row:?}");
        assert!(row.starts_near_pct >= 90.0, "{row:?}");
        assert!(row.collective_end_worst_ns <= 50_000, "{row:?}");
    }
}

/// The step times and idle shares must equal those in `reference/performance-model.md`, section
/// 3.5.
#[test]
fn a_recorded_step_is_the_span_of_its_annotation() {
    let Some(recording) = Recording::read(JOB) else { return };
    let step = recording.step(0);
    let lengths: Vec<i64> = step.recorded.ranks.iter().map(|rank| rank.step_ns / 1_000).collect();
    assert_eq!(lengths, [14_455, 19_901, 13_017, 19_313, 17_979, 17_797, 13_091, 12_509]);
    let replay = replay::replay_step(&step, &CALIBRATED).expect("no cycle");
    let idle: Vec<f64> =
        replay.ranks.iter().map(|row| (row.measured_idle_pct * 10.0).round() / 10.0).collect();
    assert_eq!(idle, [49.3, 34.3, 62.1, 43.2, 53.6, 55.6, 61.8, 75.8]);
    let orphans =
        |rank: &predict::program::Rank| rank.works.iter().filter(|work| !work.is_launched).count();
    let orphans: Vec<usize> = step.program.ranks.iter().map(orphans).collect();
    assert_eq!(orphans, [0, 64, 0, 64, 0, 0, 0, 0]);
    assert_eq!(step.program.collectives.len(), 8);
}

/// Each constant must change the replay. A constant without effect would not be tested by the
/// replay.
#[test]
fn each_constant_moves_the_replay() {
    let Some(recording) = Recording::read(JOB) else { return };
    let step = recording.step(0);
    let replay = replay::replay_step(&step, &CALIBRATED).expect("no cycle");
    // Returns the largest change of a step time and of a work's start, in microseconds.
    let moved = |change: fn(&mut predict::cost::Constants)| {
        let mut constants = replay.constants.clone();
        change(&mut constants);
        let changed =
            replay::replay_with_constants(&step, &CALIBRATED, constants).expect("no cycle");
        let both = replay.ranks.iter().zip(&changed.ranks);
        let steps = both.map(|(before, after)| after.step_ns - before.step_ns).max();
        let starts = step.program.ranks.iter().enumerate().flat_map(|(at, rank)| {
            let start = move |of: &replay::Replay, work| of.simulation.work_ns(at, work).0;
            let (before, after) = (&replay, &changed);
            (0..rank.works.len() as u32)
                .map(move |work| start(after, work) - start(before, work))
                .collect::<Vec<i64>>()
        });
        (steps.expect("ranks") / 1_000, starts.max().expect("works") / 1_000)
    };
    // Doubling the launch latencies delays every wait of the host for a kernel or a copy.
    let launches = moved(|constants| {
        constants.launch_ns *= 2;
        constants.copy_launch_ns *= 2;
    });
    assert!(launches.0 >= 100 && launches.1 >= 100, "{launches:?}");
    let kernels = moved(|constants| constants.launch_ns *= 2);
    assert!(kernels.0 >= 7 && kernels.1 >= 14, "{kernels:?}");
    let gap = moved(|constants| constants.queue_gap_ns += 10_000);
    assert!(gap.1 >= 10, "{gap:?}");
    let event = moved(|constants| constants.event_wait_ns += 10_000);
    assert!(event.0 >= 10, "{event:?}");
    let sync = moved(|constants| constants.sync_return_ns += 10_000);
    assert!(sync.0 >= 100, "{sync:?}");
    let copy = moved(|constants| constants.copy_return_ns += 10_000);
    assert!(copy.0 >= 20, "{copy:?}");
    let wake = moved(|constants| {
        constants.hand_over_ns.values_mut().for_each(|ns| *ns += 10_000);
    });
    assert!(wake.0 >= 10, "{wake:?}");
    let transfer = moved(|constants| {
        constants.transfer.values_mut().for_each(|transfer| transfer.fixed_ns += 10_000.0);
    });
    assert!(transfer.0 >= 10, "{transfer:?}");
}

#[test]
fn a_rank_left_out_is_predicted_from_the_others() {
    let Some(recording) = Recording::read(JOB) else { return };
    let rows = leave_out::evaluate_left_out_ranks(&recording.step(0)).expect("no cycle");
    let geomean = |take: fn(&leave_out::LeftOutRankRow) -> f64| geomean_pct(rows.iter().map(take));
    let worst = |take: fn(&leave_out::LeftOutRankRow) -> f64| {
        rows.iter().map(|row| take(row).abs()).fold(0.0, f64::max)
    };
    let near = |value: f64, expected: f64| (value - expected).abs() < 0.05;
    assert!(geomean(|row| row.error_pct) <= 3.0 && worst(|row| row.error_pct) <= 5.0, "{rows:#?}");
    assert!(worst(|row| row.together_error_pct) <= 7.0, "{rows:#?}");
    // All ranks run one program on equal machines, so the baseline, which predicts the mean end of
    // the other ranks, is equally good.
    assert!(near(geomean(|row| row.baseline_error_pct), 2.0), "{rows:#?}");
    assert!(near(worst(|row| row.baseline_error_pct), 4.2), "{rows:#?}");
}

#[test]
fn the_first_twenty_steps_predict_the_others() {
    let Some(recording) = Recording::read("linear/linear_kineto.json.gz") else { return };
    assert_eq!(recording.spans()[0].len(), 39);
    let rows = recording.with_job(|job| iterations::evaluate_later_steps(job, &recording.spans()));
    let rows = rows.expect("no cycle");
    assert_eq!((rows[0].calibrated_steps, rows[0].steps), (20, 19));
    assert!(rows[0].error_pct.abs() <= 3.0, "{rows:?}");
}
