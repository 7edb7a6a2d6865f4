//! The shape of a dot interaction, and the pairs that its output contains.

use schema::TriangleOrder;

/// The shape of a dot interaction, on the CPU and on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub b: usize,
    /// Number F of pooled vectors per sample, without the dense vector.
    pub features: usize,
    /// Whether a sample has a dense vector. Without a dense vector, the output of the sample
    /// consists of the pairs only.
    pub dense: bool,
    /// Number D of elements in a vector.
    pub dim: usize,
    /// Order of the pairs in the output.
    pub order: TriangleOrder,
    /// Whether the product of each vector with itself is kept.
    pub itself: bool,
}

impl Shape {
    /// Returns the number of vectors per sample: F + 1, or F without a dense vector.
    #[must_use]
    pub fn vectors(&self) -> usize {
        self.features + usize::from(self.dense)
    }

    /// Returns the number of output elements before the pairs: D, or 0 without a dense vector.
    #[must_use]
    pub fn dense_width(&self) -> usize {
        if self.dense { self.dim } else { 0 }
    }

    /// Returns the number of elements of a sample's pooled vectors, F·D.
    #[must_use]
    pub fn pooled_width(&self) -> usize {
        self.features * self.dim
    }

    /// Returns the number of elements of a sample's output: the dense width plus the kept pairs.
    #[must_use]
    pub fn width(&self) -> usize {
        let vectors = self.vectors();
        let partners = if self.itself { vectors + 1 } else { vectors.saturating_sub(1) };
        self.dense_width() + vectors * partners / 2
    }

    /// Returns the second vectors of the pairs `(i, ·)`, in the order of the output.
    #[must_use]
    pub fn partners(&self, i: usize) -> std::ops::Range<usize> {
        let itself = usize::from(self.itself);
        match self.order {
            TriangleOrder::Lower => 0..i + itself,
            TriangleOrder::Upper => i + 1 - itself..self.vectors(),
        }
    }

    /// Returns vector `i` of sample `sample`. If there is a dense vector, it is vector 0. The
    /// other vectors are pooled.
    #[inline(always)]
    pub(crate) fn vector<'a, R>(
        &self,
        sample: usize,
        [dense, pooled]: [&'a [R]; 2],
        i: usize,
    ) -> &'a [R] {
        match i.checked_sub(usize::from(self.dense)) {
            None => &dense[sample * self.dim..][..self.dim],
            Some(i) => &pooled[(sample * self.features + i) * self.dim..][..self.dim],
        }
    }

    /// Returns all kept pairs in the order of the output.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..self.vectors()).flat_map(|i| self.partners(i).map(move |j| (i, j)))
    }
}
