//! Builds the program of a step of rowmill's own trainer. Actions and names match those of
//! recordings, so recorded samples can price them.

pub mod dense;
pub(crate) mod exchange;
pub mod ops;

use analyze::collectives::CollectiveOperation;
use schema::{Op, Precision};
use trace::store::StringId;

use self::exchange::Exchanges;
use crate::effort;
use crate::program::{
    Action, Call, Collective, Mark, MarkKind, Overhead, Program, Rank, Returns, Segment, Stream,
    Thread, Work, WorkId,
};

const LAUNCH: &str = "cudaLaunchKernelExC";
const STEP: &str = "ProfilerStep#";

/// Builds the program of a trainer's step. Each operation consists of a launch and one kernel,
/// which the host awaits. Ranks share memory and exchange data through it.
///
/// `slowdown` multiplies the kernel times of the calibration. For example, `slowdown` is 2 if the
/// kernels run on half of the threads.
pub fn build_program(ranks: &[Vec<Op>], slowdown: f64) -> Program {
    let mut program = Program::default();
    program.names.intern("");
    let exchanges = Exchanges::from_ops(ranks);
    for (number, ops) in (0u32..).zip(ranks) {
        let program = &mut program;
        let rank = TrainerWriter { program, slowdown, exchanges: &exchanges }.rank(number, ops);
        program.ranks.push(rank);
    }
    if ranks.len() > 1 {
        meet(&mut program, ranks);
    }
    program
}

/// Joins the n-th collective of each rank into one collective of all ranks.
fn meet(program: &mut Program, ranks: &[Vec<Op>]) {
    let operations = |ops: &[Op]| -> Vec<(WorkId, CollectiveOperation, u64)> {
        let numbered = (0u32..).zip(ops);
        numbered.filter_map(|(at, op)| Some((at, operation(op)?, op.work().bytes))).collect()
    };
    let all: Vec<Vec<(WorkId, CollectiveOperation, u64)>> =
        ranks.iter().map(|ops| operations(ops)).collect();
    for at in 0..all.iter().map(Vec::len).min().unwrap_or_default() {
        let bytes = all.iter().map(|rank| rank[at].2).max().unwrap_or_default();
        let parts: Vec<(usize, WorkId)> =
            all.iter().enumerate().map(|(rank, of)| (rank, of[at].0)).collect();
        program.add_collective(Collective { operation: all[0][at].1, bytes, parts });
    }
}

fn operation(op: &Op) -> Option<CollectiveOperation> {
    match op {
        Op::InputDist { .. } | Op::OutputDist { .. } | Op::GradientDist { .. } => {
            Some(CollectiveOperation::AllToAll)
        }
        Op::AllReduce { .. } => Some(CollectiveOperation::AllReduce),
        _ => None,
    }
}

/// Writes the operations of one rank into a program.
struct TrainerWriter<'a> {
    program: &'a mut Program,
    slowdown: f64,
    exchanges: &'a Exchanges,
}

impl TrainerWriter<'_> {
    fn rank(&mut self, number: u32, ops: &[Op]) -> Rank {
        let name = |writer: &mut Self, text: &str| writer.program.names.intern(text);
        let step = name(self, STEP);
        let mut rank = Rank { rank: number, step, ..Rank::default() };
        rank.streams.push(Stream { device: 0, number: 1 });
        let start = name(self, "start");
        let begin = Action::Begin(Mark::new(step, MarkKind::Annotation));
        let mut actions = vec![between(step, start), begin];
        let mut left = step;
        for op in ops {
            left = self.operator(op, left, &mut rank, &mut actions);
        }
        let end = name(self, "end");
        actions.push(between(step, left));
        actions.push(Action::End);
        actions.push(between(end, step));
        rank.threads.push(Thread { pid: 1, tid: 1, actions });
        rank
    }

    fn operator(
        &mut self,
        op: &Op,
        left: StringId,
        rank: &mut Rank,
        actions: &mut Vec<Action>,
    ) -> StringId {
        let names = &mut self.program.names;
        let name = names.intern(&format!("rowmill::{}", op.name()));
        let sizes = names.intern(&sizes(op));
        let kernel = match operation(op) {
            Some(_) => format!("rowmill_{} (in place of ncclKernel)", op.name()),
            None => format!("rowmill_{}", op.name()),
        };
        let launch = names.intern(LAUNCH);
        let done = self.exchanges.work(rank.rank as usize, op);
        let detail = names.intern(&effort::detail(&self::sizes(op), done));
        let id = rank.works.len() as WorkId;
        rank.works.push(Work {
            name: names.intern(&kernel),
            op: name,
            detail,
            behind: id.checked_sub(1),
            scale: self.slowdown,
            is_launched: true,
            ..Work::default()
        });
        // The trainer calls its kernels directly, so each operation is a launch that the host
        // awaits.
        let own = |overhead| Action::Host(Segment { overhead, op: name, detail: sizes });
        let cost = Segment { overhead: Overhead::RuntimeCall, op: launch, detail: name };
        let (launches, awaits) = (vec![id], Vec::new());
        let call = Call { cost, launches, awaits, room: None, returns: Returns::AtOnce };
        actions.extend([
            between(name, left),
            Action::Begin(Mark::new(name, MarkKind::Operator)),
            own(Overhead::BeforeFirstLaunch),
            Action::Call(call),
            Action::Wait(vec![id]),
            own(Overhead::AfterLastLaunch),
            Action::End,
        ]);
        name
    }
}

fn between(op: StringId, detail: StringId) -> Action {
    Action::Host(Segment { overhead: Overhead::BetweenOps, op, detail })
}

/// Formats the sizes of an operation as recordings do, so that its sample keys match recorded ones.
fn sizes(op: &Op) -> String {
    let kind = |place: usize| match op {
        Op::InputDist { .. } | Op::EmbeddingForward { .. } => "long int",
        Op::EmbeddingBackward { .. } if place == 0 => "long int",
        Op::Gemm { precision: Precision::Bf16, .. } => "c10::BFloat16",
        _ => "float",
    };
    let one = |(place, dims): (usize, Vec<usize>)| {
        let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
        format!("{} {}", dims.join("x"), kind(place))
    };
    op.shapes().into_iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
}
