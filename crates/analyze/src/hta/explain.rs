//! Why the figures of Holistic Trace Analysis are not ours, as data.

use serde::Serialize;
use trace::store::EventKind;

use super::{View, ViewRow};

/// A table of that tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HtaTable {
    Temporal,
    Idle,
    Overlap,
    /// The types of `get_gpu_kernel_breakdown`.
    KernelTypes,
    /// The names of `get_gpu_kernel_breakdown`.
    Kernels,
    Launches,
    Queue,
}

/// A way in which that tool's table differs from our analysis of the same matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub table: HtaTable,
    /// What that tool does.
    pub hta: &'static str,
    pub rowmill: &'static str,
    /// How many rows of these traces it touches; `None` where it is not a matter of rows.
    pub row_count: Option<u64>,
}

/// What a difference is, and the rows it touches.
struct Cause {
    hta: &'static str,
    rowmill: &'static str,
    touches: Option<fn(&View<'_>) -> u64>,
}

const ROUNDING: Cause = Cause {
    hta: "rounds starts up and ends down to microseconds; short rows get a negative duration",
    rowmill: "keeps nanoseconds",
    touches: Some(|view| rows(view, |row| !is_whole(view, row))),
};
const TRIMMING: Cause = Cause {
    hta: "keeps what was launched before the last profiler step, the first step included",
    rowmill: "takes the whole steps; `--window hta` selects the same rows",
    touches: Some(|view| {
        let kept = view.device.len() as u64;
        let device = |row: &u32| view.trace.slices.stream(*row).is_some_and(|stream| stream != -1);
        (view.trace.rows().filter(device).count() as u64).saturating_sub(kept)
    }),
};
const SYNC: Cause = Cause {
    hta: "counts waits (cuda_sync) of a stream as busy, and lets them widen the span",
    rowmill: "counts kernels, copies and sets",
    touches: Some(|view| rows(view, |row| view.trace.kind(row.row) == EventKind::Sync)),
};
const OPERATOR: Cause = Cause {
    hta: "counts every row that carries an argument `stream`, such as operators of Triton, as \
          device work",
    rowmill: "counts kernels, copies and sets",
    touches: Some(|view| {
        rows(view, |row| {
            let kind = view.trace.kind(row.row);
            kind != EventKind::Sync && !kind.is_device_work()
        })
    }),
};
const NAMES: Cause = Cause {
    hta: "classifies by the beginning of the name: `hip…` is communication, a kernel with `Sync` \
          or `dma` in its name is nothing",
    rowmill: "classifies by category, collective arguments and known names; `--classify hta` \
              takes the same classes",
    touches: None,
};
const DUPLICATE: Cause = Cause {
    hta: "repeats a device row for every host row of its correlation id when it drops steps",
    rowmill: "counts each row once",
    touches: Some(|view| rows(view, |row| row.copies > 1)),
};
const POOLED: Cause = Cause {
    hta: "takes all devices of a file together",
    rowmill: "can also tell them apart",
    touches: None,
};
const PREVIOUS: Cause = Cause {
    hta: "measures gaps from the previous row's end; rows of one stream that overlap give \
          negative gaps",
    rowmill: "measures gaps of the stream's union",
    touches: None,
};
const FIRST_EVENT: Cause = Cause {
    hta: "takes the first event of the file for the call of a row whose call was not recorded",
    rowmill: "knows no call for it",
    touches: Some(|view| {
        rows(view, |row| {
            view.trace.slices.correlation(row.row).is_some() && !view.is_linked(row.row)
        })
    }),
};
const STREAM_END: Cause = Cause {
    hta: "counts from a stream's first row to its last",
    rowmill: "counts the whole window: what lies before and behind is `head` and `tail`",
    touches: None,
};
const OTHERS: Cause = Cause {
    hta: "puts each total in the columns max, min and mean, and 0 or nonsense in stddev, once a \
          class has more names than asked for; this is the table before that",
    rowmill: "keeps each name's figures",
    touches: None,
};
const RUNTIME_ONLY: Cause = Cause {
    hta: "knows cudaLaunchKernel, cudaLaunchKernelExC, cudaMemcpyAsync and cudaMemsetAsync only: \
          no driver call, no graph, nothing of AMD",
    rowmill: "knows every call that device work is linked to",
    touches: None,
};
const CLIPPED: Cause = Cause {
    hta: "takes a start before the call's end as a delay of 0",
    rowmill: "keeps it negative, and counts such work",
    touches: None,
};
const KNOWN_LAUNCHES: Cause = Cause {
    hta: "knows twelve names of calls: no graph, no cooperative and no synchronous one",
    rowmill: "knows every call that device work is linked to",
    touches: None,
};
const CHANGES: Cause = Cause {
    hta: "describes the values at changes, not weighted by time; mean and deviation depend on an \
          unstable sort and are left out here",
    rowmill: "weights by time, and counts a graph's work once",
    touches: None,
};

/// In what the tables of these views differ from our own analyses, table by table.
pub fn explain(views: &[View<'_>]) -> Vec<Difference> {
    use HtaTable::{Idle, KernelTypes, Kernels, Launches, Overlap, Queue, Temporal};
    // Copies touch unions only where rounding makes them negative.
    let unions: [&Cause; 5] = [&ROUNDING, &TRIMMING, &OPERATOR, &NAMES, &POOLED];
    let busy: [&Cause; 6] = [&ROUNDING, &TRIMMING, &SYNC, &OPERATOR, &NAMES, &POOLED];
    let idle: [&Cause; 6] =
        [&ROUNDING, &TRIMMING, &PREVIOUS, &STREAM_END, &FIRST_EVENT, &DUPLICATE];
    let kernels: [&Cause; 6] = [&ROUNDING, &TRIMMING, &OPERATOR, &NAMES, &DUPLICATE, &OTHERS];
    let launches: [&Cause; 5] = [&ROUNDING, &TRIMMING, &RUNTIME_ONLY, &CLIPPED, &DUPLICATE];
    let queue: [&Cause; 5] = [&ROUNDING, &TRIMMING, &KNOWN_LAUNCHES, &CHANGES, &DUPLICATE];
    let tables: [(HtaTable, &[&Cause]); 7] = [
        (Temporal, &busy),
        (Idle, &idle),
        (Overlap, &unions),
        (KernelTypes, &unions),
        (Kernels, &kernels),
        (Launches, &launches),
        (Queue, &queue),
    ];
    let of = |(table, causes): &(HtaTable, &[&Cause])| -> Vec<Difference> {
        causes.iter().map(|cause| difference(*table, cause, views)).collect()
    };
    tables.iter().flat_map(of).collect()
}

fn difference(table: HtaTable, cause: &Cause, views: &[View<'_>]) -> Difference {
    let row_count = cause.touches.map(|touches| views.iter().map(touches).sum());
    Difference { table, hta: cause.hta, rowmill: cause.rowmill, row_count }
}

fn rows(view: &View<'_>, is_touched: impl Fn(&ViewRow) -> bool) -> u64 {
    view.device.iter().filter(|row| is_touched(row)).count() as u64
}

/// Whether a row begins and ends with a microsecond.
fn is_whole(view: &View<'_>, row: &ViewRow) -> bool {
    let slices = &view.trace.slices;
    let start = slices.start(row.row) - view.trace.header.base_time_ns;
    start % super::MICROSECOND == 0 && slices.duration[row.row as usize] % super::MICROSECOND == 0
}
