//! Tests of edits on a program that is small enough to compute by hand.

use predict::calibration::{Calibration, collect};
use predict::edit::{self, Edit};
use predict::prediction::{Draws, what_if};
use predict::program::{Action, Overhead};
use predict::recording::Step;
use predict::simulate;
use trace::store::StringId;

use crate::fixture::{HOST, Recording, by_hand, step_of};

const DEVICE: (i64, i64) = (0, 7);
const DRAWS: Draws = Draws::new(3, 0);

/// Builds a step in which two operators `bag` and one operator `c` launch a kernel each, and the
/// host then waits for the last kernel.
///
/// A kernel starts 7 µs after its launch call, or 1 µs after the kernel before it. The wait returns
/// 4 µs after the last kernel.
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

/// Applies edits to a step that is calibrated from itself, and returns the predicted step time in
/// microseconds.
fn edited(step: &Step, edits: &[Edit]) -> Result<i64, predict::Error> {
    let mut calibration = Calibration::default();
    collect::add(&mut calibration, step, &[0]);
    let setting = step.recorded.setting(&step.program);
    let found = what_if::Unedited::new(&step.program, &setting, &calibration)
        .and_then(|unedited| unedited.with("", edits, DRAWS))?;
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
    let found = what_if::Unedited::new(&step.program, &setting, &calibration)
        .and_then(|unedited| unedited.with("", &[], DRAWS));
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
    assert!(edited == rows(recorded.0, &recorded.1.simulation.clone().into_steady()));
    assert!(found.rows.iter().all(|row| row.saving_ns == Some(0)));
}

#[test]
fn a_removed_operator_leaves_its_time_and_its_kernel() {
    // Without c, the wait returns 4 µs after k2, which ends at 173 µs. The host then works
    // for 2 µs and for 210 µs more.
    check(Edit::Remove { operators: text("c") }, 389);
    // Without the bags, c begins at 10 µs. Kernel k3 has no predecessor and ends at 32 µs, so the
    // wait that is called at 45 µs returns after 4 µs.
    check(Edit::Remove { operators: text("bag") }, 261);
}

#[test]
fn a_closed_gap_leaves_the_operator() {
    // Operator c begins at 60 µs instead of 70 µs, but k3 cannot run earlier, so the wait returns
    // at the same time.
    check(Edit::CloseGap { before: text("c") }, 400);
    // The first bag, k1 and all later kernels begin 10 µs earlier. The second bag begins 20 µs
    // earlier.
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
    // Without the second bag, k3 queues behind k1, and c begins at 40 µs.
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
    // The inserted kernel runs from 185 to 285 µs, so the wait returns at 289 µs.
    check(Edit::Insert { operator: text("bag"), after: text("c") }, 501);
}

#[test]
fn fused_operators_have_one_set_of_overheads_and_all_the_work() {
    // k1 does the work of both bags from 22 to 172 µs, and k3 runs from 173 to 183 µs.
    check(Edit::Fuse { operators: text("bag"), factor: 1.0 }, 399);
    check(Edit::Fuse { operators: text("bag"), factor: 0.5 }, 324);
}

#[test]
fn kernels_on_a_stream_of_their_own_do_not_queue() {
    // k1 runs from 22 to 122 µs and k2 beside it from 52 to 102 µs. k3 waits for both and runs from
    // 122 to 132 µs.
    check(Edit::Parallelise { operators: text("bag"), join: Some(text("c")) }, 348);
    refused(
        Edit::Parallelise { operators: text("c"), join: Some(text("item")) },
        "edit 1 (parallelise): expected an operator with kernels before a joining operator with kernels, \
         got none",
    );
}

#[test]
fn a_graph_launches_its_kernels_at_once() {
    // The graph is launched at 10 µs. k1 runs from 17 to 117 µs, k2 from 118 to 168 µs and k3 from
    // 169 to 179 µs.
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
    // Calls of the first operator then take no time, so its kernel starts 5 µs earlier.
    check(Edit::ScaleHost { operators: text("bag"), factor: 0.0 }, 395);
    refused(
        Edit::Scale { kernels: text("k1"), factor: f64::NAN },
        "edit 1 (scale): expected a factor from 0 to 1e6, got NaN",
    );
}

