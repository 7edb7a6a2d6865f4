//! Splits rows by time into training, validation and test rows, in this order. The inputs are read
//! once for each part.

use schema::source::HoldOut;

use crate::error::Error;
use crate::parse::integer_columns::IntegerColumns;
use crate::parse::parsed_columns::ParsedColumns;
use crate::parse::parsed_row::ParsedRow;
use crate::parse::row_sink::RowSink;
use crate::prepare::fit::CategoricalCheck;

/// A part of a split by time: the rows from one time on, until just before another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TimePart {
    /// Negative infinity for the training rows, which include rows without a time.
    from: f64,
    until: f64,
}

impl TimePart {
    /// Lists the parts between ascending `cuts`. The first part has the training rows.
    pub(crate) fn between(cuts: &[f64]) -> Vec<Self> {
        let from = std::iter::once(f64::NEG_INFINITY).chain(cuts.iter().copied());
        let until = cuts.iter().copied().chain([f64::INFINITY]);
        from.zip(until).map(|(from, until)| Self { from, until }).collect()
    }

    fn has(self, time: f64) -> bool {
        let is_training = self.from == f64::NEG_INFINITY;
        let is_last = self.until == f64::INFINITY;
        // A comparison with NaN, which is the time of a row without one, is false.
        is_training && time.is_nan() || time >= self.from && (time < self.until || is_last)
    }
}

/// A sink that passes on only the rows of one part, or all rows if there is no split.
pub(crate) struct PartFilter<'a, A> {
    pub inner: A,
    part: Option<TimePart>,
    categorical: &'a CategoricalCheck,
}

impl<'a, A> PartFilter<'a, A> {
    pub(crate) fn new(inner: A, part: Option<TimePart>, categorical: &'a CategoricalCheck) -> Self {
        Self { inner, part, categorical }
    }
}

impl<A: RowSink> RowSink for PartFilter<'_, A> {
    fn accept_row(&mut self, row: &ParsedRow) -> Result<(), String> {
        match self.part {
            // Rows of other parts are checked, too, so that all passes find the same malformed
            // rows.
            Some(part) if !part.has(row.time) => self.categorical.check(row),
            _ => self.inner.accept_row(row),
        }
    }

    fn accept_columns(&mut self, given: &ParsedColumns<'_>) -> bool {
        self.part.is_none() && self.inner.accept_columns(given)
    }

    fn accept_integers(&mut self, columns: &mut IntegerColumns) {
        // Integer columns never have a time, so no part was selected.
        self.inner.accept_integers(columns);
    }
}

/// A sink that collects the times of all rows.
pub(crate) struct TimeCollector<'a> {
    pub times: Vec<f64>,
    categorical: &'a CategoricalCheck,
}

impl<'a> TimeCollector<'a> {
    pub(crate) fn new(categorical: &'a CategoricalCheck) -> Self {
        Self { times: Vec::new(), categorical }
    }
}

impl RowSink for TimeCollector<'_> {
    fn accept_row(&mut self, row: &ParsedRow) -> Result<(), String> {
        self.categorical.check(row)?;
        self.times.push(row.time);
        Ok(())
    }
}

/// Finds the times at which the rows are cut: where the rows for validation begin, if `validation`
/// is above 0, and where those for the test begin, if `test` is above 0.
///
/// # Errors
/// Returns [`Error::Config`] if a part would be empty because rows have the same time.
pub(crate) fn find_cuts(times: Vec<f64>, shares: HoldOut) -> Result<Vec<f64>, Error> {
    let HoldOut { validation, test } = shares;
    if validation == 0.0 || test == 0.0 {
        return Ok(vec![find_cut(times, shares.total())?]);
    }
    let all = times.len() as f64;
    let test_cut = find_cut(times.clone(), test)?;
    let earlier: Vec<f64> = times.into_iter().filter(|&time| time < test_cut).collect();
    let share = all * validation / earlier.len().max(1) as f64;
    Ok(vec![find_cut(earlier, share)?, test_cut])
}

/// Finds the cut that holds out about a share `hold_out` of the rows. Rows of the same time stay
/// together, and both sides have rows.
///
/// # Errors
/// Returns [`Error::Config`] if all rows have the same time, or no row has a time.
fn find_cut(mut times: Vec<f64>, hold_out: f64) -> Result<f64, Error> {
    let wanted = ((times.len() as f64 * hold_out).round() as usize).max(1);
    times.retain(|time| !time.is_nan());
    times.sort_unstable_by(f64::total_cmp);
    let (Some(&first), Some(&last)) = (times.first(), times.last()) else {
        let problem = "expected times, got a column of missing values".to_owned();
        return Err(Error::Config { key: "data.hold_out_by", problem });
    };
    if first == last {
        let problem = "expected different times, got the same time in every row".to_owned();
        return Err(Error::Config { key: "data.hold_out_by", problem });
    }
    let at = times[times.len() - wanted.min(times.len())];
    let from = |time: f64| times.len() - times.partition_point(|&other| other < time);
    let next = times[times.partition_point(|&other| other <= at).min(times.len() - 1)];
    // Rows of one time stay together, so the cut with the nearer number of rows is chosen.
    let is_nearer = from(next).abs_diff(wanted) < from(at).abs_diff(wanted);
    Ok(if at == first || is_nearer { next } else { at })
}

#[cfg(test)]
mod tests {
    use schema::source::HoldOut;

    use super::{TimePart, find_cut, find_cuts};

    #[test]
    fn validation_rows_lie_between_training_and_test_rows() {
        let times: Vec<f64> = (0..10).map(f64::from).chain([f64::NAN]).collect();
        let cuts = find_cuts(times, HoldOut { validation: 0.2, test: 0.1 }).unwrap();
        assert_eq!(cuts, [7.0, 9.0]);
        let parts = TimePart::between(&cuts);
        let part_with = |time: f64| parts.iter().position(|part| part.has(time));
        let found = [f64::NAN, -1.0, 6.5, 7.0, 8.9, 9.0, f64::INFINITY].map(part_with);
        assert_eq!(found, [Some(0), Some(0), Some(0), Some(1), Some(1), Some(2), Some(2)]);
        // The same time in all rows before the test leaves nothing to validate on.
        assert!(find_cuts(vec![1.0, 1.0, 2.0], HoldOut { validation: 0.3, test: 0.3 }).is_err());
    }

    #[test]
    fn rows_of_one_time_stay_together_and_no_side_is_empty() {
        let cut = |times: &[f64], share| find_cut(times.to_vec(), share).ok();
        assert_eq!(cut(&[5.0, 1.0, 4.0, 2.0, 3.0], 0.4), Some(4.0));
        assert_eq!(cut(&[1.0, 2.0, 2.0, 2.0, 3.0], 0.4), Some(3.0));
        assert_eq!(cut(&[1.0, 2.0, 2.0, 2.0, 3.0], 0.6), Some(2.0));
        assert_eq!(cut(&[1.0, 2.0], 0.9), Some(2.0));
        assert_eq!(cut(&[f64::NAN, 1.0, 2.0], 0.01), Some(2.0));
        assert_eq!(
            (cut(&[1.0, 1.0], 0.5), cut(&[f64::NAN], 0.5), cut(&[], 0.5)),
            (None, None, None)
        );
    }
}
