//! Edits of a program small enough to compute by hand.

use predict::calibration::{Calibration, collect};
use predict::edit::{self, Edit};
use predict::prediction::{Draws, what_if};
use predict::program::{Action, Overhead};
use predict::recording::Step;
use predict::simulate;
use trace::store::StringId;

use crate::fixture::{HOST, Recording, by_hand, step_of};

const DEVICE: (i64, i64) = (0, 7);
const DRAWS: Draws = Draws { count: 3, seed: 0 };

/// Two bags and another operator launch a kernel each; then the host waits for the last.
///
/// Launches begin 7 µs before their kernel, queued kernels 1 µs after the one before, and the wait
/// returns 4 µs after the last.
pub fn step() -> Step {
    step_of(&[by_hand(&[
        ("user_annotation", "ProfilerStep#1", HOST, 0, 400, 0),
        ("cpu_op", "bag", HOST, 10, 30, 0),
        ("cuda_runtime", "cudaLaunchKernel", HOST, 15, 20, 1),
        ("kernel", "k1", DEVICE, 22, 122, 1),
        ("cpu_op", "bag", HOST, 40, 60, 0),
        ("cuda_runtime", "cudaLaunchKernel", HOST, 45, 50, 2),
        ("kernel", "k2", DEVICE, 123, 173, 2),
        ("cpu_op", "c", HOST, 70, 90, 0),
        ("cuda_runtime", "cudaLaunchKernel", HOST, 75, 80, 3),
        ("kernel", "k3", DEVICE, 174, 184, 3),
        ("cpu_op", "item", HOST, 100, 190, 0),
        ("cuda_runtime", "cudaStreamSynchronize", HOST, 105, 188, 4),
    ])])
}

/// The step with edits, microseconds, by a calibration of itself.
fn edited(step: &Step, edits: &[Edit]) -> Result<i64, predict::Error> {
    let mut calibration = Calibration::default();
    collect::add(&mut calibration, step, &[0]);
    let setting = step.recorded.setting(&step.program);
    let found = what_if::predict_edited(&step.program, &setting, &calibration, "", edits, DRAWS)?;
    Ok(found.rows[0].step_ns / 1_000)
}

fn check(edit: Edit, expected: i64) {
    assert_eq!(edited(&step(), &[edit]).expect("an edit"), expected);
}

fn refused(edit: Edit, expected: &str) {
    let error = edited(&step(), &[edit]).expect_err("no edit").to_string();
    assert_eq!(error, expected);
}

fn text(text: &str) -> String {
    text.to_owned()
}

#[test]
fn no_edits_give_the_recorded_step_and_the_same_traces() {
    assert_eq!(edited(&step(), &[]).expect("no edit"), 400);
    let Some(recording) = Recording::read("dlrm8/dlrm_kineto.tar.gz") else { return };
    let step = recording.step(0);
    let mut calibration = Calibration::default();
    collect::add(&mut calibration, &step, &(0..8).collect::<Vec<_>>());
    let setting = step.recorded.setting(&step.program);
    let found = what_if::predict_edited(&step.program, &setting, &calibration, "", &[], DRAWS);
    let found = found.expect("no edit");
    let predicted =
        predict::prediction::predict_step(&step, &calibration, DRAWS).expect("no cycle");
    let rows = |program, simulation| {
        let traces = simulate::traces(program, simulation);
        let names = |trace: &trace::store::Trace| trace.strings.iter().collect::<String>();
        let row = |trace: &trace::store::Trace| format!("{} {:?}", names(trace), trace.slices);
        traces.iter().map(row).collect::<Vec<String>>()
    };
    let (edited, recorded) = (rows(&found.program, &found.simulation), (&step.program, &predicted));
    assert!(edited == rows(recorded.0, &recorded.1.simulation));
    assert!(found.rows.iter().all(|row| row.saving_ns == Some(0)));
}

#[test]
fn a_removed_operator_leaves_its_time_and_its_kernel() {
    // The wait returns when k2 has ended, which began at 123: 173 + 4; then 2 and 210 µs.
    check(Edit::Remove { operators: text("c") }, 389);
    // c begins at 10, k3 is behind nothing and over at 32: the wait at 45 returns at once.
    check(Edit::Remove { operators: text("bag") }, 261);
}

