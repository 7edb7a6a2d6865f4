//! Conversion of plans to TorchRec's form and back, with its own classes where they are installed.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use schema::{HostLayout, Rank, ShardingPlan, TableConfig, TableId, Tile};

use crate::torchrec::error::TorchrecError;
use crate::torchrec::plan_form::{ModuleShardings, TorchrecPlan, export_plan, import_plan};
use crate::torchrec::topology::PlannedDevice;

const MODULE: &str = "model.sparse";

fn table(rows: u64, dim: usize) -> TableConfig {
    TableConfig {
        name: format!("{rows}x{dim}"),
        rows,
        dim,
        pooling: Default::default(),
        sequence_length: None,
        data_type: Default::default(),
        features: Vec::new(),
    }
}

fn hosts() -> HostLayout {
    HostLayout::with_ranks_per_host(4, 2).unwrap()
}

fn tables() -> [TableConfig; 4] {
    [table(100, 256), table(7, 256), table(1000, 256), table(3, 256)]
}

/// The ready-made plans on four ranks of two hosts.
fn plans() -> Vec<ShardingPlan> {
    let tables = tables();
    let mut plans: Vec<ShardingPlan> = [
        ShardingPlan::table_wise,
        ShardingPlan::row_wise,
        ShardingPlan::column_wise,
        ShardingPlan::replicate,
    ]
    .map(|make| make(&tables, 4).on_hosts(hosts()))
    .into();
    plans.push(ShardingPlan::table_row_wise(&tables, &hosts()));
    plans.push(ShardingPlan::grid(&tables, &hosts()));
    plans
}

fn exported(plan: &ShardingPlan) -> TorchrecPlan {
    export_plan(plan, &tables(), MODULE, PlannedDevice::Gpu).unwrap()
}

#[test]
fn exported_plans_come_back_the_same() {
    for plan in plans() {
        let text = serde_json::to_string(&exported(&plan)).unwrap();
        let file = serde_json::from_str(&text).unwrap();
        assert_eq!(import_plan(&file, &tables(), &hosts()), Ok(plan));
    }
}

