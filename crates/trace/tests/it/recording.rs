//! Generates recordings, and reads the written files back.

use std::path::Path;

use schema::{GemmProduct, Nanos, Op, Optimizer, Pass, Precision};
use serde_json::Value;
use trace::{OpSpan, Recorder, RunInfo};

/// Facts about one rank of two, with plain names.
pub fn info() -> RunInfo {
    RunInfo {
        rank: 1,
        world_size: 2,
        backend: "threads".to_owned(),
        pid: 4711,
        main_tid: 4712,
        host: "mill".to_owned(),
        threads: 4,
        device: "Test CPU".to_owned(),
        base_time_ns: 1_700_000_000_000_000_000,
    }
}

/// Creates a span from its four times in nanoseconds.
pub fn span(op: Op, [start, kernel_start, kernel_end, end]: [i64; 4]) -> OpSpan {
    OpSpan {
        op,
        stage: None,
        start: Nanos(start),
        kernel_start: Nanos(kernel_start),
        kernel_end: Nanos(kernel_end),
        end: Nanos(end),
    }
}

/// Lists one operation of every kind, with every optional field.
pub fn all_ops() -> Vec<Op> {
    let (forward, backward) = (Pass::Forward, Pass::Backward);
    let gemm = |product| Op::Gemm { product, precision: Precision::F32, m: 4, n: 8, k: 16 };
    vec![
        Op::InputWait { batch_size: 4 },
        Op::InputDist { ids: 40 },
        Op::EmbeddingForward {
            bags: 8,
            ids: 40,
            elements: 320,
            pooled_elements: 64,
            row_bytes: 1280,
        },
        Op::OutputDist { elements: 64 },
        gemm(GemmProduct::Forward),
        Op::Pack { elements: 32 },
        Op::Interaction { batch_size: 4, vectors: 3, dim: 8, pass: forward },
        Op::Concat { elements: 96, pass: forward },
        Op::Cross { elements: 32, pass: forward },
        Op::Loss { batch_size: 4 },
        Op::Cross { elements: 32, pass: backward },
        Op::Concat { elements: 96, pass: backward },
        Op::Interaction { batch_size: 4, vectors: 3, dim: 8, pass: backward },
        Op::ReluBackward { elements: 32 },
        gemm(GemmProduct::BackwardWeight),
        gemm(GemmProduct::BackwardInput),
        Op::GradientDist { elements: 64 },
        Op::EmbeddingBackward {
            ids: 40,
            unique_rows: 30,
            elements: 320,
            unique_elements: 240,
            unique_row_bytes: 960,
            pooled_elements: 64,
            optimizer: Optimizer::RowwiseAdagrad,
        },
        Op::AllReduce { elements: 128 },
        Op::DenseUpdate { elements: 128, packed: 128, optimizer: Optimizer::Sgd },
    ]
}

/// Records steps 10, 11, … Each step has all operations once, `gap` ns apart.
pub fn regular(info: RunInfo, steps: u64, gap: i64) -> Recorder {
    let mut recorder = Recorder::new(info);
    let mut now = 5_000;
    for step in 10..10 + steps {
        recorder.begin_step(step, Nanos(now));
        for (index, op) in all_ops().into_iter().enumerate() {
            let length = 1_000 + 137 * index as i64;
            recorder.push(span(op, [now, now + 301, now + 301 + length, now + 401 + length]));
            now += 401 + length + gap;
        }
        recorder.end_step(Nanos(now));
        now += gap;
    }
    recorder
}

/// Reads a file as JSON.
pub fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}
