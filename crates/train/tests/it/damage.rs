//! Flips bits in prepared data, `dataset.json` and checkpoints.
//!
//! No damaged file may lead to a run with other weights, or to other results from a checkpoint.
//! `ROWMILL_CORRUPTION=full` flips a thousand bits, and `cargo xtask ci --full` sets it. Exported
//! state dicts are not damaged, because safetensors has no checksum.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data::Dataset;
use device::Cpu;
use schema::ShardingPlan;
use schema::random::CounterRng;
use train::checkpoint::Checkpoint;
use train::state_dict::{self, Dialect};
use train::{Error, RunRequest, Scorer, Start};

use crate::run;

const EVERYDAY: u64 = 100;
const FULL: u64 = 1000;

/// Number of cases by outcome.
#[derive(Debug, Default)]
struct Tally {
    refused: u64,
    /// Number of cases with the same bytes as without damage.
    harmless: u64,
    wrong: Vec<String>,
}

impl Tally {
    fn count<T: PartialEq>(
        &mut self,
        what: &str,
        expected: &T,
        got: impl FnOnce() -> Result<T, Error>,
    ) {
        match catch_unwind(AssertUnwindSafe(got)) {
            Ok(Err(_)) => self.refused += 1,
            Ok(Ok(got)) if got == *expected => self.harmless += 1,
            Ok(Ok(_)) => self.wrong.push(what.to_owned()),
            Err(_) => self.wrong.push(format!("{what}: a panic")),
        }
    }
}

#[test]
fn no_flipped_bit_changes_loaded_weights() {
    let is_full = std::env::var("ROWMILL_CORRUPTION").is_ok_and(|value| value == "full");
    let cases = if is_full { FULL } else { EVERYDAY };
    let folder = tempfile::tempdir().unwrap();
    let place = Place::new(folder.path());
    let rng = CounterRng::new(23, 1);
    let mut tally = Tally::default();
    for case in 0..cases {
        place.flip(rng.child(case), &mut tally);
    }
    eprintln!("{cases} flips: {} uses refused, {} harmless", tally.refused, tally.harmless);
    assert!(tally.wrong.is_empty(), "{} of {cases}: {:#?}", tally.wrong.len(), tally.wrong);
    assert!(tally.refused > cases / 2, "{tally:?}");
}

/// A prepared dataset, a run on it, and the results computed from its middle checkpoint.
struct Place {
    folder: PathBuf,
    prepared: PathBuf,
    checkpoint: PathBuf,
    weights: Weights,
    resumed: Weights,
    metric: u64,
    exported: Vec<u8>,
    /// Files of the prepared data that the test damages, with their original bytes.
    data: Vec<(PathBuf, Vec<u8>)>,
    saved: Vec<(PathBuf, Vec<u8>)>,
}

/// The tensor files of a checkpoint.
type Weights = Vec<(PathBuf, Vec<u8>)>;

impl Place {
    fn new(folder: &Path) -> Self {
        drop(run::dataset(folder));
        let folder = folder.to_owned();
        let prepared = folder.join("prepared");
        let weights = trained(&folder, &prepared, Start::Fresh).unwrap();
        let checkpoint = train::checkpoint::list(&folder.join("run")).unwrap().swap_remove(0);
        let kept = folder.join("checkpoints/step-000000000006");
        fs::create_dir_all(kept.parent().unwrap()).unwrap();
        fs::rename(checkpoint, &kept).unwrap();
        let resumed = trained(&folder, &prepared, Start::Checkpoint(kept.clone())).unwrap();
        assert!(same(&weights, &resumed));
        let metric = evaluated(&kept, &prepared).unwrap();
        let exported = exported(&folder, &kept).unwrap();
        let (data, saved) = (files(&prepared), files(&kept));
        Self { folder, prepared, checkpoint: kept, weights, resumed, metric, exported, data, saved }
    }

