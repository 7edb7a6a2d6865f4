//! Converts entries to Arrow columns, one table per kind of entry. `docs/hub.md` lists the columns.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::types::{Float64Type, UInt64Type};
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, ListArray, RecordBatch, StringArray, StructArray,
    UInt64Array,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType, Field, Fields};
use fleet::proto::{Body, GpuInterval, GpuRun, HostInterval, OrderState};
use prost::Message;

use crate::batch::QueuedEntry;

mod activity;
mod values;

use values::{Column, add_interval, binary, map, small};
pub use values::{text, timestamps};

/// Sums of a GPU that have columns of their own. Sums with other names are in the map `sums`.
const SUMS: [&str; 16] = [
    "busy_s",
    "sm_active_s",
    "sm_occupancy_s",
    "tensor_s",
    "fp64_s",
    "fp32_s",
    "fp16_s",
    "dram_s",
    "pcie_sent_bytes",
    "pcie_received_bytes",
    "nvlink_sent_bytes",
    "nvlink_received_bytes",
    "energy_j",
    "power_ws",
    "sm_clock_hz_s",
    "memory_clock_hz_s",
];

/// The column of the runs that share a GPU with the run in the columns `run`, `workflow` and
/// `user`.
pub const FURTHER_RUNS: &str = "further_runs";

/// Folder of the table of findings, which the hub writes itself.
pub const FINDINGS: &str = "finding";

/// Folder of the sums of GPUs of each hour, which is kept longest.
pub const BY_HOUR: &str = "by_hour";
/// Folder of the sums of CPUs of each hour.
pub const BY_CPU_HOST: &str = "cpu_by_host";
/// The tables that the hub computes from rows of the same hour and keeps.
pub const KEPT: [KeptTable; 5] = [
    KeptTable { folder: "by_minute", sources: &[RowTable::Gpu] },
    KeptTable { folder: BY_HOUR, sources: &[RowTable::Gpu] },
    KeptTable { folder: "by_host", sources: &[RowTable::Gpu] },
    KeptTable { folder: "faults", sources: &[RowTable::Gpu] },
    KeptTable { folder: BY_CPU_HOST, sources: &[RowTable::Host, RowTable::Gpu] },
];

/// A table that follows from rows of other tables.
#[derive(Clone, Copy, Debug)]
pub struct KeptTable {
    pub folder: &'static str,
    pub sources: &'static [RowTable],
}

/// A table of the store, with one row per entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowTable {
    Gpu,
    Host,
    Order,
    Run,
    Step,
    Event,
}

impl RowTable {
    pub const ALL: [Self; 6] =
        [Self::Gpu, Self::Host, Self::Order, Self::Run, Self::Step, Self::Event];

    /// Returns the name of the table's folder.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Host => "host",
            Self::Order => "order",
            Self::Run => "run",
            Self::Step => "step",
            Self::Event => "event",
        }
    }

    /// Returns the table of an entry.
    pub fn from_body(body: &Body) -> Self {
        match body {
            Body::Gpu(_) => Self::Gpu,
            Body::Host(_) => Self::Host,
            Body::Order(_) => Self::Order,
            Body::Run(_) => Self::Run,
            Body::Steps(_) => Self::Step,
            Body::Event(_) => Self::Event,
        }
    }

    /// Whether each row covers an interval of one device or process of the host, so that a second
    /// row of the same time is a mistake.
    pub fn has_intervals(self) -> bool {
        matches!(self, Self::Gpu | Self::Host | Self::Step)
    }
}