#[test]
fn torchrec_accepts_exported_plans() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join("target/venv-compare/bin/python");
    if !python.exists() {
        let need = "TorchRec in target/venv-compare (bench/compare/setup.py)";
        testkit::skip("plans in TorchRec's classes", need);
        return;
    }
    let shapes: Vec<_> =
        tables().iter().map(|table| (table.name.clone(), table.rows, table.dim)).collect();
    let plans: Vec<_> = plans().iter().map(exported).collect();
    let input = serde_json::json!({
        "tables": shapes, "ranks": 4, "ranks_per_host": 2, "module": MODULE, "plans": plans,
    });
    let mut check = Command::new(python)
        .arg(root.join("bench/compare/torchrec_plan_agrees.py"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    check.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let agreed: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(agreed["plans"], 6, "{text}");
    assert_eq!(agreed["tables"], 24, "{text}");
}

#[test]
fn plans_that_torchrec_lacks_name_the_table() {
    let tables = [table(100, 16)];
    let tile = |rows, columns, rank| Tile { table: TableId(0), rows, columns, rank: Rank(rank) };
    let refused = |tiles| {
        let plan = ShardingPlan::new(4, tiles, &tables).unwrap().on_hosts(hosts());
        export_plan(&plan, &tables, MODULE, PlannedDevice::Gpu).unwrap_err().to_string()
    };
    let expected = "table \"100x16\": TorchRec has no sharding type for its tiles, because rows \
                    must be whole, or split into equal blocks over all ranks or over the ranks of \
                    one host, in the order of ranks";
    let unequal = vec![tile(0..10, 0..16, 0), tile(10..100, 0..16, 1)];
    assert_eq!(refused(unequal), expected);
    let across_hosts = vec![tile(0..50, 0..16, 1), tile(50..100, 0..16, 2)];
    assert_eq!(refused(across_hosts), expected);
    let out_of_order = vec![tile(0..50, 0..16, 1), tile(50..100, 0..16, 0)];
    assert_eq!(refused(out_of_order), expected);
    let mixed = vec![tile(0..100, 0..8, 0), tile(0..50, 8..16, 2), tile(50..100, 8..16, 3)];
    assert_eq!(refused(mixed), expected);
    let narrow = vec![tile(0..100, 0..6, 0), tile(0..100, 6..16, 1)];
    let expected = "table \"100x16\": TorchRec has no sharding type for its tiles, because parts of \
                    columns must have a multiple of 4 columns";
    assert_eq!(refused(narrow), expected);
}

#[test]
fn imported_plans_that_rowmill_lacks_name_the_entry() {
    let tables = [table(100, 16)];
    let import = |edit: &dyn Fn(&mut serde_json::Value)| {
        let mut value = serde_json::json!({
            "sharding_type": "column_wise",
            "compute_kernel": "fused",
            "ranks": [1, 0],
            "shards": [
                {"shard_offsets": [0, 0], "shard_sizes": [100, 8], "placement": "rank:1/cuda:1"},
                {"shard_offsets": [0, 8], "shard_sizes": [100, 8], "placement": "rank:0/cuda:0"},
            ],
        });
        edit(&mut value);
        let file = serde_json::json!({"100x16": value});
        let file: ModuleShardings = serde_json::from_value(file).unwrap();
        import_plan(&file.into(), &tables, &HostLayout::on_one_host(2))
            .map_err(|error| error.to_string())
    };
    assert_eq!(import(&|_| {}).unwrap().tiles().len(), 2);
    let check = |edit: &dyn Fn(&mut serde_json::Value), expected: &str| {
        assert_eq!(import(edit).unwrap_err(), format!("table \"100x16\", {expected}"));
    };
    check(
        &|value| value["compute_kernel"] = "fused_uvm_caching".into(),
        "compute_kernel: expected dense or fused, because tables are neither cached nor \
         quantized, got fused_uvm_caching",
    );
    check(
        &|value| value["sharding_type"] = "diagonal".into(),
        "sharding_type: expected one of data_parallel, table_wise, column_wise, \
         table_column_wise, row_wise, table_row_wise, grid_shard, got diagonal",
    );
    check(
        &|value| value["shards"][0]["placement"] = "rank:2/cuda:0".into(),
        "placement: expected rank:N/DEVICE with N below 2, the number of ranks, got rank:2/cuda:0",
    );
    check(
        &|value| value["ranks"] = vec![0, 0].into(),
        "ranks: expected rank 1, which is that of the placement of shard 0, got 0",
    );
    check(
        &|value| value["ranks"] = vec![1].into(),
        "ranks: expected one for each of the 2 shards, got 1",
    );
    check(&|value| value["shards"] = ().into(), "shards: expected a list, got none");
    check(
        &|value| value["shards"][1]["shard_offsets"] = vec![0, 9].into(),
        "shards: expected an end of at most 100 rows, 16 columns, got 100 rows, 17 columns",
    );
    check(
        &|value| value["sharding_type"] = "data_parallel".into(),
        "shards: expected none of a replicated table, got some",
    );
    let on_some = |value: &mut serde_json::Value| {
        value["sharding_type"] = "data_parallel".into();
        (value["shards"], value["ranks"]) = (().into(), vec![0].into());
    };
    check(
        &on_some,
        "ranks: expected all 2 ranks, because rowmill replicates a table on every rank, got [0]",
    );
    let uncovered = |value: &mut serde_json::Value| {
        value["shards"][1]["shard_sizes"] = vec![99, 8].into();
    };
    let text = "table \"100x16\": expected tiles over 1600 weights, got 1592";
    assert_eq!(import(&uncovered).unwrap_err(), text);
}

#[test]
fn plan_files_have_each_table_once() {
    let plan = ShardingPlan::row_wise(&tables(), 4).on_hosts(hosts());
    let mut file = exported(&plan);
    let import = |file: &TorchrecPlan| import_plan(file, &tables(), &hosts()).unwrap_err();
    let first = file.plan[MODULE]["3x256"].clone();
    let name = || "3x256".to_owned();
    file.plan.entry("other".to_owned()).or_default().insert(name(), first.clone());
    assert_eq!(import(&file), TorchrecError::TableTwice { table: name() });
    file.plan.clear();
    file.plan.entry("other".to_owned()).or_default().insert(name(), first.clone());
    assert_eq!(import(&file), TorchrecError::MissingTable { table: "100x256".to_owned() });
    file.plan.entry("other".to_owned()).or_default().insert("4x256".to_owned(), first);
    assert_eq!(import(&file), TorchrecError::UnknownTable { table: "4x256".to_owned() });
}
