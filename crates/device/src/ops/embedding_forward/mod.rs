//! Pooled lookup of all tables in one call.