/// Converts the entries of one table to columns. Entries of other tables are left out.
///
/// # Errors
/// If the columns do not form a table, which would be a bug.
pub fn encode(table: RowTable, entries: &[QueuedEntry]) -> Result<RecordBatch, ArrowError> {
    let entries: Vec<&QueuedEntry> =
        entries.iter().filter(|entry| RowTable::from_body(&entry.body) == table).collect();
    let mut columns: Vec<Column> = vec![
        ("queue", binary(entries.iter().map(|entry| &*entry.queue)), false),
        (
            "sequence",
            Arc::new(UInt64Array::from_iter_values(entries.iter().map(|e| e.sequence))),
            false,
        ),
        ("host", text(entries.iter().map(|entry| &*entry.host)), false),
    ];
    match table {
        RowTable::Gpu => {
            let rows = entries.iter().filter_map(|entry| match &entry.body {
                Body::Gpu(row) => Some(&**row),
                _ => None,
            });
            add_gpu_columns(&mut columns, &rows.collect::<Vec<_>>())?;
        }
        RowTable::Host => {
            let rows = entries.iter().filter_map(|entry| match &entry.body {
                Body::Host(row) => Some(&**row),
                _ => None,
            });
            add_host_columns(&mut columns, &rows.collect::<Vec<_>>())?;
        }
        RowTable::Order => {
            let rows = entries.iter().filter_map(|entry| match &entry.body {
                Body::Order(row) => Some(row),
                _ => None,
            });
            add_order_columns(&mut columns, &rows.collect::<Vec<_>>());
        }
        RowTable::Run => {
            let rows = entries.iter().filter_map(|entry| match &entry.body {
                Body::Run(row) => Some(&**row),
                _ => None,
            });
            activity::add_run_columns(&mut columns, &rows.collect::<Vec<_>>());
        }
        RowTable::Step => {
            let rows = entries.iter().filter_map(|entry| match &entry.body {
                Body::Steps(row) => Some(&**row),
                _ => None,
            });
            activity::add_step_columns(&mut columns, &rows.collect::<Vec<_>>())?;
        }
        RowTable::Event => {
            let rows = entries.iter().filter_map(|entry| match &entry.body {
                Body::Event(row) => Some(&**row),
                _ => None,
            });
            activity::add_event_columns(&mut columns, &rows.collect::<Vec<_>>());
        }
    }
    RecordBatch::try_from_iter_with_nullable(columns)
}

fn add_gpu_columns(columns: &mut Vec<Column>, rows: &[&GpuInterval]) -> Result<(), ArrowError> {
    let each = || rows.iter().copied();
    let number = |value: fn(&GpuInterval) -> Option<u64>| -> ArrayRef {
        Arc::new(each().map(value).collect::<UInt64Array>())
    };
    let real = |value: &dyn Fn(&GpuInterval) -> Option<f64>| -> ArrayRef {
        Arc::new(each().map(value).collect::<Float64Array>())
    };
    add_interval(columns, each().map(|row| (row.start_unix_s, row.length_s)));
    columns.extend([
        ("index", small(each().map(|row| Some(row.index))), false),
        ("uuid", text(each().map(|row| row.uuid.as_str())), false),
        ("model", text(each().map(|row| row.model.as_str())), false),
        ("instance", small(each().map(|row| row.instance)), true),
        ("observed_s", real(&|row| Some(row.observed_s)), false),
        ("reads", number(|row| Some(row.reads)), false),
        ("suspect", number(|row| Some(row.suspect)), false),
    ]);
    columns.extend(runs(rows)?);
    for name in SUMS {
        columns.push((name, real(&|row| row.sums.get(name).copied()), true));
    }
    let others = each().map(|row| {
        let is_other = |name: &str| !SUMS.contains(&name);
        row.sums.iter().filter(move |(name, _)| is_other(name))
    });
    columns.extend([
        ("sums", map::<Float64Type, _>(others)?, false),
        ("throttle_s", map::<Float64Type, _>(each().map(|row| row.throttle_s.iter()))?, false),
        ("errors", map::<UInt64Type, _>(each().map(|row| row.errors.iter()))?, false),
        ("memory_used", number(|row| row.memory_used), true),
        ("memory_used_max", number(|row| row.memory_used_max), true),
        ("power_max_w", real(&|row| row.power_max_w), true),
        ("temperature_max", real(&|row| row.temperature_max), true),
    ]);
    Ok(())
}

