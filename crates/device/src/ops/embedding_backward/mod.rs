//! Gradients of pooled lookups, summed per row and applied in place.
