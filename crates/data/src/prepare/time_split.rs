//! Splits rows by time, so that training rows come before held-out ones. The inputs are read once
//! for each side.

use crate::error::Error;
use crate::parse::integer_columns::IntegerColumns;
use crate::parse::parsed_columns::ParsedColumns;
use crate::parse::parsed_row::ParsedRow;
use crate::parse::row_sink::RowSink;
use crate::prepare::fit::CategoricalCheck;

/// Side of a split by time: training rows or held-out rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitSide {
    /// Rows before the cut and rows without a time.
    Training,
    HeldOut,
}

/// Selects the rows on one side of a cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TimeSide {
    pub cut: f64,
    pub side: SplitSide,
}

impl TimeSide {
    fn has(self, time: f64) -> bool {
        let side = if time >= self.cut { SplitSide::HeldOut } else { SplitSide::Training };
        side == self.side
    }
}

/// A sink that passes on only the rows of one side, or all rows if there is no split.
pub(crate) struct SideFilter<'a, A> {
    pub inner: A,
    part: Option<TimeSide>,
    categorical: &'a CategoricalCheck,
}

impl<'a, A> SideFilter<'a, A> {
    pub(crate) fn new(inner: A, part: Option<TimeSide>, categorical: &'a CategoricalCheck) -> Self {
        Self { inner, part, categorical }
    }
}

impl<A: RowSink> RowSink for SideFilter<'_, A> {
    fn accept_row(&mut self, row: &ParsedRow) -> Result<(), String> {
        match self.part {
            // Rows of the other side are checked, too, so that both passes find the same malformed
            // rows.
            Some(part) if !part.has(row.time) => self.categorical.check(row),
            _ => self.inner.accept_row(row),
        }
    }

    fn accept_columns(&mut self, given: &ParsedColumns<'_>) -> bool {
        self.part.is_none() && self.inner.accept_columns(given)
    }

    fn accept_integers(&mut self, columns: &mut IntegerColumns) {
        // Integer columns never have a time, so no side was selected.
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

/// Finds the cut that holds out about a share `hold_out` of the rows. Rows of the same time stay
/// together, and both sides have rows.
///
/// # Errors
/// Returns [`Error::Config`] if all rows have the same time, or no row has a time.
pub(crate) fn find_cut(mut times: Vec<f64>, hold_out: f64) -> Result<f64, Error> {
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
    use super::find_cut;

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
