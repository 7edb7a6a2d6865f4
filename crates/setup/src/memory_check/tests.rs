//! Tests of the changes that are suggested for runs that do not fit. Each suggestion must fit by
//! the same estimate.

use std::sync::LazyLock;

use schema::{Bytes, HostLayout, ReplicaGroups, Schedule};
use train::memory::WeightSource;

use super::{DataSize, MemoryComparison, RunSize};
use crate::args::Sharding;
use crate::config::{self, ResolvedJob};
use crate::error::{Error, UsageError};
use crate::machine::available_memory::{AvailableMemory, MemoryLimit};
use crate::memory_fix::MemoryFix;
use crate::plan::{FixedPlan, Tiling};

static ONE_RANK: LazyLock<Tiling> = LazyLock::new(|| {
    Tiling::Made(Sharding::Table, HostLayout::on_one_host(1), ReplicaGroups::SINGLE)
});

fn job(name: &str, overrides: &[(&str, String)]) -> ResolvedJob {
    let owned: Vec<_> = overrides.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
    config::job(name, &owned).unwrap()
}

fn run<'a>(job: &'a ResolvedJob, tiling: &'a Tiling) -> RunSize<'a> {
    RunSize {
        job,
        data: DataSize::for_batches(&job.config, 1 << 17, 1),
        tiling,
        threads: 2,
        processes: None,
        traced_steps: 0,
        weights: WeightSource::Initial,
        schedule: Schedule::SERIAL,
    }
}

/// Returns the changes that are suggested for a run with `gib` GiB of free memory, or `None` if it
/// fits.
fn suggested(run: &RunSize<'_>, gib: u64) -> Option<MemoryFix> {
    let available = AvailableMemory { bytes: Bytes(gib << 30), limit: MemoryLimit::Machine };
    let memory = MemoryComparison { available: Some(available), ..run.compare() };
    match run.check(&memory) {
        Ok(()) => None,
        Err(Error::Usage(UsageError::Memory { fix, .. })) => Some(fix),
        Err(other) => panic!("{other}"),
    }
}

fn fits(name: &str, gib: u64, overrides: &[(&str, String)]) -> bool {
    let job = job(name, overrides);
    suggested(&run(&job, &ONE_RANK), gib).is_none()
}

#[test]
fn issue_23_the_suggested_cap_counts_activations() {
    let dcn = job("dlrm-dcnv2", &[]);
    // Tables of 3 million rows take 14 GiB with their optimizer state, and the activations of a
    // batch take as much.
    assert!(!fits("dlrm-dcnv2", 22, &[("rows_cap", "3000000".to_owned())]));
    let Some(MemoryFix::Either { rows_cap: Some(cap), batch_size: None }) =
        suggested(&run(&dcn, &ONE_RANK), 22)
    else {
        panic!("{:?}", suggested(&run(&dcn, &ONE_RANK), 22));
    };
    assert!(fits("dlrm-dcnv2", 22, &[("rows_cap", cap.to_string())]), "{cap}");
    assert!(!fits("dlrm-dcnv2", 22, &[("rows_cap", (cap * 10).to_string())]), "{cap}");
}

#[test]
fn a_smaller_batch_is_suggested_if_it_suffices() {
    let capped = [("rows_cap", "1000".to_owned())];
    let dcn = job("dlrm-dcnv2", &capped);
    let Some(MemoryFix::Either { rows_cap: None, batch_size: Some(size) }) =
        suggested(&run(&dcn, &ONE_RANK), 8)
    else {
        panic!("{:?}", suggested(&run(&dcn, &ONE_RANK), 8));
    };
    let with = |size: usize| [capped[0].clone(), ("batch_size", size.to_string())];
    assert!(fits("dlrm-dcnv2", 8, &with(size)) && !fits("dlrm-dcnv2", 8, &with(2 * size)));
}

#[test]
fn cap_and_batch_are_suggested_together_if_neither_suffices() {
    let dcn = job("dlrm-dcnv2", &[]);
    let Some(MemoryFix::Both { rows_cap, batch_size }) = suggested(&run(&dcn, &ONE_RANK), 4) else {
        panic!("{:?}", suggested(&run(&dcn, &ONE_RANK), 4));
    };
    let both = [("rows_cap", rows_cap.to_string()), ("batch_size", batch_size.to_string())];
    assert!(fits("dlrm-dcnv2", 4, &both), "{both:?}");
}

#[test]
fn changes_that_do_not_fit_are_not_suggested() {
    let dcn = job("dlrm-dcnv2", &[]);
    assert_eq!(suggested(&run(&dcn, &ONE_RANK), 0), Some(MemoryFix::Nothing));
    let resumed = RunSize { weights: WeightSource::Checkpoint, ..run(&dcn, &ONE_RANK) };
    assert_eq!(suggested(&resumed, 22), Some(MemoryFix::Resumed));
    // A plan file or exact ids fix the numbers of rows of the tables, so no cap can be suggested.
    let plan = ONE_RANK.plan(&dcn.config.model.tables);
    let file = Tiling::Fixed(FixedPlan { plan, sharding: None });
    assert_eq!(suggested(&run(&dcn, &file), 22), Some(MemoryFix::Nothing));
    let exact = job("dlrm-dcnv2", &[("data.ids.mode", "exact".to_owned())]);
    assert_eq!(suggested(&run(&exact, &ONE_RANK), 22), Some(MemoryFix::Nothing));
}

#[test]
fn a_thousand_tables_on_seven_ranks_are_estimated_at_once() {
    let job = job(
        "dlrm-1000-tables",
        &[("model.tables", "[{name=\"t{0..999}\",rows=1000000000,dim=16}]".into())],
    );
    let began = std::time::Instant::now();
    let tiling = Tiling::Made(Sharding::Column, HostLayout::on_one_host(7), ReplicaGroups::SINGLE);
    assert!(suggested(&run(&job, &tiling), 16).is_some());
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}

#[test]
fn issue_28_processes_of_a_host_take_a_program_and_a_reader_each() {
    let job = job("dlrm-default", &[]);
    let tiling = Tiling::Made(Sharding::Row, HostLayout::on_one_host(4), ReplicaGroups::SINGLE);
    let total = |processes: Option<Vec<schema::Rank>>| {
        let run = RunSize { processes, ..run(&job, &tiling) };
        run.compare().estimate.total().0
    };
    let ranks = |count: u32| Some((0..count).map(schema::Rank).collect::<Vec<_>>());
    let (threads, one, two, four) =
        (total(None), total(ranks(1)), total(ranks(2)), total(ranks(4)));
    // Four processes together hold the tables once, and need three more programs and readers than
    // threads do.
    assert!(four > threads + ((3 * 22) << 20) && four < 4 * threads, "{four} {threads}");
    // Tables of ranks on other hosts take no memory on this host.
    let part = |bytes: u64, of: u64| bytes as f64 / of as f64;
    assert!((part(one, four) - 0.25).abs() < 0.05, "{one} {four}");
    assert!((part(two, four) - 0.5).abs() < 0.05, "{two} {four}");
}
