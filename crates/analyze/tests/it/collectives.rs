//! Checks the matched collectives of real traces. The expected values come from an independent
//! matching of an 8-rank DLRM job.

use analyze::classify::ClassRule;
use analyze::collectives::{self, Collectives};
use analyze::{Classifier, Scope, WindowRule};
use serde_json::Value;
use trace::store::Job;

use crate::fixture;

/// Returns the scopes of a job, each with everything recorded as its window.
pub fn scopes(job: &Job) -> Vec<Scope<'_>> {
    let classifier = Classifier::new(ClassRule::Category);
    job.traces.iter().map(|trace| Scope::new(trace, WindowRule::All, &classifier)).collect()
}

fn dlrm8() -> Option<(Collectives, Value)> {
    let job = fixture::job("dlrm8/dlrm_kineto.tar.gz")?;
    let truth = fixture::text("hta_truth/dlrm8.collectives.exact.json")?;
    Some((
        collectives::match_collectives(&scopes(&job)),
        serde_json::from_str(&truth).expect("JSON"),
    ))
}

/// Converts microseconds of the expected values to nanoseconds.
fn ns(us: &Value) -> i64 {
    us.as_i64().expect("whole microseconds") * 1000
}

#[test]
fn dlrm8_collectives_equal_the_truth_in_full() {
    let Some((found, truth)) = dlrm8() else { return };
    let expected = truth["collectives"].as_array().expect("a list");
    assert_eq!(found.matched.len(), expected.len());
    assert_eq!(found.unmatched, []);
    for (one, truth) in found.matched.iter().zip(expected) {
        assert_eq!(u64::from(one.index), truth["index"].as_u64().expect("index"));
        assert_eq!(one.name, truth["name"].as_str().expect("name"));
        assert_eq!(one.last_rank.map(u64::from), truth["last_arriver"].as_u64());
        assert_eq!(one.late_by_ns, ns(&truth["late_by_vs_2nd_last_us"]));
        assert_eq!(one.arrival_spread_ns, ns(&truth["arrival_spread_us"]));
        assert_eq!(one.end_spread_ns, ns(&truth["end_spread_us"]));
        assert_eq!(one.transfer_ns, ns(&truth["transfer_us_min_dur"]));
        assert!(one.end_spread_ns <= 7000);
        assert_eq!(one.participants.len(), 8);
        for rank in &one.participants {
            let of = |key: &str| ns(&truth[key][rank.rank.to_string()]);
            assert_eq!(rank.arrival_ns, of("start_us"));
            assert_eq!(rank.end_ns - rank.arrival_ns, of("dur_us"));
            assert_eq!(rank.wait_ns, of("wait_us"));
        }
    }
    let waits = truth["total_wait_us_by_rank"].as_object().expect("by rank");
    for (rank, total) in waits {
        let rows = found.rows();
        let of_rank = rows.iter().filter(|row| row.rank.to_string() == *rank);
        assert_eq!(of_rank.map(|row| row.wait_ns).sum::<i64>(), ns(total));
    }
}

#[test]
fn one_rank_of_nccl_lists_its_all_reduces_with_their_bytes() {
    let Some(job) = fixture::job("nccl/nccl_data.json.gz") else { return };
    let found = collectives::match_collectives(&scopes(&job));
    assert_eq!(found.unmatched, []);
    let one = found.matched.iter().find(|one| one.bytes == Some(6_637_568 * 4)).expect("it");
    assert_eq!((one.group_size, one.ranks_seen, one.last_rank), (2, 1, None));
    assert_eq!(one.group, "0");
    assert!(one.bus_bandwidth_gb_per_s.is_some());
}
