//! The two kinds of device.

use super::{emulated, native};

pub(super) enum GpuMachine {
    Native(native::NativeDevice),
    Emulated(emulated::EmulatedDevice),
}
