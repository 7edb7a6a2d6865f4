//! The two kinds of device.

use super::{emulated, native};

pub(super) enum Machine {
    Native(native::Device),
    Emulated(emulated::Device),
}
