//! Tests that the results of both halves of an exchange on the emulated device are bit-identical
//! to those of the oracle.

use device::ops::exchange::cuda::{DeviceGiven, ExchangeKernel, Routes};
use device::ops::exchange::{GivenMatrices, OwnedColumns, PooledColumns, scalar};

use super::{Bench, benches, floats, random_sizes, same};

pub fn check_exchange(bench: &Bench) {
    let kernel = ExchangeKernel::load(&bench.driver).unwrap();
    let source = |rank, from, to, len, first| PooledColumns { rank, from, to, len, first };
    // Two ranks hold parts of split rows, and two other ranks hold split columns at other
    // positions. Rank 3 also sends columns that no source uses.
    let sources = [
        source(0, 2, 0, 5, true),
        source(1, 0, 0, 5, false),
        source(2, 0, 5, 3, true),
        source(1, 5, 8, 4, true),
        source(0, 0, 5, 2, false),
        source(2, 1, 10, 2, false),
        source(2, 0, 13, 1, true),
    ];
    let (widths, row) = ([7, 9, 3, 1], 14);
    let random = random_sizes([200]).into_iter().map(|[samples]| samples);
    for samples in [1, 70].into_iter().chain(random) {
        let matrices: Vec<Vec<f32>> =
            (1..).zip(widths).map(|(seed, width)| floats(seed, samples * width)).collect();
        for own in [0, 2] {
            let given =
                GivenMatrices { own: (own, &matrices[own]), others: &matrices, widths: &widths };
            let old = floats(9, samples * row);
            let mut expected = old.clone();
            for (sample, out) in expected.chunks_mut(row).enumerate() {
                scalar::assemble(&sources, &given, sample, out);
            }
            let routes = Routes::new(&bench.stream, &sources, &widths, row).unwrap();
            let mut others = matrices.concat();
            // The kernel must not read the rank's own matrix from `others`, so NaN replaces it
            // there.
            let before = samples * widths[..own].iter().sum::<usize>();
            others[before..before + samples * widths[own]].fill(f32::NAN);
            let (mine, others) = (bench.put(&matrices[own]), bench.put(&others));
            let given = DeviceGiven { own: (own, &mine), others: Some(&others), samples };
            let out = bench.put(&old);
            kernel.launch(&bench.stream, &routes, given, &out).unwrap();
            same("pooled", &bench.get(&out, samples * row), &expected);
        }
        check_gather(bench, &kernel, samples);
    }
}

fn check_gather(bench: &Bench, kernel: &ExchangeKernel, samples: usize) {
    let (row, width) = (11, 6);
    let columns = [(8, 0, 3), (0, 3, 2), (4, 5, 1)];
    let gradient = floats(3, samples * row);
    let mut expected = vec![0.0; samples * width];
    let taken = columns.map(|(from, to, len)| OwnedColumns { from, to, len });
    for (out, gradient) in expected.chunks_mut(width).zip(gradient.chunks(row)) {
        scalar::gather(&taken, gradient, out);
    }
    let sources = taken.map(|column| column.as_source());
    let routes = Routes::new(&bench.stream, &sources, &[row], width).unwrap();
    let (from, out) = (bench.put(&gradient), bench.room::<f32>(samples * width));
    let given = DeviceGiven { own: (0, &from), others: None, samples };
    kernel.launch(&bench.stream, &routes, given, &out).unwrap();
    same("gathered", &bench.get(&out, samples * width), &expected);
}

#[test]
fn exchanges_on_the_device_have_the_bytes_of_the_oracle() {
    benches().iter().for_each(check_exchange);
}
