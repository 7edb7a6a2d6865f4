//! Other programs compute the sums of the hub from its files, by the commands of `docs/hub-sql.md`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use hub::config::Pools;
use hub::grouping::SumQuery;
use hub::rollup;
use hub::store::StoreFolder;
use hub::sums::{Dimension, FleetSums};
use serde_json::{Value, json};
use testkit::{ProgramOutput, has_program};

use crate::fixture::TestHub;
use crate::outward::{python, script};
use crate::simulate;

fn assert_near(what: &str, got: &Value, expected: &Value) {
    let [got, expected] = [got, expected].map(|value| value.as_f64().unwrap());
    assert!((got - expected).abs() <= 1e-9 * expected.abs(), "{what}: {got} {expected}");
}

#[test]
fn duckdb_clickhouse_and_spark_compute_the_same_band_from_the_files() {
    let what = "the band in DuckDB, ClickHouse and Spark";
    let Some(python) = python(what) else { return };
    if !has_program("java", what) {
        return;
    }
    let hub = TestHub::start("commit_ms = 20");
    assert!(simulate::start(&hub, ["24", "60", "6h"]).wait().unwrap().success());
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/hub-sql.md");
    let mut command = Command::new(python);
    command.arg(script("hub_sankey.py")).arg(page).arg(hub.folder.path("store"));
    command.args(["duckdb", "clickhouse", "spark"]);
    let results = ProgramOutput::collect(&mut command).expect_code(0, "hub_sankey.py").json();
    // Rows of the host whose clock is ahead lie after the current time.
    let folder = StoreFolder::open_for_reading(&hub.folder.path("store")).unwrap();
    let query = SumQuery { range: 0..u64::MAX / 2, ..SumQuery::group(&[Dimension::User], None) };
    let groups = rollup::query(&folder, &Pools::default(), &query).unwrap().sums;
    let mut total = FleetSums::default();
    groups.values().for_each(|sums| total.merge(sums));
    let users: BTreeMap<&str, &FleetSums> =
        groups.iter().map(|((_, key), sums)| (key.member(Dimension::User), sums)).collect();
    let (total, sums) = (json!(total), json!(users));
    for (engine, result) in results.as_object().unwrap() {
        for (name, value) in result["sankey"].as_object().unwrap() {
            assert_near(&format!("{engine} {name}"), value, &total[name]);
        }
        assert_eq!(result["sankey"].as_object().unwrap().len(), 9);
        let users = result["users"].as_array().unwrap();
        assert!(users.len() > 2, "{users:?}");
        for user in users {
            let name = user["user"].as_str().unwrap();
            let hours = sums[name]["allocated_s"].as_f64().unwrap() / 3600.0;
            assert_near(&format!("{engine} {name}"), &user["gpu_hours"], &hours.into());
        }
    }
}
