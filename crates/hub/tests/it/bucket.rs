//! Copies of files on a real S3 server (moto), and answers from them.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fleet::proto::EntryBatch;
use hub::batch;
use hub::bucket::BucketConfig;
use hub::config::Pools;
use hub::rollup;
use hub::store::copies::{copy_files, limit_cache, restore};
use hub::store::ingest::RowStore;
use hub::store::{Partition, StoreFolder};
use hub::sums::{Dimension, FleetSums};
use hub::tokens::{TokenGrant, TokenRole};
use prost::Message;
use testkit::{Folder, skip};

use crate::fixture::{gpu_batch, hour_before};
use crate::outward::{Peer, python, wait_until};

const KEYS: [&str; 2] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];

/// The files below a folder, by their path within it.
fn files(root: &Path, folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = vec![root.join(folder)];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(root).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}

fn append(rows: &mut RowStore, batch: &EntryBatch) -> u64 {
    let grant = TokenGrant::new(TokenRole::Agent, "*");
    let batch = batch::decode(&batch.encode_to_vec(), &grant).unwrap();
    rows.append(batch.entries).unwrap().stored
}

fn sums(folder: &StoreFolder) -> BTreeMap<String, FleetSums> {
    let all = 0..u64::MAX / 2;
    rollup::query_groups(folder, &Pools::default(), all, Dimension::Host).unwrap()
}

#[test]
fn old_hours_live_in_the_bucket_and_are_answered_merged_and_restored_from_it() {
    let what = "copies on an S3 server";
    let Some(python) = python(what) else { return };
    if KEYS.iter().any(|key| std::env::var_os(key).is_none()) {
        skip(what, "AWS_ACCESS_KEY_ID, as `cargo xtask ci --full` sets it");
        return;
    }
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut server = Command::new(python);
    server.args(["-m", "moto.server", "-H", "127.0.0.1", "-p"]).arg(address.port().to_string());
    let _server = Peer(server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let endpoint = format!("http://{address}");
    wait_until("moto", || ureq::put(format!("{endpoint}/fleet")).send_empty().is_ok());
    let text =
        format!("name = 'fleet'\nprefix = 'a/b'\nendpoint = '{endpoint}'\nkeep_local = '1d'");
    let config: BucketConfig = toml::from_str(&text).unwrap();
    let root = Folder::new();
    let store = root.path("store");
    let open = || Arc::new(StoreFolder::open(&store).unwrap().with_bucket(Some(&config)).unwrap());

    let folder = open();
    let mut rows = RowStore::new(Arc::clone(&folder));
    let (old, new) = (hour_before(72), hour_before(5));
    let first = gpu_batch(1, 1, (0..100).map(|at| old + at * 10));
    assert_eq!(append(&mut rows, &first), 100);
    assert_eq!(append(&mut rows, &gpu_batch(1, 101, (100..200).map(|at| old + at * 10))), 100);
    assert_eq!(append(&mut rows, &gpu_batch(2, 1, (0..50).map(|at| new + at * 10))), 50);
    let later = SystemTime::now() + Duration::from_secs(3600);
    rollup::maintain(&folder, &Pools::default(), later).unwrap();
    let before = sums(&folder);
    // Rows of two hours, and their four files of sums each.
    assert_eq!(copy_files(&folder, &config, later).unwrap(), 10);
    assert_eq!(copy_files(&folder, &config, later).unwrap(), 0);
    let local = files(&store, "gpu");
    let is_old = |path: &&String| path.contains("0000000000-0000000001.parquet");
    assert_eq!(local.iter().filter(is_old).count(), 1, "only its mark: {local:?}");
    assert_eq!(local.len(), 3, "{local:?}");
    assert_eq!(count_rows(&folder), 250);
    assert_eq!(files(&store, "cache").len(), 1);
    assert_eq!(sums(&folder), before);

    // Entries of the old hour are known, and later ones are merged with the copy.
    let mut rows = RowStore::new(Arc::clone(&folder));
    assert_eq!(append(&mut rows, &first), 0);
    assert_eq!(append(&mut rows, &gpu_batch(1, 201, (200..210).map(|at| old + at * 10))), 10);
    rollup::maintain(&folder, &Pools::default(), later).unwrap();
    assert!(copy_files(&folder, &config, later).unwrap() >= 1);
    let keys = folder.bucket().unwrap().list().unwrap();
    let of_rows: Vec<_> = keys.iter().filter(|key| key.starts_with("gpu/")).collect();
    assert_eq!(of_rows.len(), 2, "the replaced object is deleted: {keys:?}");
    assert!(of_rows.iter().any(|key| key.ends_with("/0000000000-0000000002.parquet")), "{keys:?}");
    assert_eq!(count_rows(&folder), 260);
    limit_cache(&folder, 0).unwrap();
    assert_eq!(files(&store, "cache").len(), 0);
    let before = sums(&folder);

    // The local disk is lost.
    drop((rows, folder));
    std::fs::remove_dir_all(&store).unwrap();
    let folder = open();
    assert_eq!(sums(&folder), BTreeMap::new());
    assert_eq!(restore(&folder).unwrap(), keys.len() as u64);
    assert_eq!(sums(&folder), before);
    assert_eq!(count_rows(&folder), 260);

    // Without a bucket, the error names what is missing.
    let plain = StoreFolder::open_for_reading(&store).unwrap();
    let error = rollup::query_groups(&plain, &Pools::default(), 0..u64::MAX / 2, Dimension::Host);
    assert!(error.unwrap_err().to_string().contains("a section [bucket]"));
}

/// Counts the rows of GPUs, each of which must be stored once.
fn count_rows(folder: &StoreFolder) -> u64 {
    let mut count = 0;
    for hour in folder.hours("gpu").unwrap().into_iter().map(Some) {
        let partition = Partition { hour, table: "gpu" };
        let read = folder.read(partition, &["sequence"], |batch, _| {
            count += batch.num_rows() as u64;
            Ok(())
        });
        read.unwrap();
    }
    count
}
