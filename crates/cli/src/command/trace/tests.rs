//! Compares the page `docs/trace-columns.md`, which lists the columns of every table, with the row
//! types. The integration test `columns.rs` compares it with the output of the commands.

use analyze::annotations::AnnotationRow;
use analyze::attribution::Coverage;
use analyze::bandwidth::{Bandwidth, SizeClass};
use analyze::breakdown::Breakdown;
use analyze::collectives::{CollectiveRow, Matched};
use analyze::critical_path::{CategoryPart, Contributor, SegmentRow};
use analyze::diff::{PartChange, SpentChange};
use analyze::idle::{DeviceIdle, Gap, IdleOwner, StreamIdle};
use analyze::kernels::{HistogramRow, KernelRow};
use analyze::launches::{LaunchDistribution, LaunchRow, LaunchSummary};
use analyze::memory::{AllocatorRow, MemoryPeak, MemoryPoint};
use analyze::ops::OpRow;
use analyze::overlap::ExclusiveClass;
use analyze::quality::Issue;
use analyze::queue::{QueuePoint, StreamQueue};
use analyze::sequences::SequenceRow;
use analyze::steps::{StepRow, StepSummary};
use analyze::stragglers::{LateArrival, Straggler};
use analyze::what_if::{NewPart, NewWindow};
use schema::{Column, ColumnType, TableRow};

use super::convert::EventRow;
use super::execution::GraphRow;
use super::finding::FindingRow;

const HEAD: &str = "# Columns of the tables of `rowmill trace`

A table has these columns in every format, also if it has no rows. A name ends with its unit: `_ns` nanoseconds, `_pct` percent,
`_bytes` bytes. `?` marks a column whose values may be missing. Parquet stores *integer* as INT64, *unsigned* as UINT64, *float* as
DOUBLE, *boolean* as BOOLEAN and *text* as a UTF-8 string. *Nested* values, which are lists or objects, are in JSON only.

Tables of a recording of which parts are missing have one more column, `recording_cut`, a text. All their columns may be missing,
because a table without rows has one row with this text.

This page is generated: `UPDATE_EXPECT=1 cargo test --release -p rowmill --bin rowmill columns`.

| `rowmill trace …` | columns |
|---|---|
";

/// Formats a line of the page for each pair of command arguments and row type.
macro_rules! lines {
    ($($arguments:literal $row:ty;)*) => { [$(line($arguments, &<$row>::columns())),*].concat() };
}

fn line(arguments: &str, columns: &[Column]) -> String {
    let column = |column: &Column| {
        let value_type = match column.value_type {
            ColumnType::Integer => "integer",
            ColumnType::Unsigned => "unsigned",
            ColumnType::Float => "float",
            ColumnType::Boolean => "boolean",
            ColumnType::Text => "text",
            ColumnType::Nested => "nested",
        };
        let mark = if column.is_nullable { "?" } else { "" };
        format!("`{}` {value_type}{mark}", column.name)
    };
    let columns: Vec<String> = columns.iter().map(column).collect();
    format!("| `{arguments}` | {} |\n", columns.join(", "))
}

#[test]
fn the_page_lists_the_columns_of_every_table() {
    let lines = lines! {
        "breakdown --by rank" Breakdown;
        "breakdown --by device" Breakdown;
        "overlap --by rank" ExclusiveClass;
        "overlap --by device" ExclusiveClass;
        "idle --by device" DeviceIdle;
        "idle --by stream" StreamIdle;
        "idle --by gap" Gap;
        "idle --by op" IdleOwner;
        "kernels --by name" KernelRow;
        "kernels --by histogram" HistogramRow;
        "ops --by name" OpRow;
        "ops --by annotation" AnnotationRow;
        "ops --by sequence" SequenceRow;
        "ops --by attribution" Coverage;
        "launches --by rank" LaunchSummary;
        "launches --by call" LaunchDistribution;
        "launches --by kernel" LaunchDistribution;
        "launches --by launch" LaunchRow;
        "queue --by stream" StreamQueue;
        "queue --by point" QueuePoint;
        "memory --by copy" Bandwidth;
        "memory --by size" SizeClass;
        "memory --by peak" MemoryPeak;
        "memory --by op" AllocatorRow;
        "memory --by point" MemoryPoint;
        "steps --by step" StepRow;
        "steps --by rank" StepSummary;
        "collectives --by collective" Matched;
        "collectives --by rank" CollectiveRow;
        "stragglers --by rank" Straggler;
        "stragglers --by collective" LateArrival;
        "critical-path --by category" CategoryPart;
        "critical-path --by name" Contributor;
        "critical-path --by segment" SegmentRow;
        "critical-path --what-if EDIT" NewWindow;
        "critical-path --what-if EDIT --by category" NewPart;
        "diff --by part" PartChange;
        "diff --by kernel" SpentChange;
        "diff --by operator" SpentChange;
        "diff --by path" SpentChange;
        "diff --by host" SpentChange;
        "diff --by call" SpentChange;
        "findings" FindingRow;
        "doctor" Issue;
        "execution-trace" GraphRow;
        "convert --to parquet: events" EventRow;
        "convert --to parquet: ops" OpRow;
        "convert --to parquet: kernels" KernelRow;
        "convert --to parquet: collectives" CollectiveRow;
    };
    expect_test::expect_file!["../../../../../docs/trace-columns.md"]
        .assert_eq(&format!("{HEAD}{lines}"));
}