    /// Flips one bit, uses the damaged file in every possible way, and restores it.
    fn flip(&self, rng: CounterRng, tally: &mut Tally) {
        let in_data = rng.below(0, 2) == 0;
        let victims = if in_data { &self.data } else { &self.saved };
        let (path, bytes) = &victims[rng.below(1, victims.len() as u64) as usize];
        let bit = rng.below(2, 8 * bytes.len() as u64) as usize;
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(path, damaged).unwrap();
        let what = format!("bit {bit} of {}", path.strip_prefix(&self.folder).unwrap().display());
        if in_data {
            let train = || trained(&self.folder, &self.prepared, Start::Fresh);
            tally.count(&format!("{what}, trained"), &self.weights, train);
            let evaluate = || evaluated(&self.checkpoint, &self.prepared);
            tally.count(&format!("{what}, evaluated"), &self.metric, evaluate);
        } else {
            let start = Start::Checkpoint(self.checkpoint.clone());
            let resume = || trained(&self.folder, &self.prepared, start);
            tally.count(&format!("{what}, resumed"), &self.resumed, resume);
            let evaluate = || evaluated(&self.checkpoint, &self.prepared);
            tally.count(&format!("{what}, evaluated"), &self.metric, evaluate);
            let export = || exported(&self.folder, &self.checkpoint);
            tally.count(&format!("{what}, exported"), &self.exported, export);
        }
        fs::write(path, bytes).unwrap();
    }
}

/// Trains on the data in `prepared` and returns the tensors of the last checkpoint.
fn trained(folder: &Path, prepared: &Path, start: Start) -> Result<Weights, Error> {
    let run_folder = folder.join("run");
    // Train in an empty folder, so that the result does not include older checkpoints.
    drop(fs::remove_dir_all(&run_folder));
    let dataset = Arc::new(Dataset::open(prepared)?);
    let plan = ShardingPlan::mixed(&run::config().model.tables, 2);
    let mut request: RunRequest = run::request(&run_folder, &dataset, plan);
    request.config.training.epochs = 1;
    request.start = start;
    let outcome = train::run(&request, Cpu::open, &mut |_| {})?;
    let mut weights = files(&outcome.checkpoint.unwrap());
    weights.retain(|(path, _)| path.extension().is_some_and(|end| end == "safetensors"));
    Ok(weights)
}

fn same(a: &Weights, b: &Weights) -> bool {
    let bytes = |weights: &Weights| -> Vec<Vec<u8>> {
        weights.iter().map(|(_, bytes)| bytes.clone()).collect()
    };
    bytes(a) == bytes(b)
}

fn evaluated(checkpoint: &Path, prepared: &Path) -> Result<u64, Error> {
    let dataset = Dataset::open(prepared)?;
    let (_, held_out) = dataset.split(0.2);
    let mut scorer = Scorer::load(checkpoint, Cpu::new(1))?;
    Ok(scorer.evaluate(&dataset, held_out, &mut |_, _| {})?.loss.to_bits())
}

fn exported(folder: &Path, checkpoint: &Path) -> Result<Vec<u8>, Error> {
    let out = folder.join("exported.safetensors");
    state_dict::export(&Checkpoint::open(checkpoint)?, Dialect::Torchrec, &out)?;
    Ok(fs::read(out).unwrap())
}

fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    files.sort();
    files
}

/// Replaces tensor files by those of another run, which have the same names, lengths and headers.
#[test]
fn a_tensor_file_of_another_run_is_refused() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folders = [one.path(), other.path()];
    let [one, other] = folders.map(|folder| {
        drop(run::dataset(folder));
        trained(folder, &folder.join("prepared"), Start::Fresh).unwrap();
        train::checkpoint::list(&folder.join("run")).unwrap()
    });
    // Copy the files of an earlier checkpoint of an identical run.
    for (path, _) in files(&other[0]) {
        let name = path.file_name().unwrap();
        let target = one.last().unwrap().join(name);
        let whole = fs::read(&target).unwrap();
        fs::write(&target, fs::read(&path).unwrap()).unwrap();
        let folder = one.last().unwrap();
        let loaded = Checkpoint::open(folder).map(|checkpoint| checkpoint.verify());
        let is_manifest = path.extension().is_some_and(|end| end == "json");
        match loaded {
            Ok(damage) => assert!(!damage.is_empty(), "{} {is_manifest}", path.display()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        fs::write(&target, whole).unwrap();
    }
}
