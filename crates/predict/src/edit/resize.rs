//! Predicts a step at another size, such as another batch size, from steps that were recorded at
//! two sizes.
//!
//! Both recordings contain the same parts in the same order. The time of each part lies on the line
//! through its two recorded times. The line is over the work of the part: the multiplications of
//! products and convolutions, and the elements of all tensors for other operators. Each number in
//! the tensor sizes is interpolated first. One recording would not suffice, because it does not
//! show which sizes depend on the batch: in a network with layers of 512, a batch of 512 looks the
//! same.

use super::position::EditPosition;
use crate::Error;
use crate::calibration::Calibration;
use crate::calibration::price::Prices;
use crate::cost::{Cost, Costs, RankCosts, Source};
use crate::program::{Action, Program, Rank};
use crate::recording::Step;
use crate::tensor_work::{tensors, work};

/// A recorded step, the number that differs between the recordings, and the calibration of all
/// steps that were recorded at this size.
#[derive(Clone, Debug)]
pub struct SizedStep {
    pub size: u64,
    pub step: Step,
    pub calibration: Calibration,
}

/// A program at another size, with its costs.
#[derive(Clone, Debug)]
pub struct Resized {
    pub program: Program,
    pub costs: Costs,
    /// Samples of both recordings.
    pub calibration: Calibration,
}

/// Interpolates the costs of a step at the size `to`. The program has the tensor sizes of `small`.
///
/// # Errors
/// [`Error::Edit`] if the recordings do not contain the same operators in the same order, or if all
/// of their tensor sizes are equal. The same error is returned for a size of 0, for equal sizes,
/// and for tensor sizes that would be negative or overflow.
pub fn resize(small: &SizedStep, large: &SizedStep, to: u64) -> Result<Resized, Error> {
    let position = EditPosition { number: 0, kind: "resize" };
    if to == 0 || small.size == 0 || large.size == 0 {
        return Err(position.error("sizes from 1 on", 0));
    }
    if small.size == large.size {
        return Err(position.error("two different recorded sizes", small.size));
    }
    let (one, other) = (&small.step.program, &large.step.program);
    if one.ranks.len() != other.ranks.len() {
        let got = format!("{} and {}", one.ranks.len(), other.ranks.len());
        return Err(position.error("the same number of ranks in both recordings", got));
    }
    let sizes = [small.size as f64, to as f64, large.size as f64];
    let line = Line { position, sizes };
    let setting = small.step.recorded.setting(one);
    let price =
        |sized: &SizedStep| Prices::new(&sized.calibration).price(&sized.step.program, &setting);
    let (mut costs, large_costs) = (price(small), price(large));
    let mut has_sizes = false;
    for (at, costs) in costs.ranks.iter_mut().enumerate() {
        let programs = [one, other].map(|program| (program, &program.ranks[at]));
        has_sizes |= line.rank(programs, costs, &large_costs.ranks[at])?;
    }
    if let (true, Some([from, until])) = (has_sizes, contradiction([one, other], line)) {
        let expected = format!("tensor sizes that grow from {} to {}", small.size, large.size);
        return Err(position.error(&expected, format!("sizes that grow from {from} to {until}")));
    }
    if !has_sizes {
        let got = "equal or missing tensor sizes in both: record with record_shapes";
        return Err(position.error("recordings of two sizes", got));
    }
    let mut program = one.clone();
    for (one, other) in program.collectives.iter_mut().zip(&other.collectives) {
        one.bytes = line.number(one.bytes as f64, other.bytes as f64)?.round() as u64;
    }
    let mut calibration = small.calibration.clone();
    calibration.merge(large.calibration.clone());
    costs.constants = Prices::new(&calibration).price(&program, &setting).constants;
    Ok(Resized { program, costs, calibration })
}

/// A line through two recordings of the same workload at different sizes.
#[derive(Clone, Copy)]
struct Line {
    position: EditPosition,
    /// The small size, the target size and the large size of the step.
    sizes: [f64; 3],
}

impl Line {
    /// Interpolates the costs of a rank in place, and returns whether any tensor sizes differ.
    fn rank(
        self,
        programs: [(&Program, &Rank); 2],
        costs: &mut RankCosts,
        large: &RankCosts,
    ) -> Result<bool, Error> {
        let [(one, small_rank), (other, large_rank)] = programs;
        let expected = "the same actions in both recordings";
        let lengths = |rank: &Rank| {
            let threads = rank.threads.iter().map(|thread| thread.actions.len());
            (threads.collect::<Vec<_>>(), rank.works.len())
        };
        if lengths(small_rank) != lengths(large_rank) {
            let count = |rank: &Rank| {
                let (actions, works) = lengths(rank);
                format!("{actions:?} actions by thread, {works} works")
            };
            let got = format!("{} and {}", count(small_rank), count(large_rank));
            return Err(self.position.error(expected, got));
        }
        let mut has_sizes = false;
        let threads = small_rank.threads.iter().zip(&large_rank.threads);
        for (at, (thread, large_thread)) in threads.enumerate() {
            for (place, action) in thread.actions.iter().enumerate() {
                let parts = [
                    PartText::from_action(one, action),
                    PartText::from_action(other, &large_thread.actions[place]),
                ];
                if parts[0].name != parts[1].name || parts[0].kind != parts[1].kind {
                    let got = format!("{} and {}", parts[0].name, parts[1].name);
                    return Err(self.position.error(expected, got));
                }
                let cost = &mut costs.actions[at][place];
                has_sizes |= self.cost(parts, cost, large.actions[at][place])?;
            }
        }
        for (at, work) in small_rank.works.iter().enumerate() {
            let text = |program, work: &crate::program::Work| PartText {
                kind: "work",
                name: Program::text(program, work.name),
                detail: Program::text(program, work.detail).split("; ").next().unwrap_or_default(),
            };
            let parts = [text(one, work), text(other, &large_rank.works[at])];
            has_sizes |= self.cost(parts, &mut costs.works[at], large.works[at])?;
        }
        Ok(has_sizes)
    }