#[test]
fn a_closed_gap_leaves_the_operator() {
    // c begins at 60 instead of 70, k3 runs no earlier: the wait decides.
    check(Edit::CloseGap { before: text("c") }, 400);
    // All begins 10 µs earlier but for the second bag, by 20.
    check(Edit::CloseGap { before: text("bag") }, 390);
    let step = step();
    let closed = Edit::CloseGap { before: text("c") };
    let again = edited(&step, &[closed.clone(), closed]).expect_err("none is left").to_string();
    let expected =
        "edit 2 (close-gap): expected time between operators before one of them, got none";
    assert_eq!(again, expected);
}

#[test]
fn one_operator_of_several_is_named_by_its_number() {
    // The second bag goes: k3 is behind k1 alone, and c begins at 40.
    let one = edited(&step(), &[Edit::Remove { operators: text("bag[1]") }]).expect("an edit");
    let both = edited(&step(), &[Edit::Remove { operators: text("bag") }]).expect("an edit");
    assert!(both < one && one < 400, "{both} {one}");
    let again = [text("bag[1]"), text("bag[0]")].map(|operators| Edit::Remove { operators });
    assert_eq!(edited(&step(), &again).expect("edits"), both);
    refused(
        Edit::Remove { operators: text("bag[2]") },
        "edit 1 (remove): expected operators of which each rank has at most 2, from [0] on, got \
         \"bag[2]\"",
    );
}

#[test]
fn an_inserted_operator_is_awaited_like_its_predecessor() {
    // Its kernel runs 185..285, the wait returns at 289.
    check(Edit::Insert { operator: text("bag"), after: text("c") }, 501);
}

#[test]
fn fused_operators_have_one_set_of_overheads_and_all_the_work() {
    // k1 does both bags' work in 22..172, k3 runs 173..183.
    check(Edit::Fuse { operators: text("bag"), factor: 1.0 }, 399);
    check(Edit::Fuse { operators: text("bag"), factor: 0.5 }, 324);
}

#[test]
fn kernels_on_a_stream_of_their_own_do_not_queue() {
    // k1 runs 22..122, k2 beside it 52..102, k3 waits for both: 122..132.
    check(Edit::Parallelise { operators: text("bag"), join: text("c") }, 348);
    refused(
        Edit::Parallelise { operators: text("c"), join: text("item") },
        "edit 1 (parallelise): expected an operator with kernels before a joining operator with kernels, \
         got none",
    );
}

#[test]
fn a_graph_launches_its_kernels_at_once() {
    // At 10 µs: k1 17..117, k2 118..168, k3 169..179.
    check(Edit::Graph { from: text("bag"), to: text("c") }, 395);
    refused(
        Edit::Graph { from: text("bag"), to: text("item") },
        "edit 1 (graph): expected a region without waits of the host, got cudaStreamSynchronize",
    );
    refused(
        Edit::Graph { from: text("c"), to: text("bag") },
        "edit 1 (graph): expected the last operator after the first, got the last one first",
    );
}

#[test]
fn scaled_kernels_move_what_waits_for_them() {
    check(Edit::Scale { kernels: text("k1"), factor: 0.5 }, 350);
    check(Edit::Scale { kernels: text("k*"), factor: 2.0 }, 560);
    refused(
        Edit::Scale { kernels: text("k1"), factor: f64::NAN },
        "edit 1 (scale): expected a factor from 0 to 1e6, got NaN",
    );
}

#[test]
fn a_replaced_operator_leaves_no_work_behind() {
    // Kernels of 10 µs run 22..32, 52..62 and 82..92: the wait at 105 returns at 109.
    check(Edit::Replace { operators: text("bag"), with: text("c") }, 321);
    refused(
        Edit::Replace { operators: text("bag"), with: text("bag") },
        "edit 1 (replace): expected another operator to replace them by, got none on the same rank",
    );
}

#[test]
fn a_reordered_operator_takes_its_kernel_along() {
    // k3 runs 22..32, k1 52..152, k2 153..203; the wait is for the last of the stream: 207.
    check(Edit::Reorder { operators: text("bag"), after: text("c") }, 419);
    check(Edit::Reorder { operators: text("c"), after: text("bag") }, 400);
}

#[test]
fn operators_on_another_thread_free_the_first_one() {
    // The new thread calls at 5 and 25 µs: k1 12..112, k2 113..163. c waits until 40, k3 runs
    // 164..174, the wait returns at 178.
    check(Edit::Thread { operators: text("bag"), join: Some(text("c")) }, 390);
    // Without a wait c begins at 10 µs, but its stream keeps its order.
    check(Edit::Thread { operators: text("bag"), join: None }, 390);
    refused(
        Edit::Thread { operators: text("c"), join: Some(text("bag")) },
        "edit 1 (thread): expected a joining operator after a moved one, got none",
    );
}