fn add_host_columns(columns: &mut Vec<Column>, rows: &[&HostInterval]) -> Result<(), ArrowError> {
    let each = || rows.iter().copied();
    let reals = |maps: fn(&HostInterval) -> &BTreeMap<String, f64>| {
        map::<Float64Type, _>(each().map(|row| maps(row).iter()))
    };
    let memory = |value: fn(&HostInterval) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(each().map(value)))
    };
    let observed = Float64Array::from_iter_values(each().map(|row| row.observed_s));
    let lengths = each().map(|row| row.cores_busy.len());
    let cores = each().flat_map(|row| row.cores_busy.iter().copied());
    let item = Arc::new(Field::new("item", DataType::Float64, false));
    let cores = Arc::new(Float64Array::from_iter_values(cores));
    let cores = ListArray::try_new(item, OffsetBuffer::from_lengths(lengths), cores, None)?;
    add_interval(columns, each().map(|row| (row.start_unix_s, row.length_s)));
    columns.extend([
        ("observed_s", Arc::new(observed) as ArrayRef, false),
        ("cpu_s", reals(|row| &row.cpu_s)?, false),
        ("cores_busy", Arc::new(cores), false),
        ("pressure_s", reals(|row| &row.pressure_s)?, false),
        ("memory_total", memory(|row| row.memory_total), false),
        ("memory_available_min", memory(|row| row.memory_available_min), false),
        ("bytes", map::<UInt64Type, _>(each().map(|row| row.bytes.iter()))?, false),
        ("group_cpu_s", reals(|row| &row.group_cpu_s)?, false),
    ]);
    Ok(())
}

fn add_order_columns(columns: &mut Vec<Column>, rows: &[&OrderState]) {
    let ids = UInt64Array::from_iter_values(rows.iter().map(|row| row.id));
    let over: BooleanArray = rows.iter().map(|row| Some(row.is_over)).collect();
    let messages: Vec<Vec<u8>> = rows.iter().map(|row| row.encode_to_vec()).collect();
    columns.extend([
        ("id", Arc::new(ids) as ArrayRef, false),
        ("token", text(rows.iter().map(|row| row.token.as_str())), false),
        ("is_over", Arc::new(over), false),
        ("error", text(rows.iter().map(|row| row.error.as_str())), false),
        ("message", binary(messages.iter().map(Vec::as_slice)), false),
    ]);
}

/// The name of a column of a run, and the function that gives its text.
type RunColumn = (&'static str, fn(&GpuRun) -> String);

/// Returns the columns of the first run of each GPU, and of the further runs that share it. Most
/// GPUs have one run, and flat columns are read several times faster than lists.
fn runs(rows: &[&GpuInterval]) -> Result<Vec<Column>, ArrowError> {
    let members: [RunColumn; 5] = [
        ("run", |run| format!("{}/{}", run.scheduler, run.job)),
        ("workflow", |run| run.name.clone()),
        ("user", |run| run.user.clone()),
        ("account", |run| run.account.clone()),
        ("partition", |run| run.partition.clone()),
    ];
    let first = |member: fn(&GpuRun) -> String| -> ArrayRef {
        Arc::new(rows.iter().map(|row| row.runs.first().map(member)).collect::<StringArray>())
    };
    let mut columns: Vec<Column> =
        members.iter().map(|(name, member)| (*name, first(*member), true)).collect();
    let further = || rows.iter().map(|row| row.runs.get(1..).unwrap_or_default());
    let fields: Fields =
        members.iter().map(|(name, _)| Field::new(*name, DataType::Utf8, false)).collect();
    let texts = |(_, member): &RunColumn| -> ArrayRef {
        Arc::new(further().flatten().map(|run| Some(member(run))).collect::<StringArray>())
    };
    let structs = StructArray::try_new(fields.clone(), members.iter().map(texts).collect(), None)?;
    let item = Arc::new(Field::new("item", DataType::Struct(fields), false));
    let offsets = OffsetBuffer::from_lengths(further().map(<[_]>::len));
    let is_shared = further().map(|runs| !runs.is_empty()).collect();
    let list = ListArray::try_new(item, offsets, Arc::new(structs), Some(is_shared))?;
    columns.push((FURTHER_RUNS, Arc::new(list), true));
    Ok(columns)
}
