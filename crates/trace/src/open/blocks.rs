//! A text handed out block by block. Knows neither where it comes from nor what it says.

pub use crate::format::kineto::read::Blocks;
