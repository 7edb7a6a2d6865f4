//! Predicts a step at another size, such as another batch size, from steps that were recorded at
//! two sizes.
//!
//! One recording does not show which sizes depend on the batch: in a network with layers of 512, a
//! batch of 512 looks the same. Two recordings show it, because the sizes that differ between them
//! grow linearly with the batch.

use super::position::EditPosition;
use crate::Error;
use crate::program::{Action, Program, Rank, Segment, Work};

/// A program and the size at which it was recorded.
#[derive(Clone, Copy, Debug)]
pub struct Sized<'a> {
    pub program: &'a Program,
    pub size: u64,
}

/// Interpolates a program at another size. Each number in the sizes of its operators lies on the
/// line through the two recorded numbers. Launch shapes that differ between the recordings are left
/// out.
///
/// # Errors
/// [`Error::Edit`] if the recordings do not contain the same operators in the same order, or if all
/// of their tensor sizes are equal. The same error is returned for a size of 0, for equal sizes,
/// and for results that would be negative or overflow.
pub fn between(small: Sized<'_>, large: Sized<'_>, to: u64) -> Result<Program, Error> {
    let position = EditPosition { number: 1, kind: "resize" };
    if to == 0 || small.size == 0 || large.size == 0 {
        return Err(position.error("sizes from 1 on", 0));
    }
    if small.size == large.size {
        return Err(position.error("two different recorded sizes", small.size));
    }
    let line = Interpolation {
        position,
        share: (to as f64 - small.size as f64) / (large.size as f64 - small.size as f64),
    };
    let mut program = small.program.clone();
    if small.program.ranks.len() != large.program.ranks.len() {
        return Err(differ(position, "the number of ranks", &small, &large, |of| of.ranks.len()));
    }
    for at in 0..program.ranks.len() {
        let mut rank = program.ranks[at].clone();
        line.rank(&mut program, &mut rank, large.program, &large.program.ranks[at])?;
        program.ranks[at] = rank;
    }
    let both = program.collectives.iter_mut().zip(&large.program.collectives);
    for (one, other) in both {
        one.bytes = line.number(one.bytes, other.bytes)?;
    }
    if sizes(small.program) == sizes(large.program) {
        let got = "equal or missing tensor sizes in both: record with record_shapes";
        return Err(position.error("recordings of two sizes", got));
    }
    Ok(program)
}

/// Lists the tensor sizes of all actions and works of a program, in order.
fn sizes(program: &Program) -> Vec<&str> {
    let action_detail = |action: &Action| match action {
        Action::Host(segment) => Some(segment.detail),
        Action::Call(call) => Some(call.cost.detail),
        _ => None,
    };
    let rank_details = |rank: &Rank| {
        let actions = rank.threads.iter().flat_map(|thread| &thread.actions);
        let works = rank.works.iter().map(|work| work.detail);
        actions.filter_map(action_detail).chain(works).collect::<Vec<_>>()
    };
    program.ranks.iter().flat_map(rank_details).map(|detail| program.text(detail)).collect()
}

fn differ(
    position: EditPosition,
    what: &str,
    small: &Sized<'_>,
    large: &Sized<'_>,
    of: fn(&Program) -> usize,
) -> Error {
    let (small, large) = (of(small.program), of(large.program));
    position
        .error(&format!("{what} to be the same in both recordings"), format!("{small} and {large}"))
}

/// A linear interpolation between two recordings of the same workload at different sizes.
#[derive(Clone, Copy)]
struct Interpolation {
    position: EditPosition,
    /// Position of the target size: 0 at the small recording, 1 at the large one.
    share: f64,
}

