//! Tests of the columns that are derived from rows.

use std::collections::BTreeMap;

use expect_test::expect;
use serde::Serialize;

use super::{CellType, Column, ColumnUnit, TableRow};

#[derive(Serialize, CellType)]
#[serde(rename_all = "snake_case")]
enum Cause {
    HostWait,
}

#[derive(Serialize, CellType)]
struct Device(i32);

#[derive(Serialize, TableRow)]
struct Times {
    total_ns: i64,
    mean_ns: f64,
}

#[derive(Serialize, TableRow)]
struct Row<'a> {
    rank: u32,
    device: Option<Device>,
    name: &'a str,
    cause: Option<Cause>,
    #[serde(flatten)]
    times: Times,
    bytes_max: Option<u64>,
    is_late: bool,
    #[serde(rename = "kind")]
    class: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss: Option<String>,
    #[serde(skip)]
    cache: (),
    shares: [f64; 2],
    counts: BTreeMap<String, u64>,
}

fn row() -> Row<'static> {
    Row {
        rank: 0,
        device: Some(Device(1)),
        name: "a",
        cause: Some(Cause::HostWait),
        times: Times { total_ns: 1, mean_ns: 0.5 },
        bytes_max: None,
        is_late: false,
        class: "b",
        loss: Some(String::new()),
        cache: (),
        shares: [0.0, 1.0],
        counts: BTreeMap::new(),
    }
}

#[test]
fn columns_are_the_serialized_keys_with_their_types() {
    let line = |one: &Column| format!("{} {:?} {}", one.name, one.value_type, one.is_nullable);
    let lines: Vec<String> = Row::columns().iter().map(line).collect();
    expect![[r#"
        rank Integer false
        device Integer true
        name Text false
        cause Text true
        total_ns Integer false
        mean_ns Float false
        bytes_max Unsigned true
        is_late Boolean false
        kind Text false
        loss Text true
        shares Nested false
        counts Nested false"#]]
    .assert_eq(&lines.join("\n"));
    let row = row();
    let _unit: () = row.cache;
    let serialized = toml::Value::try_from(&row).unwrap();
    let mut keys: Vec<&str> = serialized.as_table().unwrap().keys().map(String::as_str).collect();
    // TOML omits missing values, so the key of the empty `bytes_max` is added here.
    keys.push("bytes_max");
    keys.sort_unstable();
    let mut names: Vec<&str> = <&Row>::columns().iter().map(|column| column.name).collect();
    names.sort_unstable();
    assert_eq!(names, keys);
}

#[test]
fn a_name_ends_with_the_unit_of_its_numbers() {
    let unit = |name| Column::new::<i64>(name).unit();
    assert_eq!(unit("busy_ns"), Some(ColumnUnit::Nanoseconds));
    assert_eq!(unit("before_call_ns_max"), Some(ColumnUnit::Nanoseconds));
    assert_eq!(unit("idle_pct"), Some(ColumnUnit::Percent));
    assert_eq!(unit("bytes"), Some(ColumnUnit::Bytes));
    assert_eq!(unit("without_bytes_count"), None);
    assert_eq!(Column::new::<String>("name_ns").unit(), None);
}
