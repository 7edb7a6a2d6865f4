//! The emulated device: host memory with red zones, kernels compiled from the same source as C++,
//! and launches that report every violation. `runtime.cpp` runs the threads of a block and checks
//! their accesses.

mod compile;
mod ffi;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::emulation::{BlockOrder, Checks, Emulation};
use super::error::{DriverError, Fault, FaultKind, SourceLine};
use super::grid::CheckedGrid;
use super::source::KernelSource;

pub(super) use ffi::{Entry, KernelLibrary};

/// Size of the guard zone before and after each buffer. Kernels must not write to it.
const RED_ZONE: usize = 1024;
/// Largest number of threads in a block.
const THREADS_LIMIT: u32 = 1024;

/// The emulated device: its memory and its compiled kernels.
pub(super) struct EmulatedDevice {
    emulation: Emulation,
    memory: Mutex<EmulatedMemory>,
    libraries: Mutex<Vec<(&'static str, Arc<KernelLibrary>)>>,
}

/// All buffers of the emulated device.
#[derive(Default)]
struct EmulatedMemory {
    buffers: Vec<ffi::Allocation>,
    /// Number of the launch, by which `runtime.cpp` distinguishes accesses of this launch from
    /// accesses of earlier launches (`Task`).
    stamp: u32,
    /// Number of launches of each kernel.
    launches: BTreeMap<&'static str, u64>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EmulatedDevice {
    /// Creates an emulated device without memory or kernels. Kernels are compiled at first use.
    pub fn new(emulation: Emulation) -> Self {
        Self { emulation, memory: Mutex::default(), libraries: Mutex::default() }
    }

    /// Returns the bytes of shared memory that a block may use on this device.
    pub fn shared_limit(&self) -> usize {
        self.emulation.shared_limit
    }

    /// Returns the library of a kernel source, which is compiled and loaded at first use.
    pub fn library(&self, source: KernelSource) -> Result<Arc<KernelLibrary>, DriverError> {
        let mut libraries = locked(&self.libraries);
        if let Some((_, library)) = libraries.iter().find(|(name, _)| *name == source.name) {
            return Ok(Arc::clone(library));
        }
        let replaced = self.emulation.replaced.iter().find(|(name, _)| *name == source.name);
        let text = replaced.map_or(source.text, |(_, text)| text);
        if self.emulation.checks == Checks::Sanitizers && !ffi::has_sanitizer() {
            let problem = "AddressSanitizer's library was not loaded before the program".to_owned();
            return Err(DriverError::Cache { path: "LD_PRELOAD".into(), problem });
        }
        let path = compile::compiled(&self.emulation, source.name, text)?;
        let library = KernelLibrary::open(&path)?;
        libraries.push((source.name, Arc::clone(&library)));
        Ok(library)
    }

    /// Allocates poisoned memory between red zones, so that later checks detect reads of
    /// uninitialized memory and writes out of bounds.
    pub fn alloc(&self, bytes: usize) -> Result<u64, DriverError> {
        let allocation = ffi::Allocation::new(bytes, RED_ZONE).ok_or(DriverError::OutOfMemory {
            bytes,
            free: 0,
            total: 0,
        })?;
        let address = allocation.address();
        locked(&self.memory).buffers.push(allocation);
        Ok(address)
    }

    /// Frees the buffer that begins at the address. An unknown address is ignored.
    pub fn free(&self, address: u64) {
        locked(&self.memory).buffers.retain(|buffer| buffer.address() != address);
    }

    /// Copies bytes from the host to an address of the device.
    pub fn upload(&self, address: u64, bytes: &[u8]) -> Result<(), DriverError> {
        self.each_part(address, bytes.len(), |part| part.copy_from_slice(bytes))
    }

    /// Copies bytes from an address of the device to the host.
    pub fn download(&self, address: u64, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.each_part(address, bytes.len(), |part| bytes.copy_from_slice(part))
    }

    /// Copies bytes within the device. The two ranges may overlap.
    pub fn copy(&self, [from, to]: [u64; 2], bytes: usize) -> Result<(), DriverError> {
        let mut kept = vec![0; bytes];
        self.download(from, &mut kept)?;
        self.upload(to, &kept)
    }

    /// Sets each byte of a range to the same value.
    pub fn fill(&self, address: u64, bytes: usize, byte: u8) -> Result<(), DriverError> {
        self.each_part(address, bytes, |part| part.fill(byte))
    }

    fn each_part(
        &self,
        address: u64,
        bytes: usize,
        work: impl FnOnce(&mut [u8]),
    ) -> Result<(), DriverError> {
        let mut memory = locked(&self.memory);
        let found = memory.buffers.iter_mut().find_map(|buffer| buffer.part(address, bytes));
        let missing = || DriverError::Extent {
            of: "a copy to a buffer that was freed".to_owned(),
            what: "bytes",
            expected: 0,
            got: bytes,
        };
        work(found.ok_or_else(missing)?);
        Ok(())
    }

    /// Returns the number of launches of each kernel so far.
    pub fn launches(&self) -> BTreeMap<&'static str, u64> {
        locked(&self.memory).launches.clone()
    }