impl Interpolation {
    fn rank(
        self,
        program: &mut Program,
        rank: &mut Rank,
        other_program: &Program,
        other: &Rank,
    ) -> Result<(), Error> {
        let expected = "the same actions in both recordings";
        let counts = |rank: &Rank| {
            let actions: usize = rank.threads.iter().map(|thread| thread.actions.len()).sum();
            format!("{} threads, {actions} actions, {} works", rank.threads.len(), rank.works.len())
        };
        if counts(rank) != counts(other) {
            let got = format!("{} and {}", counts(rank), counts(other));
            return Err(self.position.error(expected, got));
        }
        for (thread, other) in rank.threads.iter_mut().zip(&other.threads) {
            if thread.actions.len() != other.actions.len() {
                return Err(self.position.error(expected, "threads of other lengths"));
            }
            for (action, other) in thread.actions.iter_mut().zip(&other.actions) {
                match (action, other) {
                    (Action::Host(segment), Action::Host(other)) => {
                        self.segment(program, segment, other_program, other)?;
                    }
                    (Action::Call(call), Action::Call(other)) => {
                        self.segment(program, &mut call.cost, other_program, &other.cost)?;
                    }
                    (Action::Begin(mark), Action::Begin(other)) => {
                        let both = (program.text(mark.name), other_program.text(other.name));
                        if both.0 != both.1 {
                            return Err(self.position.error(expected, format!("{both:?}")));
                        }
                    }
                    (one, other) => {
                        if std::mem::discriminant(one) != std::mem::discriminant(other) {
                            return Err(self.position.error(expected, "another order of actions"));
                        }
                    }
                }
            }
        }
        for (work, other) in rank.works.iter_mut().zip(&other.works) {
            self.work(program, work, other_program, other)?;
        }
        Ok(())
    }

    fn segment(
        self,
        program: &mut Program,
        segment: &mut Segment,
        other_program: &Program,
        other: &Segment,
    ) -> Result<(), Error> {
        let names = (program.text(segment.op), other_program.text(other.op));
        if segment.overhead != other.overhead || names.0 != names.1 {
            let expected = "the same operators in both recordings";
            return Err(self.position.error(expected, format!("{} and {}", names.0, names.1)));
        }
        let details = (program.text(segment.detail), other_program.text(other.detail));
        let text = self.text(details.0, details.1)?;
        segment.detail = program.names.intern(&text);
        Ok(())
    }

    fn work(
        self,
        program: &mut Program,
        work: &mut Work,
        other_program: &Program,
        other: &Work,
    ) -> Result<(), Error> {
        let details = (program.text(work.detail), other_program.text(other.detail));
        let text = if work.shape == other.shape {
            self.text(details.0, details.1)?
        } else {
            // The grid of a kernel does not grow linearly with the batch, so it is removed from the
            // sizes.
            let sizes = |text: &str| text.split("; ").next().unwrap_or_default().to_owned();
            work.shape = None;
            self.text(&sizes(details.0), &sizes(details.1))?
        };
        work.detail = program.names.intern(&text);
        work.bytes = match (work.bytes, other.bytes) {
            (Some(one), Some(other)) => Some(self.number(one, other)?),
            _ => None,
        };
        Ok(())
    }

    /// Interpolates every number in a text. The texts of the two recordings must be equal apart
    /// from their numbers.
    fn text(self, small: &str, large: &str) -> Result<String, Error> {
        let (small_parts, large_parts) = (parts(small), parts(large));
        let alike = small_parts.len() == large_parts.len()
            && small_parts.iter().zip(&large_parts).all(|(a, b)| match (a.parse(), b.parse()) {
                (Ok::<u64, _>(_), Ok::<u64, _>(_)) => true,
                _ => a == b,
            });
        if !alike {
            let got = format!("{small:?} and {large:?}");
            return Err(self.position.error("sizes of the same form in both recordings", got));
        }
        let mut text = String::new();
        for (small, large) in small_parts.iter().zip(&large_parts) {
            match (small.parse(), large.parse()) {
                (Ok(small), Ok(large)) => text.push_str(&self.number(small, large)?.to_string()),
                _ => text.push_str(small),
            }
        }
        Ok(text)
    }

    fn number(self, small: u64, large: u64) -> Result<u64, Error> {
        if small == large {
            return Ok(small);
        }
        let value = small as f64 + (large as f64 - small as f64) * self.share;
        let is_usable = (0.0..=9e15).contains(&value);
        if is_usable {
            return Ok(value.round() as u64);
        }
        let got = format!("{value} from {small} and {large}");
        Err(self.position.error("sizes from 0 to 9e15", got))
    }
}

/// Splits a text at each boundary between digits and other characters.
fn parts(text: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut was_digit = None;
    for letter in text.chars() {
        let is_digit = Some(letter.is_ascii_digit());
        match parts.last_mut().filter(|_| was_digit == is_digit) {
            Some(part) => part.push(letter),
            None => parts.push(letter.to_string()),
        }
        was_digit = is_digit;
    }
    parts
}
