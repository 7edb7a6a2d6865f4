//! Selects measured kernels that resemble layers of real models, because intervals must hold for
//! those rather than for random shapes.

use super::measured::Measured;
use super::work::{Kind, Work};

/// Number of rows that are selected for each layer.
const NEAREST: usize = 12;

/// Sizes of layers, in the order of [`Kind::sizes`], of DLRMs at batches of 512 to 8,192, of
/// transformers of the sizes of BERT and GPT-2, and of ResNet and VGG.
fn layers(kind: Kind) -> impl Iterator<Item = Vec<u64>> {
    let layers = match kind {
        Kind::Linear => {
            "2048 512 13, 2048 256 512, 2048 128 256, 2048 1024 479, 8192 1024 1024, 2048 512 1024, \
             512 256 512, 512 64 256, 4096 768 768, 4096 2304 768, 4096 3072 768, 4096 768 3072, \
             2048 1024 1024, 2048 4096 1024, 2048 1024 4096, 1024 1600 1600, 1024 6400 1600"
        }
        Kind::Bmm => {
            "512 9 9 64, 512 27 27 64, 512 27 27 128, 512 27 128 27, 96 512 512 64, 96 512 64 512, \
             192 128 128 64, 192 128 64 128, 16 1024 1024 64, 16 1024 64 1024, 128 256 256 64, \
             128 256 64 256"
        }
        Kind::Conv => {
            "32 64 64 3 56 1 1, 32 128 128 3 28 1 1, 32 256 256 3 14 1 1, 32 512 512 3 7 1 1, \
             16 64 64 3 224 1 1, 16 64 128 3 112 1 1, 16 128 128 3 112 1 1, 16 128 256 3 56 1 1, \
             16 256 256 3 56 1 1, 16 512 512 3 28 1 1, 16 512 512 3 14 1 1"
        }
        Kind::LayerNorm => {
            "4096 768, 16384 768, 4096 1024, 16384 1024, 2048 1600, 8192 512, 2048 4096"
        }
        Kind::Softmax => "12288 128, 24576 256, 12288 512, 49152 512, 16384 1024, 4096 2048",
        Kind::ElementWise => "524288, 1048576, 2097152, 3145728, 6422528, 12582912, 25690112",
    };
    let sizes =
        |layer: &str| layer.split_whitespace().filter_map(|size| size.parse().ok()).collect();
    layers.split(',').map(sizes)
}

/// Selects the rows of one kind whose sizes are nearest to those of layers, in the order of `rows`.
pub fn resembles_layers<'a>(rows: &[&'a Measured]) -> Vec<&'a Measured> {
    let Some(first) = rows.first() else { return Vec::new() };
    let mut is_selected = vec![false; rows.len()];
    for layer in layers(first.work.kind()) {
        let mut nearest: Vec<(f64, usize)> =
            rows.iter().enumerate().map(|(at, row)| (distance(&row.work, &layer), at)).collect();
        nearest.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        nearest.iter().take(NEAREST).for_each(|(_, at)| is_selected[*at] = true);
    }
    rows.iter()
        .zip(is_selected)
        .filter(|(_, is_selected)| *is_selected)
        .map(|(row, _)| *row)
        .collect()
}

/// Computes the distance of the logarithms of sizes.
fn distance(work: &Work, layer: &[u64]) -> f64 {
    let log = |size: u64| (size as f64).max(0.5).ln();
    work.sizes().iter().zip(layer).map(|(a, b)| (log(*a) - log(*b)).powi(2)).sum()
}
