//! The published steps. Figures are the vendors', descriptions are ours.

use schema::topology::ProductFormat::{self, Bf16, F16, F32, Tf32};

use super::jobs::PublishedModel::{Dcnv2, Large, Small};
use super::jobs::PublishedPlan::{OneRank, RowsByOwner, TableRow, TablesBesideBottomMlp};
use super::{PublishedJob, PublishedStep};
use predict::step::DenseKernels::{Compiled, Eager, FusedInteraction};
use predict::step::RowUpdates;
use predict::step::host::DenseUpdateCalls;

const PYTORCH: &str = "NVIDIA DeepLearningExamples, PyTorch DLRM, April 2020";
const TENSORFLOW: &str = "NVIDIA DeepLearningExamples, TensorFlow 2 DLRM";
const SOK: &str = "HugeCTR sparse operation kit";
const TORCHREC: &str = "TorchRec on MLPerf's DLRM-DCNv2";
const TORCHREC_OPTIMIZED: &str = "TorchRec on MLPerf's DLRM-DCNv2, optimized";
const MLPERF_RECORD: &str = "MLPerf's record of DLRM-DCNv2 at that time";

/// NVIDIA's job runs the whole interaction in one kernel of its own, and XLA fuses element-wise
/// operations.
const ONE_GPU: PublishedJob = PublishedJob {
    source: TENSORFLOW,
    model: Small,
    batch_size: 65_536,
    kernels: FusedInteraction,
    row_updates: RowUpdates::Scatter,
    dense_updates: DenseUpdateCalls::ByLayer,
    plan: OneRank,
    is_judged: true,
};
const ONE_HOST: PublishedJob =
    PublishedJob { model: Large, plan: TablesBesideBottomMlp, ..ONE_GPU };
const SOK_JOB: PublishedJob =
    PublishedJob { source: SOK, kernels: Compiled, plan: RowsByOwner, ..ONE_HOST };
const SOK_FUSED: PublishedJob = PublishedJob { kernels: FusedInteraction, ..SOK_JOB };
const PYTORCH_JOB: PublishedJob = PublishedJob {
    source: PYTORCH,
    batch_size: 32_768,
    kernels: Eager,
    row_updates: RowUpdates::Fused,
    is_judged: false,
    ..ONE_GPU
};
const DCNV2_JOB: PublishedJob = PublishedJob {
    source: TORCHREC,
    model: Dcnv2,
    batch_size: 65_536,
    kernels: Eager,
    row_updates: RowUpdates::Fused,
    dense_updates: DenseUpdateCalls::Grouped,
    plan: TableRow,
    is_judged: false,
};

impl PublishedJob {
    const fn at(
        self,
        hardware: &'static str,
        format: ProductFormat,
        samples_per_s: f64,
    ) -> PublishedStep {
        let step_ns = 1e9 * self.batch_size as f64 / samples_per_s;
        self.in_ns(hardware, format, step_ns)
    }

    const fn in_ns(
        self,
        hardware: &'static str,
        format: ProductFormat,
        step_ns: f64,
    ) -> PublishedStep {
        PublishedStep { job: self, hardware, format, step_ns }
    }
}

/// The published steps of all sources, in the order of the table.
pub static STEPS: [PublishedStep; 21] = [
    PYTORCH_JOB.at("v100-sxm2", F32, 494e3),
    PYTORCH_JOB.at("v100-sxm2", F16, 875e3),
    ONE_GPU.at("v100-sxm2", F32, 663e3),
    ONE_GPU.at("v100-sxm2", F16, 2.23e6),
    ONE_GPU.at("v100-sxm3", F32, 698e3),
    ONE_GPU.at("v100-sxm3", F16, 2.44e6),
    ONE_GPU.at("a100-sxm4-80gb", Tf32, 2.84e6),
    ONE_GPU.at("a100-sxm4-80gb", F16, 4.55e6),
    ONE_HOST.at("dgx-1", F32, 3.13e6),
    ONE_HOST.at("dgx-1", F16, 6.31e6),
    ONE_HOST.at("dgx-2x8", F32, 3.79e6),
    ONE_HOST.at("dgx-2x8", F16, 7.82e6),
    ONE_HOST.at("dgx-2", F32, 6.43e6),
    ONE_HOST.at("dgx-2", F16, 10.5e6),
    SOK_JOB.in_ns("dgx-1", F32, 18.04e6),
    SOK_JOB.in_ns("dgx-1", F16, 12.10e6),
    SOK_FUSED.in_ns("dgx-1", F32, 16.42e6),
    SOK_FUSED.in_ns("dgx-1", F16, 9.56e6),
    DCNV2_JOB.in_ns("16xdgx-h100", Bf16, 7.6e6),
    PublishedJob { source: TORCHREC_OPTIMIZED, ..DCNV2_JOB }.in_ns("16xdgx-h100", Bf16, 3.4e6),
    PublishedJob { source: MLPERF_RECORD, ..DCNV2_JOB }.in_ns("16xdgx-h100", Bf16, 2.3e6),
];