#[test]
fn a_replaced_operator_leaves_no_work_behind() {
    // The kernels take 10 µs each and run from 22, 52 and 82 µs. All three kernels have ended when
    // the wait is called at 105 µs, so the wait returns at 109 µs.
    check(Edit::Replace { operators: text("bag"), with: text("c") }, 321);
    refused(
        Edit::Replace { operators: text("bag"), with: text("bag") },
        "edit 1 (replace): expected another operator to replace them by, got none on the same rank",
    );
}

#[test]
fn a_reordered_operator_takes_its_kernel_along() {
    // k3 runs from 22 to 32 µs, k1 from 52 to 152 µs and k2 from 153 to 203 µs. The wait is for the
    // last kernel of the stream, so it returns at 207 µs.
    check(Edit::Reorder { operators: text("bag"), after: text("c") }, 419);
    check(Edit::Reorder { operators: text("c"), after: text("bag") }, 400);
}

#[test]
fn operators_on_another_thread_free_the_first_one() {
    // The new thread calls at 5 and 25 µs, so k1 runs from 12 to 112 µs and k2 from 113 to 163 µs.
    // The first thread waits for the end of both bags and begins c at 40 µs. Kernel k3 runs from
    // 164 to 174 µs, and the wait returns at 178 µs.
    check(Edit::Thread { operators: text("bag"), join: Some(text("c")) }, 390);
    // Without a join, c begins at 10 µs, but the stream keeps the order of its kernels.
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
    // Pinning removes the synchronization of 28 µs. The 2 µs of host time before the removed call
    // remain.
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
        let found = what_if::Unedited::new(&step.program, &setting, &calibration)
            .and_then(|unedited| unedited.with("", &edits, DRAWS));
        found.expect("an edit").rows[7].saving_ns.expect("a saving")
    };
    // The dense optimizer is a loop of small operators, and the last rank's host bounds the step.
    assert!(saving(Edit::Remove { operators: text("aten::addcdiv_") }) > 100_000);
    assert!(
        saving(Edit::Insert { operator: text("aten::addcdiv_"), after: text("aten::addcdiv_") })
            < -100_000
    );
    // The kernels run while the host is busy, so removing all of their time hardly shortens the
    // step.
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
    // Additions of 1,000 bytes take 10 µs and products of 10,000 bytes take 19 µs, so work takes 1
    // ns per byte.
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
    // Fusing removes two starts of 9 µs and two gaps of 2 µs.
    assert_eq!(set(sizes), 100 - 2 * 9 - 2 * 2);
    // Without tensor sizes, no part of the host time counts as work, so fusing removes two whole
    // additions of 10 µs.
    assert_eq!(set([add, mul]), 100 - 2 * 10 - 2 * 2);
}

#[test]
fn an_annotation_selects_everything_inside_it() {
    let trace = by_hand(&[
        ("user_annotation", "ProfilerStep#1", HOST, 0, 400, 0),
        ("cpu_op", "a", HOST, 10, 20, 0),
        ("user_annotation", "## part ##", HOST, 30, 130, 0),
        ("cpu_op", "a", HOST, 40, 60, 0),
        ("cpu_op", "b", HOST, 80, 120, 0),
        ("cpu_op", "a", HOST, 150, 160, 0),
    ]);
    let step = step_of(&[trace]);
    let without = |operators: &str| edited(&step, &[Edit::Remove { operators: text(operators) }]);
    let whole = edited(&step, &[]).expect("no edit");
    // The annotation takes 100 µs, and the gap before it or after it goes with it.
    let gone = whole - without("## part ##").expect("an edit");
    assert!((100..=130).contains(&gone), "{gone}");
    let later = whole - without("a[1..]").expect("an edit");
    let one = whole - without("a[1]").expect("an edit");
    assert!(one < later, "{one} {later}");
    refused(
        Edit::Remove { operators: text("bag[7..]") },
        "edit 1 (remove): expected operators of which each rank has at most 2, from [0] on, got \
         \"bag[7..]\"",
    );
}
