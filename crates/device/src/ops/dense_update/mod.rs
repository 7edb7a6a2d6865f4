//! The operation `dense_update`.
