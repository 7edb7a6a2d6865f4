//! Dispatches between the two kinds of device, a GPU and its emulator.

use super::{emulated, native};

/// The implementation behind a driver: a GPU, or its emulation on the host for tests.
pub(super) enum GpuMachine {
    Native(Box<native::NativeDevice>),
    Emulated(emulated::EmulatedDevice),
}
