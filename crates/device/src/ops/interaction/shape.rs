//! The shape of an interaction, and the pairs that its output contains.

use schema::TriangleOrder;

/// The shape of an interaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub b: usize,
    /// Number F of pooled vectors of a sample, without the dense vector.
    pub features: usize,
    /// Whether a sample has a dense vector. Without one, its output consists of the pairs only.
    pub dense: bool,
    /// D, elements of a vector.
    pub dim: usize,
    /// Order of the pairs.
    pub order: TriangleOrder,
    /// Whether the product of each vector with itself is kept.
    pub itself: bool,
}

impl Shape {
    /// F + 1, or F without a dense vector.
    #[must_use]
    pub fn vectors(&self) -> usize {
        self.features + usize::from(self.dense)
    }

    /// D, or 0 without a dense vector: the elements of the output before the pairs.
    #[must_use]
    pub fn dense_width(&self) -> usize {
        if self.dense { self.dim } else { 0 }
    }

    /// F·D, the elements of a sample's pooled vectors.
    #[must_use]
    pub fn pooled_width(&self) -> usize {
        self.features * self.dim
    }

    /// The dense width plus the number of kept pairs, the elements of a sample's output.
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

    /// Returns vector `i` of sample `sample`. With a dense vector, vector 0 is the dense one; the
    /// others are pooled.
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

    /// All kept pairs in the order of the output.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..self.vectors()).flat_map(|i| self.partners(i).map(move |j| (i, j)))
    }
}