    /// Interpolates a cost in place, and returns whether the tensor sizes of the part differ.
    fn cost(self, parts: [PartText<'_>; 2], cost: &mut Cost, large: Cost) -> Result<bool, Error> {
        let [one, other] = parts;
        let has_sizes = one.detail != other.detail && one.kind != "between operators";
        let mut works = self.sizes;
        if has_sizes {
            works = self.works(one.name, one.detail, other.detail)?;
        }
        if works[0] == works[2] {
            works = self.sizes;
        }
        let share = share_of(works);
        let (from, until) = (cost.ns as f64, large.ns as f64);
        let mut ns = from + (until - from) * share;
        if !(0.0..=1.0).contains(&share) {
            // Noise in two recordings near each other must not become large far away from both.
            let (near, near_work) = if share < 0.0 { (from, works[0]) } else { (until, works[2]) };
            let growth = works[1] / near_work.max(1.0);
            ns = ns.clamp(near * growth.min(1.0), near * growth.max(1.0));
        }
        cost.ns = ns.clamp(0.0, 9e15).round() as i64;
        let is_recorded = self.sizes[1] == self.sizes[0] || self.sizes[1] == self.sizes[2];
        let least_certain = if is_recorded { Source::Measured } else { Source::Modeled };
        cost.source = cost.source.max(large.source).map(|source| source.max(least_certain));
        Ok(has_sizes)
    }

    /// Returns the work of a part at the small size, at the target size and at the large size.
    fn works(self, name: &str, small: &str, large: &str) -> Result<[f64; 3], Error> {
        let both = (tensors(small), tensors(large));
        let is_alike = both.0.len() == both.1.len()
            && both.0.iter().zip(&both.1).all(|(one, other)| one.len() == other.len());
        if !is_alike {
            let got = format!("{small:?} and {large:?}");
            return Err(self.position.error("sizes of the same form in both recordings", got));
        }
        let mut between = both.0.clone();
        for (tensor, large) in between.iter_mut().zip(&both.1) {
            for (size, large) in tensor.iter_mut().zip(large) {
                *size = self.number(*size, *large)?;
            }
        }
        Ok([&both.0, &between, &both.1].map(|tensors| work(name, tensors)))
    }

    fn number(self, small: f64, large: f64) -> Result<f64, Error> {
        let value = small + (large - small) * share_of(self.sizes);
        if small == large || (0.0..=9e15).contains(&value) {
            return Ok(value);
        }
        let got = format!("{value} from {small} and {large}");
        Err(self.position.error("sizes from 0 to 9e15", got))
    }
}

/// Returns the first tensor sizes that differ between two recordings, if none of them grows by the
/// same factor as the sizes of the step.
fn contradiction(programs: [&Program; 2], line: Line) -> Option<[f64; 2]> {
    /// Largest deviation from that factor. Offsets have one entry more than there are bags.
    const ALIKE: f64 = 0.02;
    let actions = programs.map(|program| {
        let threads = program.ranks.iter().flat_map(|rank| &rank.threads);
        threads.flat_map(|thread| &thread.actions)
    });
    let [one, other] = actions;
    let sizes = one.zip(other).flat_map(|(one, other)| {
        let details =
            [PartText::from_action(programs[0], one), PartText::from_action(programs[1], other)];
        let [one, other] = details.map(|part| tensors(part.detail).concat());
        one.into_iter().zip(other).filter(|(one, other)| one != other)
    });
    let [small, _, large] = line.sizes;
    let mut first = None;
    for (one, other) in sizes {
        if (other * small / (one * large) - 1.0).abs() < ALIKE {
            return None;
        }
        first.get_or_insert([one, other]);
    }
    first
}

/// Returns the position of the second value: 0 at the first value, 1 at the third.
fn share_of([small, between, large]: [f64; 3]) -> f64 {
    (between - small) / (large - small)
}

/// Texts of an action or a work, which identify its samples.
#[derive(Clone, Copy)]
struct PartText<'a> {
    kind: &'static str,
    name: &'a str,
    /// Tensor sizes, except between operators.
    detail: &'a str,
}

impl<'a> PartText<'a> {
    fn from_action(program: &'a Program, action: &Action) -> Self {
        let (kind, name, detail) = match action {
            Action::Host(segment) if action.is_gap() => {
                ("between operators", Some(segment.op), None)
            }
            Action::Host(segment) => {
                (segment.overhead.name(), Some(segment.op), Some(segment.detail))
            }
            Action::Call(call) => ("call", Some(call.cost.op), Some(call.cost.detail)),
            Action::Begin(mark) => ("begin", Some(mark.name), None),
            Action::End => ("end", None, None),
            Action::Wait(_) => ("wait", None, None),
            Action::Signal(_) => ("signal", None, None),
            Action::Await { .. } => ("await", None, None),
        };
        let text =
            |text: Option<trace::store::StringId>| text.map_or("", |text| program.text(text));
        Self { kind, name: text(name), detail: text(detail) }
    }
}