    /// Runs a kernel to its end on the host, and reports its first fault as an error.
    pub fn launch(
        &self,
        entry: &Entry,
        name: &'static str,
        grid: CheckedGrid,
        arguments: Vec<u8>,
    ) -> Result<(), DriverError> {
        let extent = |what, expected, got| {
            Err(DriverError::Extent { of: format!("kernel {name}"), what, expected, got })
        };
        let [bytes, threads] = entry.shape();
        if bytes as usize != arguments.len() {
            return extent("bytes of its arguments", bytes as usize, arguments.len());
        }
        if grid.threads == 0 || grid.threads > threads.min(THREADS_LIMIT) {
            return extent("threads of a block, at most", threads as usize, grid.threads as usize);
        }
        let (declared, dynamic) = (entry.declared_shared(), grid.shared_bytes as usize);
        if declared + dynamic > self.shared_limit() {
            let what = "bytes of shared memory of a block, declared and dynamic, at most";
            return extent(what, self.shared_limit(), declared + dynamic);
        }
        let blocks = grid.blocks.iter().map(|&blocks| blocks as usize).product();
        if blocks > u32::MAX as usize {
            return extent("blocks under emulation, at most", u32::MAX as usize, blocks);
        }
        let order = match self.emulation.order {
            BlockOrder::Ascending => 0,
            BlockOrder::Descending => 1,
            BlockOrder::Shuffled(seed) => 2 + u32::from(seed),
        };
        // The memory stays locked during the launch, because the kernel may access every buffer.
        let EmulatedMemory { buffers, stamp, launches } = &mut *locked(&self.memory);
        *launches.entry(name).or_default() += 1;
        let settings = ffi::LaunchOptions {
            order,
            checked: u32::from(self.emulation.checks == Checks::Every),
            red_zone: RED_ZONE as u32,
        };
        let fault = entry.run(grid, settings, &arguments, buffers, stamp);
        match fault {
            None => Ok(()),
            Some(fault) => {
                let library = &entry.library().path;
                Err(DriverError::Fault(Box::new(told(library, name, &fault, buffers))))
            }
        }
    }
}

/// Converts a fault of the runtime to a [`Fault`], which has source lines.
fn told(library: &Path, kernel: &str, raw: &ffi::Fault, buffers: &[ffi::Allocation]) -> Fault {
    let at_call = || SourceLine { file: raw.file(), line: raw.line };
    let access = if raw.is_write == 1 { "store" } else { "load" };
    let line_at = || line_of(library, raw.pc);
    let (place, kind) = match raw.kind {
        1 => {
            let after = buffers
                .iter()
                .filter_map(|buffer| {
                    let end = buffer.address() + buffer.len() as u64;
                    let past = raw.address.checked_sub(end)?;
                    (past < 1 << 16).then_some((past, buffer.len() as u64))
                })
                .min();
            (line_at(), FaultKind::Outside { access, bytes: raw.bytes, after })
        }
        2 => (line_at(), FaultKind::Misaligned { access, bytes: raw.bytes }),
        3 => {
            let other = line_of(library, raw.other_pc);
            let one = |number: u32| (number != u32::MAX).then_some(number);
            let (block, thread) = (one(raw.other_block), one(raw.other_thread));
            (line_at(), FaultKind::Race { access, other, block, thread })
        }
        4 => (at_call(), FaultKind::Barrier { missing: raw.other_thread, at: raw.other_line }),
        5 => {
            let (mask, missing, at) = (raw.mask, raw.other_thread, raw.other_line);
            (at_call(), FaultKind::LaneMissing { mask, missing, at })
        }
        6 => {
            let bytes = buffers.get(raw.buffer as usize).map_or(0, |buffer| buffer.len() as u64);
            (at_call(), FaultKind::RedZone { bytes })
        }
        7 => (at_call(), FaultKind::Stack),
        _ => (at_call(), FaultKind::LaneNotNamed { lane: raw.other_thread }),
    };
    Fault { kernel: kernel.to_owned(), place, block: raw.block, thread: raw.thread, kind }
}

/// Finds the innermost source line, outside the prelude, of the code at `offset` of a library.
/// Uses `addr2line`, which is installed together with the compiler.
fn line_of(library: &Path, offset: u64) -> SourceLine {
    let unknown = SourceLine { file: "its source".to_owned(), line: 0 };
    let mut command = Command::new("addr2line");
    command.arg("-i").arg("-e").arg(library).arg(format!("{offset:#x}"));
    let Ok(output) = command.output() else { return unknown };
    let text = String::from_utf8_lossy(&output.stdout);
    let mut places = text.lines().filter_map(|line| {
        let (file, number) = line.rsplit_once(':')?;
        let number = number.split(' ').next()?.parse().ok()?;
        // Messages show paths from `ops/` or `cuda/` on, without the folders above.
        let at = file.find("ops/").or_else(|| file.find("cuda/")).unwrap_or(0);
        Some(SourceLine { file: file[at..].to_owned(), line: number })
    });
    // `addr2line` prints inlined functions first. Lines of the prelude are skipped, because the
    // mistake is in the kernel that calls its functions.
    places.find(|place| !place.file.contains("prelude.cu")).unwrap_or(unknown)
}
