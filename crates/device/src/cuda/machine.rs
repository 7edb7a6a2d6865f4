//! The two kinds of device.

use super::{emulated, native};

pub(super) enum GpuMachine {
    Native(Box<native::NativeDevice>),
    Emulated(emulated::EmulatedDevice),
}
