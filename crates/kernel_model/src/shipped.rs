//! Loads the models that are shipped with rowmill.
//!
//! The models are trained on NeuSight's measurements (MIT license) of five devices, with 7,000 to
//! 88,000 rows per kind.

use super::{Error, KernelModel, Kind};

/// Loads the shipped model of a kind.
///
/// # Errors
/// [`Error::Model`] if the file was written by another version of rowmill.
pub fn model(kind: Kind) -> Result<KernelModel, Error> {
    KernelModel::from_bytes(match kind {
        Kind::Linear => include_bytes!("../models/linear.kernels"),
        Kind::Bmm => include_bytes!("../models/bmm.kernels"),
        Kind::Conv => include_bytes!("../models/conv.kernels"),
        Kind::LayerNorm => include_bytes!("../models/layer_norm.kernels"),
        Kind::Softmax => include_bytes!("../models/softmax.kernels"),
        Kind::ElementWise => include_bytes!("../models/element_wise.kernels"),
    })
}
