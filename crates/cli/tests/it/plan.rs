//! Plans from the command line: searched, written, trained by, converted, drawn and refused.

use std::fs;

use serde_json::Value;

use crate::fixture::Place;

/// Five tables, of which one is much larger and one has many ids per bag.
const JOB: &str = r#"
[model]
name = "planned"
dense_features = 4
bottom = [16, 8]
top = [16, 1]
interaction = { kind = "dot" }
loss = "bce_with_logits"
tables = [
  { name = "large", rows = 400_000, dim = 8 },
  { name = "busy", rows = 5_000, dim = 8 },
  { name = "small", rows = 20, dim = 8 },
  { name = "mid", rows = 30_000, dim = 8 },
  { name = "other", rows = 30_000, dim = 8 },
]

[optimizer]
sparse = { kind = "sgd", learning_rate = 0.05 }
dense = { kind = "sgd", learning_rate = 0.05 }

[training]
batch_size = 64
steps = 6

[data]
format = "csv"
label = { column = "label" }
dense = [{ column = "d{0..3}" }]
categorical = [
  { column = "large", kind = "integer" },
  { column = "busy", kind = "integer", separator = "|" },
  { column = "small", kind = "integer" },
  { column = "mid", kind = "integer" },
  { column = "other", kind = "integer" },
]

[synthetic]
bag_sizes = { busy = 40 }
"#;

fn place() -> Place {
    let place = Place::new();
    fs::write(place.path("job.toml"), JOB).unwrap();
    place
}

