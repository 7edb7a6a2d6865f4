//! One matrix product `C = A B` or `C += A B` on the pool: the tile grid, and the call of the
//! `gemm` crate. Knows nothing of layers; strides say which matrix is transposed.

use crate::cpu::Cpu;

/// Columns of a tile are a multiple of this: the widest register tile of the `gemm` crate.
const COLUMN_UNIT: usize = 48;
/// Rows of a tile are a multiple of this.
const ROW_UNIT: usize = 16;
/// Below this many FLOPs a tile costs more to hand out than it gains.
const MIN_TILE_FLOPS: usize = 1 << 22;

/// A matrix read in place: element `(i, j)` is `data[i · row_stride + j · column_stride]`.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// `data` is `[rows, columns]`, row-major.
    pub(super) fn new(data: &'a [f32], columns: usize) -> Self {
        Self { data, row_stride: columns, column_stride: 1 }
    }

    /// The transpose of `data` `[columns, rows]`, row-major.
    pub(super) fn transposed(data: &'a [f32], rows: usize) -> Self {
        Self { data, row_stride: 1, column_stride: rows }
    }

    fn holds(&self, rows: usize, columns: usize) -> bool {
        rows == 0
            || columns == 0
            || (rows - 1) * self.row_stride + (columns - 1) * self.column_stride < self.data.len()
    }
}

/// What the product's destination holds before the product is added.
#[derive(Clone, Copy)]
pub(super) enum Start<'a> {
    /// Zero: the destination is overwritten.
    Zero,
    /// This row in every row: the destination is overwritten.
    Row(&'a [f32]),
    /// What it holds already.
    Kept,
}

/// How far a product may be cut up.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// Least rows of a tile.
    pub(super) rows: usize,
    /// Least columns of a tile.
    pub(super) columns: usize,
    /// Most tiles.
    pub(super) tiles: usize,
}

/// `C = start + A B` with `a` `[m, inner]`, `b` `[inner, n]` and `c` `[m, n]` row-major.
pub(super) struct Product<'a> {
    pub(super) a: Matrix<'a>,
    pub(super) b: Matrix<'a>,
    pub(super) start: Start<'a>,
    pub(super) c: &'a mut [f32],
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) inner: usize,
    /// What is worth its packing. A tile packs its columns of `b`, and its rows of `a` where `a` is
    /// transposed; each packing serves the other extent.
    pub(super) cut: Cut,
}

/// The start of the destination, shared by the tiles. (A tile is no slice: its rows lie apart.)
struct Destination(*mut f32);

#[expect(unsafe_code, reason = "tiles of one matrix are strided, so slices cannot part them")]
// SAFETY: only `multiply_tile` writes through it, and each tile of a grid is its own rectangle.
unsafe impl Sync for Destination {}

impl Destination {
    fn at(&self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}

/// How the destination is cut; depends on the problem alone, so any thread count gives the same
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grid {
    row_parts: usize,
    column_parts: usize,
}

impl Grid {
    fn new(product: &Product<'_>) -> Self {
        let flops = 2 * product.m * product.n * product.inner;
        let tiles = (flops / MIN_TILE_FLOPS).clamp(1, product.cut.tiles);
        let Cut { rows, columns, .. } = product.cut;
        let column_parts = (product.n / columns).clamp(1, tiles);
        let row_parts = (product.m / rows).clamp(1, tiles / column_parts);
        Self { row_parts, column_parts }
    }
}

/// Part `part` of `parts` even parts of `0..length`, cut at multiples of `unit`: (first, length).
fn part_of(length: usize, unit: usize, part: usize, parts: usize) -> (usize, usize) {
    let units = length.div_ceil(unit);
    let cut = |part: usize| (units * part / parts * unit).min(length);
    (cut(part), cut(part + 1) - cut(part))
}

/// Runs the product on the pool.
pub(super) fn run(cpu: &Cpu, product: &mut Product<'_>) {
    let Product { a, b, start, m, n, inner, .. } = *product;
    assert!(a.holds(m, inner) && b.holds(inner, n) && product.c.len() == m * n, "gemm: extents");
    let grid = Grid::new(product);
    let c = Destination(product.c.as_mut_ptr());
    cpu.pool.run(grid.row_parts * grid.column_parts, |tile| {
        let (row_part, column_part) = (tile / grid.column_parts, tile % grid.column_parts);
        let (row, rows) = part_of(m, ROW_UNIT, row_part, grid.row_parts);
        let (column, columns) = part_of(n, COLUMN_UNIT, column_part, grid.column_parts);
        if rows > 0 && columns > 0 {
            let tile = Tile { row, rows, column, columns };
            multiply_tile(tile, [a, b], start, &c, (n, inner));
        }
    });
}

#[derive(Clone, Copy)]
struct Tile {
    row: usize,
    rows: usize,
    column: usize,
    columns: usize,
}

#[expect(
    unsafe_code,
    reason = "tiles of one matrix are strided, and the gemm crate takes pointers"
)]
fn multiply_tile(
    tile: Tile,
    [a, b]: [Matrix<'_>; 2],
    start: Start<'_>,
    c: &Destination,
    (n, inner): (usize, usize),
) {
    let first = tile.row * n + tile.column;
    if let Start::Row(values) = start {
        for row in 0..tile.rows {
            let at = first + row * n;
            // SAFETY: `run` checked that c is [m, n]; this part of a row lies in this tile, and the
            // tiles of a grid do not overlap.
            let to = unsafe { std::slice::from_raw_parts_mut(c.at(at), tile.columns) };
            to.copy_from_slice(&values[tile.column..tile.column + tile.columns]);
        }
    }
    let a_tile = a.data.as_ptr().wrapping_add(tile.row * a.row_stride);
    let b_tile = b.data.as_ptr().wrapping_add(tile.column * b.column_stride);
    // SAFETY: `run` checked the extents of a, b and c, and the tile lies inside [m, n]; the tiles
    // of a grid do not overlap, so this thread alone touches its rectangle of c. Strides fit isize
    // because slices of that extent exist.
    unsafe {
        gemm::gemm(
            tile.rows,
            tile.columns,
            inner,
            c.at(first),
            1,
            n as isize,
            !matches!(start, Start::Zero),
            a_tile,
            a.column_stride as isize,
            a.row_stride as isize,
            b_tile,
            b.column_stride as isize,
            b.row_stride as isize,
            1.0f32,
            1.0f32,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::part_of;

    #[test]
    fn parts_cover_the_length_without_overlap() {
        for (length, unit, parts) in
            [(512, 48, 5), (13, 48, 1), (1, 16, 3), (479, 48, 4), (0, 16, 2)]
        {
            let mut next = 0;
            for part in 0..parts {
                let (first, len) = part_of(length, unit, part, parts);
                assert_eq!(first, next);
                next += len;
            }
            assert_eq!(next, length);
        }
    }
}