#[test]
fn pinned_copies_are_not_awaited() {
    let step = step_of(&[by_hand(&[
        ("user_annotation", "ProfilerStep#1", HOST, 0, 100, 0),
        ("cpu_op", "aten::to", HOST, 10, 60, 0),
        ("cuda_runtime", "cudaMemcpyAsync", HOST, 15, 20, 1),
        ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", DEVICE, 25, 45, 1),
        ("cuda_runtime", "cudaStreamSynchronize", HOST, 22, 50, 2),
    ])]);
    // Of the wait, 28 µs, and what came before it, 2 µs, only the latter is left.
    assert_eq!(edited(&step, &[Edit::PinCopies {}]).expect("an edit"), 72);
    assert!(edited(&self::step(), &[Edit::PinCopies {}]).is_err());
}

#[test]
fn a_pattern_without_matches_suggests_similar_names() {
    refused(
        Edit::Remove { operators: text("bagg") },
        "edit 1 (remove): operators: expected a name in the program, got \"bagg\"; similar: bag, c, item",
    );
}

#[test]
fn a_collective_of_all_ranks_cannot_be_dropped_by_one() {
    let Some(recording) = Recording::read("dlrm8/dlrm_kineto.tar.gz") else { return };
    let program = recording.step(0).program;
    let edit = Edit::Remove { operators: text("All2All_Pooled_Req") };
    let error = edit::apply(&program, &[edit]).expect_err("a collective").to_string();
    assert!(error.contains("which other ranks wait for"), "{error}");
}

#[test]
fn edits_of_a_real_step_move_it_the_right_way() {
    let Some(recording) = Recording::read("dlrm8/dlrm_kineto.tar.gz") else { return };
    let step = recording.step(0);
    let mut calibration = Calibration::default();
    collect::add(&mut calibration, &step, &(0..8).collect::<Vec<_>>());
    let setting = step.recorded.setting(&step.program);
    let saving = |edit: Edit| {
        let edits = [edit];
        let found =
            what_if::predict_edited(&step.program, &setting, &calibration, "", &edits, DRAWS);
        found.expect("an edit").rows[7].saving_ns.expect("a saving")
    };
    // The dense optimizer is a loop of small operators; the last rank's host bounds the step.
    assert!(saving(Edit::Remove { operators: text("aten::addcdiv_") }) > 100_000);
    assert!(
        saving(Edit::Insert { operator: text("aten::addcdiv_"), after: text("aten::addcdiv_") })
            < -100_000
    );
    // Kernels hide behind the host: without any of these the step is hardly shorter.
    let kernels = saving(Edit::Scale { kernels: text("*elementwise*"), factor: 0.0 });
    assert!((0..200_000).contains(&kernels), "{kernels}");
}

#[test]
fn fusing_on_a_cpu_keeps_the_work_and_removes_the_overheads() {
    let mut step = step_of(&[by_hand(&[
        ("user_annotation", "ProfilerStep#1", HOST, 0, 100, 0),
        ("cpu_op", "add", HOST, 10, 20, 0),
        ("cpu_op", "add", HOST, 22, 32, 0),
        ("cpu_op", "add", HOST, 34, 44, 0),
        ("cpu_op", "mul", HOST, 60, 79, 0),
    ])]);
    // Additions of 1,000 bytes take 10 µs, products of 10,000 bytes 19 µs: 1 ns a byte.
    let (add, mul) = (step.program.names.intern("add"), step.program.names.intern("mul"));
    let sizes = ["250 float", "2500 float"].map(|sizes| step.program.names.intern(sizes));
    let fuse = Edit::Fuse { operators: text("add"), factor: 1.0 };
    let mut set = |sizes: [StringId; 2]| {
        for action in &mut step.program.ranks[0].threads[0].actions {
            match action {
                Action::Host(own) if own.overhead == Overhead::HostOnly => {
                    own.detail = if own.op == mul { sizes[1] } else { sizes[0] };
                }
                _ => {}
            }
        }
        edited(&step, std::slice::from_ref(&fuse)).expect("an edit")
    };
    // Two starts of 9 µs and two gaps of 2 µs go.
    assert_eq!(set(sizes), 100 - 2 * 9 - 2 * 2);
    // Where nothing says how large they are, nothing says what of them is work.
    assert_eq!(set([add, mul]), 100 - 2 * 10 - 2 * 2);
}
