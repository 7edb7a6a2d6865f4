//! The libraries whose state dicts are read and written.

use std::fmt;

/// The library that defines the names, shapes and column orders of a state dict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// facebookresearch/dlrm, `DLRM_Net` in `dlrm_s_pytorch.py`.
    Torch,
    /// TorchRec, `DLRM` and `DLRM_DCN` in `torchrec.models.dlrm`.
    Torchrec,
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torch => "facebookresearch/dlrm",
            Self::Torchrec => "torchrec",
        })
    }
}
