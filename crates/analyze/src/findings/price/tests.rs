use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::job::JobFacts;
use crate::facts::scope::Scope;
use crate::facts::window::WindowRule;
use crate::graph::edit::Action;
use crate::graph::what_if::tests::step;

fn check(edits: &[(&[u32], Action)], saving: i64) {
    let trace = step();
    let classifier = Classifier::new(ClassRule::Category);
    let scopes = [Scope::new(&trace, WindowRule::All, &classifier)];
    let job = JobFacts::new(&scopes);
    let mut pricer = Pricer::new(&job);
    let edits: Vec<RowEdit> =
        edits.iter().map(|(rows, action)| RowEdit::new(0, rows.to_vec(), *action)).collect();
    assert_eq!(pricer.saving(&edits), saving, "{edits:?}");
    // The previous edits must have been undone, so nothing is saved without edits.
    assert_eq!(pricer.saving(&[]), 0);
    assert_eq!(pricer.saving(&edits), saving, "{edits:?}, again");
}

#[test]
fn a_faster_kernel_saves_what_waited_for_it() {
    check(&[(&[4], Action::Scale(0.5))], 20);
    check(&[(&[4], Action::ShortenTo(20))], 20);
    check(&[(&[4], Action::ShortenTo(50))], 0);
    // The second kernel then waits for its own launch instead of the first kernel.
    check(&[(&[4], Action::Overlap)], 21);
}

#[test]
fn a_host_that_does_not_wait_ends_with_the_device() {
    check(&[(&[3], Action::Unblock)], 14);
    check(&[(&[1], Action::Unblock)], 0);
}

#[test]
fn a_gap_that_closes_saves_its_length() {
    check(&[(&[5], Action::CloseGap)], 1);
}

#[test]
fn edits_are_made_together_and_each_row_once() {
    check(&[(&[4], Action::Scale(0.5)), (&[5], Action::Scale(0.5))], 30);
    check(&[(&[4, 4], Action::Scale(0.5))], 20);
}