/// The plan of the search is at most as slow as that of every rule, and its files agree.
#[test]
fn a_plan_is_searched_written_and_converted() {
    let place = place();
    let plan = "plan --model job.toml --hardware a100x4 --seed 1";
    let files = "--output p.json --torchrec t.json --svg p.svg";
    let report = place.done(&format!("{plan} {files} --by rule --format json")).json();
    let rules = report["rows"].as_array().unwrap();
    // Programs find the figures of the text: the step, its critical path and the files.
    let path = report["critical_path"].as_array().unwrap();
    let sum: f64 = path.iter().map(|stage| stage["ns"].as_f64().unwrap()).sum();
    assert!((sum / report["step_ns"].as_f64().unwrap() - 1.0).abs() < 1e-6, "{report}");
    assert_eq!((&report["plan_file"], &report["svg_file"]), (&"p.json".into(), &"p.svg".into()));
    let ns = |row: &Value| row["step_ns"].as_f64().unwrap();
    assert_eq!(rules[0]["rule"], "chosen");
    assert!(rules.len() >= 8 && rules.iter().all(|row| ns(row) >= ns(&rules[0])), "{rules:?}");
    let written = fs::read_to_string(place.path("p.json")).unwrap();
    let json: Value = serde_json::from_str(&written).unwrap();
    assert_eq!((&json["version"], &json["world_size"]), (&1.into(), &4.into()));
    let svg = fs::read_to_string(place.path("p.svg")).unwrap();
    assert!(["embedding_update", "capacity", "1 host x 4"].iter().all(|part| svg.contains(part)));
    // The same seed gives the same bytes.
    place.done(&format!("{plan} --output again.json --torchrec u.json"));
    assert_eq!(fs::read_to_string(place.path("again.json")).unwrap(), written);
    let convert = "plan convert t.json --model job.toml --to rowmill --output back.json";
    let told = place.done(convert);
    assert!(told.stderr.contains("--ranks gives another number"), "{}", told.stderr);
    place.done(&format!("{convert} --ranks 4"));
    let back = fs::read_to_string(place.path("back.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&back).unwrap(), json);
    let ranks = place.done(&format!("{plan} --format json")).json();
    assert_eq!(ranks["rows"].as_array().unwrap().len(), 4);
    let tables = place.done(&format!("{plan} --by table --format json")).json();
    assert_eq!(tables["rows"][0]["table"], "large");
}

/// TorchRec's plans number the devices of each host. A plan that TorchRec cannot express is refused
/// before any file is written.
#[test]
fn plans_for_torchrec_know_hosts_and_are_refused_before_files_are_written() {
    let place = place();
    let by_host = "plan --model job.toml --hardware 2xa100x2 --set plan.layouts=[\"table-row\"]";
    place.done(&format!("{by_host} --output p.json --torchrec t.json"));
    let convert = "plan convert p.json --model job.toml --to torchrec --output u.json";
    place.refused(convert, &["TorchRec has no sharding type", "give --ranks-per-host"]);
    place.refused(&format!("{convert} --ranks 4"), &["--ranks: expected --to rowmill"]);
    place.done(&format!("{convert} --ranks-per-host 2"));
    let read = |name: &str| fs::read_to_string(place.path(name)).unwrap();
    assert_eq!(read("t.json"), read("u.json"));
    assert!(read("u.json").contains("rank:3/cuda:1"), "{}", read("u.json"));
    place.refused(
        "plan convert t.json --model job.toml --to rowmill --output q.json --ranks-per-host 2",
        &["--ranks-per-host: expected --to torchrec"],
    );
    let pinned = "--set plan.tables.large.pinned={layout=\"row\",ranks=[0,1]}";
    let plan = format!("plan --model job.toml --hardware a100x4 {pinned}");
    place.refused(&format!("{plan} --output w.json --torchrec v.json"), &["large"]);
    assert!(!place.path("w.json").exists());
}

/// Ranks that hold no table are kept by --ranks, and no file is overwritten by another one.
#[test]
fn converted_plans_keep_empty_ranks_and_files_keep_their_content() {
    let place = place();
    let pin = |table| format!(r#"--set plan.tables.{table}.pinned={{layout="table",ranks=[1]}}"#);
    let pinned = ["large", "busy", "small", "mid", "other"].map(pin).join(" ");
    let plan = format!("plan --model job.toml --hardware a100x4 {pinned}");
    let files = "--output p.json --torchrec t.json";
    let report = place.done(&format!("{plan} {files} --format json")).json();
    assert_eq!((&report["fullest_rank"], &report["is_ended_early"]), (&1.into(), &false.into()));
    let convert = "plan convert t.json --model job.toml --to rowmill --output back.json";
    place.done(&format!("{convert} --ranks 4"));
    let read = |name: &str| fs::read_to_string(place.path(name)).unwrap();
    assert_eq!(read("p.json"), read("back.json"));
    let told = place.done("plan convert p.json --model job.toml --to torchrec --output u.json");
    assert!(told.stderr.contains("give --ranks 4 to convert"), "{}", told.stderr);
    place.refused(&format!("{convert} --ranks 1"), &["placement", "N below 1"]);

    let kept = read("t.json");
    place.refused(&convert.replace("back.json", "./t.json"), &["t.json", "overwrite the input"]);
    place.refused(&format!("{plan} --output job.toml"), &["job.toml", "overwrite the input"]);
    place.refused(&format!("{plan} --output x --svg ./x"), &["./x: expected different files"]);
    let parquet = format!("{plan} --output q.parquet --format parquet");
    place.refused(&parquet, &["--format parquet: this command prints its rows"]);
    assert_eq!(read("t.json"), kept);
    assert!(!place.path("x").exists() && !place.path("q.parquet").exists());
}

/// Times add up, plans of equal steps differ by the time of the devices, and the output says what
/// they rest on.
#[test]
fn a_plan_says_what_its_times_contain() {
    let place = place();
    let plan = "plan --model job.toml --hardware a100x4 --format json";
    let told = |words: &str, parts: &[&str]| {
        let ran = place.done(&format!("{plan} {words}"));
        parts.iter().for_each(|part| assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr));
        ran.json()
    };
    let step_ns = |row: &Value| row["busy_ns"].as_f64().unwrap() + row["wait_ns"].as_f64().unwrap();
    let hardware = "hardware: NVIDIA A100-PCIE-40GB, 1 host x 4 devices";
    let device = told("--launch-us 0 --by rule", &["host: left out", hardware]);
    for (words, host) in [
        ("--output p.json", "host: overheads a100"),
        ("--launch-us 1000", "host: 1000 µs per launch"),
        ("--launch-us 0", "host: left out"),
    ] {
        let ranks = told(words, &[host, "critical path"]);
        let ranks = ranks["rows"].as_array().unwrap();
        let first_ns = step_ns(&ranks[0]);
        assert!(ranks.iter().all(|row| (step_ns(row) / first_ns - 1.0).abs() < 1e-9), "{ranks:?}");
        let busiest = |row: &Value| row["busy_ns"].as_f64().unwrap();
        let busy_ns = ranks.iter().map(busiest).fold(0.0, f64::max);
        assert!(
            busy_ns < 1.001 * device["rows"][0]["step_ns"].as_f64().unwrap(),
            "{words}: {ranks:?}"
        );
    }
    told("--output p.json", &["plan written to p.json", "waiting_for_host"]);
    let rules: Vec<&str> = device["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["rule"].as_str().unwrap())
        .collect();
    assert!(rules.contains(&"--sharding row") && !rules.contains(&"--sharding grid"), "{rules:?}");
    let larger = place.done("predict step --model job.toml --hardware a100x8 --plan p.json");
    assert!(larger.stderr.contains("of which 4 are used"), "{}", larger.stderr);
    // A pinned table is explained as well.
    let pinned = "--set plan.tables.busy.pinned={layout=\"row\",ranks=[1,2]} --explain busy";
    let report = told(&format!("{pinned} --explain busy"), &[]);
    let rows = report["rows"].as_array().unwrap();
    assert!(rows[0]["why"].as_str().unwrap().contains("pinned"), "{report}");
    assert!(rows.len() >= 3, "{report}");
    for row in rows {
        let (why, added) = (row["why"].as_str().unwrap(), row["added_ns"].as_f64().unwrap());
        assert!(!why.starts_with("longer") || added > 0.0, "{row}");
    }
    place.refused(
        "plan --model job.toml --hardware a100x4 --by table --explain busy",
        &["--by", "--explain"],
    );
    told("--set plan.layouts=[\"table\"] --by rule", &["do not follow [plan]"]);
}

#[test]
fn constraints_of_the_configuration_hold() {
    let place = place();
    let set = "--set plan.tables.large.pinned={layout=\\\"table\\\",ranks=[3]}";
    let set = set.replace('\\', "");
    let words = format!("plan --model job.toml --hardware a100x4 --by table {set} --format json");
    let tables = place.done(&words).json();
    let tables = &tables["rows"];
    assert_eq!((&tables[0]["layout"], &tables[0]["ranks"]), (&"table".into(), &"3".into()));
    let plan = "plan --model job.toml --hardware a100x4";
    place.refused(&format!("{plan} --set plan.tables.zzz.most_ranks=2"), &["plan.tables.zzz"]);
    place.refused(&format!("{plan} --set plan.layouts=[\"rows\"]"), &["plan.layouts", "row"]);
    place.refused("plan --model job.toml --hardware a1000", &["a1000"]);
    place.refused("plan --model job.toml", &["--hardware"]);
    let huge = format!("{plan} --set model.tables.large.rows=40000000000");
    place.refused(&huge, &["memory of rank", "table_weights"]);
    place.refused(&format!("{plan} --explain zzz"), &["zzz", "large"]);
    let by_host = "--set plan.layouts=[\"table-row\"] --hardware 2xa100x2";
    let rows = place.done(&format!("plan --model job.toml {by_host} --by table --format json"));
    assert_eq!(rows.json()["rows"][0]["layout"], "table-row");
    place.refused(&format!("{plan} --effort 0"), &["--effort"]);
    place.refused(&format!("{plan} --output -"), &["/dev/stdout"]);
    place.refused("plan --model job.toml --hardware cpu", &["--sharding auto"]);
    place.refused("plan --model job.toml --hardware a1000", &["--list-hardware"]);
    let auto = "--set model.tables.mid.rows=\"auto\"";
    place.refused(&format!("{plan} {auto}"), &["\"auto\" for mid", "--set model.tables"]);
    fs::write(place.path("p.json"), r#"{"world_size": 1, "tiles": []}"#).unwrap();
    place.refused(&format!("train job.toml --plan p.json {auto}"), &["\"auto\" for mid"]);
    for (text, words) in [
        ("", "an empty file"),
        ("[]", "JSON that is not an object"),
        (r#"{"world_size": 1, "tiles": []}"#, "a plan of rowmill"),
        ("{}", "without \"plan\""),
    ] {
        fs::write(place.path("p.json"), text).unwrap();
        let convert = "plan convert p.json --model job.toml --to rowmill --output q.json";
        place.refused(convert, &[words, "--torchrec"]);
    }
}

/// `--sharding auto` trains the model that one rank trains.
#[test]
fn a_run_plans_its_tables_itself() {
    let place = place();
    let train = "train job.toml --synthetic 1000 --format json";
    let alone = place.run(&format!("{train} --run alone --sharding auto"));
    assert!(alone.stderr.contains("there is one rank"), "{}", alone.stderr);
    let ruled =
        format!("{train} --run ruled --ranks 2 --sharding row --set plan.layouts=[\"table\"]");
    let ruled = place.done(&ruled);
    assert!(ruled.stderr.contains("limits --sharding auto"), "{}", ruled.stderr);
    let one = place.done(&format!("{train} --run one")).last();
    let auto = place.done(&format!("{train} --run auto --ranks 2 --sharding auto"));
    for part in ["placed by size (--sharding table)", "the best plan of whole tables", "plans were"]
    {
        assert!(auto.stderr.contains(part), "{part}: {}", auto.stderr);
    }
    let auto = auto.last();
    let record = |run: &str| -> Value {
        let text = fs::read_to_string(place.path(run).join("run.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    assert_eq!(record("auto")["world_size"], 2);
    let loss = |last: &Value| last["loss"].as_f64().unwrap();
    assert!((loss(&one) - loss(&auto)).abs() < 1e-5);
}

/// Statistics of the data replace the bag sizes of the configuration, for plans and for runs.
#[test]
fn plans_use_measured_feature_statistics() {
    let place = place();
    let mut rows = "label,d0,d1,d2,d3,large,busy,small,mid,other\n".to_owned();
    for row in 0..2000 {
        // Small remainders are more frequent than large ones.
        let large = row % (1 + row % 41);
        let busy = ["7", "1|2|3|4|5"][row % 2];
        rows += &format!("{},1,2,3,4,{large},{busy},{},{row},\n", row % 2, row % 20);
    }
    fs::write(place.path("rows.csv"), rows).unwrap();
    place.done("data stats rows.csv --config job.toml --feature-stats f.json");
    let written = fs::read_to_string(place.path("f.json")).unwrap();
    let json: Value = serde_json::from_str(&written).unwrap();
    assert_eq!((&json["format"], &json["version"]), (&"rowmill-feature-stats".into(), &1.into()));
    let busy = &json["features"]["busy"];
    assert_eq!((&busy["ids_per_bag"], &busy["longest_bag"]), (&3.0.into(), &5.into()));
    assert_eq!(json["features"]["large"]["ids"]["kind"], "zipf");
    // A missing id of a column of single ids is looked up as row 0.
    assert_eq!(json["features"]["other"]["ids_per_bag"], 1.0);

    let plan = "plan --model job.toml --hardware a100x4";
    let lookup_ns = |words: &str| -> f64 {
        let ranks = place.done(&format!("{plan} {words} --format json")).json();
        let ranks = ranks["rows"].as_array().unwrap();
        ranks.iter().map(|rank| rank["lookup_ns"].as_f64().unwrap()).sum()
    };
    let measured = lookup_ns("--stats f.json");
    assert_ne!(measured, lookup_ns(""));
    assert_eq!(measured, lookup_ns("--set plan.stats=f.json"));
    let train = "train job.toml --synthetic 1000 --ranks 2 --sharding auto";
    place.done(&format!("{train} --run auto --set plan.stats=f.json"));

    let surplus = written.replace("\"mid\"", "\"unknown\"");
    fs::write(place.path("surplus.json"), surplus).unwrap();
    let names = ["missing: mid", "surplus: unknown"];
    place.refused(&format!("{plan} --stats surplus.json"), &names);
    place.refused(&format!("{train} --run other --set plan.stats=surplus.json"), &names);
    let newer = written.replace("\"version\": 1", "\"version\": 2, \"new\": 0");
    fs::write(place.path("newer.json"), newer).unwrap();
    place.refused(&format!("{plan} --stats newer.json"), &["version 1", "version 2"]);
    let negative = written.replace("\"ids_per_bag\": 3.0", "\"ids_per_bag\": -3.0");
    fs::write(place.path("negative.json"), negative).unwrap();
    place.refused(&format!("{plan} --stats negative.json"), &["features.busy", "-3"]);
    place.refused(&format!("{plan} --stats f.json --pooling 2"), &["--pooling"]);
    place.refused(&format!("{plan} --stats job.toml"), &["job.toml"]);
    place.refused("data stats rows.csv --feature-stats g.json", &["--config"]);
}

/// The statistics of `init` fit the configuration that it writes.
#[test]
fn init_writes_statistics_of_its_features() {
    let place = Place::new();
    place.done("init train.csv --output made.toml --label y --feature-stats f.json");
    place.done("data stats train.csv --config made.toml --feature-stats g.json");
    let read = |name: &str| fs::read_to_string(place.path(name)).unwrap();
    assert_eq!(read("f.json"), read("g.json"));
    place.done("train made.toml --ranks 2 --sharding auto --run r --set plan.stats=f.json");
}

/// A ready-made setting prints its cases beside the published figures, and is drawn.
#[test]
fn published_jobs_are_simulated() {
    let place = place();
    let rows = place.done("plan simulate torchrec --svg t.svg --format json").json();
    let rows = rows.as_array().unwrap();
    let ns = |row: &Value| row["step_ns"].as_f64().unwrap();
    assert_eq!(
        (rows.len(), &rows[0]["case"], &rows[4]["case"]),
        (5, &"before".into(), &"all".into())
    );
    assert!(rows.iter().all(|row| ns(row) >= ns(&rows[4])));
    assert_eq!(rows[0]["published_ns"], 7.6e6);
    let svg = fs::read_to_string(place.path("t.svg")).unwrap();
    assert!(svg.contains("host thread 1") && svg.contains("no metadata exchange"));
    let facts = place.done("plan simulate torchrec --by assumption --format json").json();
    assert!(!facts.as_array().unwrap().is_empty());
}

#[test]
fn own_jobs_are_simulated_on_up_to_1024_ranks() {
    let place = place();
    let own = "plan simulate --model job.toml --set training.batch_size=65536 --sharding row";
    let rows = place.done(&format!("{own} --hardware 128xh100x8 --format json")).json();
    assert_eq!(rows.as_array().unwrap().len(), 5);
    let stages = place.done(&format!("{own} --hardware h100x8 --by stage --format json")).json();
    assert!(stages.as_array().unwrap().iter().any(|row| row["stage"] == "lookup"));
    place.refused(&format!("{own} --hardware 256xh100x8"), &["1024"]);
    place.refused("plan simulate", &["SETTING"]);
    place.refused("plan simulate neo --schedule serial", &["--schedule"]);
    place.refused("plan simulate --model job.toml", &["--hardware"]);
}
