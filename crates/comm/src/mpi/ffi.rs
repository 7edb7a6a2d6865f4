//! MPI by dynamic loading. The only file of this crate with `unsafe` (decision 0032).
//!
//! Opens a library, determines its binary interface, and wraps the dozen functions that the
//! progress thread calls. A [`Transfer`] owns the memory that MPI reads or writes.
#![expect(unsafe_code, reason = "calls into a foreign library; decision 0032")]

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;

use super::library::{Interface, OpenError};
use crate::element::{Load, Payload};

/// Length of the longest version text of any interface.
const VERSION_BYTES: usize = 8192;
/// `MPI_THREAD_FUNNELED` of every interface: one thread calls MPI.
const FUNNELED: c_int = 1;
/// All messages have the same tag, so those of one rank arrive in order.
const TAG: c_int = 17;

/// A library that stays loaded until the process ends.
#[derive(Clone)]
pub struct MpiHandle {
    handle: *mut c_void,
    /// As it was opened.
    pub name: String,
    /// What it says of itself.
    pub version: String,
    /// How it is called.
    pub interface: Interface,
}

// SAFETY: the handle is only passed to dlsym, which any thread may call.
unsafe impl Send for MpiHandle {}

impl MpiHandle {
    /// Opens `name` as the dynamic linker finds it.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        let path = CString::new(name).map_err(|_| OpenError::absent(name, "a NUL in its name"))?;
        // Open MPI opens its own components, which need the symbols of the library: GLOBAL.
        // SAFETY: `path` ends with NUL; loading runs the library's constructors, which is what the
        // caller asks for.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            return Err(OpenError::absent(name, &last_error()));
        }
        let version = version_of(handle, name)?;
        let interface = Interface::recognise(name, &version).ok_or_else(|| OpenError::Unknown {
            library: name.to_owned(),
            version: version.clone(),
        })?;
        Ok(Self { handle, name: name.to_owned(), version, interface })
    }

    /// The functions, where handles are addresses or as wide.
    pub fn addresses(&self) -> Result<MpiFunctions<usize>, OpenError> {
        let handles = match self.interface {
            Interface::OpenMpi => {
                let address = |name| symbol(self.handle, &self.name, name).map(|at| at as usize);
                Handles {
                    world: address(c"ompi_mpi_comm_world")?,
                    byte: address(c"ompi_mpi_byte")?,
                    errors_return: address(c"ompi_mpi_errors_return")?,
                    sum: address(c"ompi_mpi_float").ok().zip(address(c"ompi_mpi_op_sum").ok()),
                }
            }
            _ => Handles { world: 0x101, byte: 0x247, errors_return: 0x143, sum: None },
        };
        self.table(handles)
    }

    /// The functions, where handles are integers.
    pub fn integers(&self) -> Result<MpiFunctions<c_int>, OpenError> {
        let sum = Some((0x4c00_040a, 0x5800_0003));
        let (world, byte, errors_return) = (0x4400_0000, 0x4c00_010d, 0x5400_0001);
        let handles = Handles { world, byte, errors_return, sum };
        self.table(handles)
    }

    fn table<H: Copy>(&self, handles: Handles<H>) -> Result<MpiFunctions<H>, OpenError> {
        macro_rules! function {
            ($name:literal, $type:ty) => {{
                let address = symbol(self.handle, &self.name, $name)?;
                // SAFETY: the MPI standard gives the function this signature; `interface` was
                // derived from the library's version, and with it the type of handles.
                unsafe { std::mem::transmute::<*mut c_void, $type>(address) }
            }};
        }
        Ok(MpiFunctions {
            handles,
            init_thread: function!(c"MPI_Init_thread", InitThread),
            finalize: function!(c"MPI_Finalize", Finalize),
            abort: function!(c"MPI_Abort", Abort<H>),
            comm_rank: function!(c"MPI_Comm_rank", CommPlace<H>),
            comm_size: function!(c"MPI_Comm_size", CommPlace<H>),
            set_errhandler: function!(c"MPI_Comm_set_errhandler", SetErrhandler<H>),
            error_string: function!(c"MPI_Error_string", ErrorString),
            iallreduce: function!(c"MPI_Iallreduce", Iallreduce<H>),
            isend: function!(c"MPI_Isend", Isend<H>),
            irecv: function!(c"MPI_Irecv", Irecv<H>),
            test: function!(c"MPI_Test", Test<H>),
            iprobe: function!(c"MPI_Iprobe", Iprobe<H>),
            get_count: function!(c"MPI_Get_count", GetCount<H>),
        })
    }
}

fn version_of(handle: *mut c_void, name: &str) -> Result<String, OpenError> {
    let address = symbol(handle, name, c"MPI_Get_library_version")?;
    // SAFETY: the MPI standard gives the function this signature; it may be called before init.
    let get = unsafe { std::mem::transmute::<*mut c_void, Version>(address) };
    let (mut text, mut len) = (vec![0u8; VERSION_BYTES], 0);
    // SAFETY: the buffer is as long as the longest text of any interface.
    unsafe { get(text.as_mut_ptr().cast(), &raw mut len) };
    let text = CStr::from_bytes_until_nul(&text).map_err(|_| OpenError::Unknown {
        library: name.to_owned(),
        version: "more than 8191 bytes".to_owned(),
    })?;
    Ok(text.to_string_lossy().trim().to_owned())
}

fn symbol(handle: *mut c_void, library: &str, name: &CStr) -> Result<*mut c_void, OpenError> {
    // SAFETY: the handle is of a library that is never closed; `name` ends with NUL.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() {
        let (library, symbol) = (library.to_owned(), name.to_string_lossy().into_owned());
        return Err(OpenError::NoSymbol { library, symbol });
    }
    Ok(address)
}

fn last_error() -> String {
    // SAFETY: dlerror gives NULL or a text that lives until this thread's next dl call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: not NULL, so a text that ends with NUL.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The predefined objects that are used.
#[derive(Clone, Copy)]
struct Handles<H> {
    world: H,
    byte: H,
    errors_return: H,
    /// `MPI_FLOAT` and `MPI_SUM`, where they are known.
    sum: Option<(H, H)>,
}

/// Room for the status of any interface (at most 32 bytes), which is only handed back to MPI.
#[repr(C, align(8))]
struct Status([u8; 64]);

/// The C signature of `MPI_Abort`.
type Abort<H> = unsafe extern "C" fn(H, c_int) -> c_int;
/// The common C signature of `MPI_Comm_rank` and `MPI_Comm_size`.
type CommPlace<H> = unsafe extern "C" fn(H, *mut c_int) -> c_int;
/// The C signature of `MPI_Error_string`.
type ErrorString = unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int;
/// The C signature of `MPI_Finalize`.
type Finalize = unsafe extern "C" fn() -> c_int;
/// The C signature of `MPI_Get_count`.
type GetCount<H> = unsafe extern "C" fn(*const Status, H, *mut c_int) -> c_int;
/// The C signature of `MPI_Iallreduce`.
type Iallreduce<H> =
    unsafe extern "C" fn(*const c_void, *mut c_void, c_int, H, H, H, *mut H) -> c_int;
/// The C signature of `MPI_Init_thread`.
type InitThread =
    unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
/// The C signature of `MPI_Iprobe`.
type Iprobe<H> = unsafe extern "C" fn(c_int, c_int, H, *mut c_int, *mut Status) -> c_int;
/// The C signature of `MPI_Irecv`.
type Irecv<H> = unsafe extern "C" fn(*mut c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int;
/// The C signature of `MPI_Isend`.
type Isend<H> = unsafe extern "C" fn(*const c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int;
/// The C signature of `MPI_Comm_set_errhandler`.
type SetErrhandler<H> = unsafe extern "C" fn(H, H) -> c_int;
/// The C signature of `MPI_Test`.
type Test<H> = unsafe extern "C" fn(*mut H, *mut c_int, *mut Status) -> c_int;
/// The C signature of `MPI_Get_library_version`.
type Version = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;

/// The functions of MPI. All of them are called from one thread.
pub struct MpiFunctions<H> {
    handles: Handles<H>,
    init_thread: InitThread,
    finalize: Finalize,
    abort: Abort<H>,
    comm_rank: CommPlace<H>,
    comm_size: CommPlace<H>,
    set_errhandler: SetErrhandler<H>,
    error_string: ErrorString,
    iallreduce: Iallreduce<H>,
    isend: Isend<H>,
    irecv: Irecv<H>,
    test: Test<H>,
    iprobe: Iprobe<H>,
    get_count: GetCount<H>,
}

/// The rank, number of ranks and thread level that MPI reported at its start.
#[derive(Clone, Copy, Debug)]
pub struct Initialized {
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    /// The level of thread support: 0 single, 1 funneled, 2 serialized, 3 multiple.
    pub thread_level: i32,
}

/// A send or receive in progress. It owns the memory until MPI has finished with it.
pub struct Transfer<H> {
    /// Pieces that MPI has not finished.
    requests: Requests<H>,
    /// Kept alive while MPI may use it.
    load: ManuallyDrop<Load>,
}

/// Requests in order, several if the payload is sent in pieces. A single one needs no allocation.
struct Requests<H> {
    first: Option<H>,
    others: VecDeque<H>,
}

impl<H> Requests<H> {
    fn push(&mut self, request: H) {
        match &self.first {
            None => self.first = Some(request),
            Some(_) => self.others.push_back(request),
        }
    }

    fn done(&mut self) {
        self.first = self.others.pop_front();
    }
}

impl<H> Transfer<H> {
    fn load(load: Load) -> Self {
        let requests = Requests { first: None, others: VecDeque::new() };
        Self { requests, load: ManuallyDrop::new(load) }
    }

    /// The memory, once [`MpiFunctions::is_done`].
    ///
    /// # Panics
    /// If the transfer is not complete, because MPI still uses the memory.
    pub fn finish(mut self) -> Load {
        assert!(self.requests.first.is_none(), "a transfer under way");
        // SAFETY: taken once, because `self` ends here without a Drop of its own.
        unsafe { ManuallyDrop::take(&mut self.load) }
    }
}

impl<H: Copy> MpiFunctions<H> {
    /// `MPI_Init_thread`. The calling thread is the one that calls everything else.
    pub fn init(&self) -> Result<Initialized, String> {
        let (mut thread_level, mut rank, mut size) = (0, 0, 0);
        let world = self.handles.world;
        // SAFETY: MPI allows NULL for both arguments; the level is a valid place.
        self.check("MPI_Init_thread", unsafe {
            (self.init_thread)(ptr::null_mut(), ptr::null_mut(), FUNNELED, &raw mut thread_level)
        })?;
        // SAFETY: MPI is initialised; the handles are those of this interface.
        self.check("MPI_Comm_set_errhandler", unsafe {
            (self.set_errhandler)(world, self.handles.errors_return)
        })?;
        // SAFETY: MPI is initialised, the handle is that of this interface, and the number is a
        // valid place.
        self.check("MPI_Comm_rank", unsafe { (self.comm_rank)(world, &raw mut rank) })?;
        // SAFETY: MPI is initialised, the handle is that of this interface, and the number is a
        // valid place.
        self.check("MPI_Comm_size", unsafe { (self.comm_size)(world, &raw mut size) })?;
        Ok(Initialized { rank: rank as usize, size: size as usize, thread_level })
    }

    /// `MPI_Finalize`. Nothing may be called after it.
    pub fn finalize(&self) -> Result<(), String> {
        // SAFETY: MPI is initialised, and called from this thread alone.
        self.check("MPI_Finalize", unsafe { (self.finalize)() })
    }

    /// `MPI_Abort`: ends all ranks. Usually does not return.
    pub fn abort(&self, code: i32) {
        // SAFETY: MPI is initialised; the handle is that of this interface.
        unsafe { (self.abort)(self.handles.world, code) };
    }

    /// Starts sending `load` to rank `to`, in pieces of limited size.
    pub fn send(&self, to: usize, load: Load, piece: usize) -> Result<Transfer<H>, String> {
        let Handles { world, byte, .. } = self.handles;
        let mut transfer = Transfer::load(load);
        let Transfer { requests, load } = &mut transfer;
        for part in load.payload().bytes().chunks(piece) {
            let mut request = byte;
            let (from, len) = (part.as_ptr().cast(), part.len() as c_int);
            // SAFETY: the memory is that of the payload, which `Transfer` keeps until MPI is done,
            // and leaks if it is dropped before; a piece's length fits an `int`.
            self.check("MPI_Isend", unsafe {
                (self.isend)(from, len, byte, to as c_int, TAG, world, &raw mut request)
            })?;
            requests.push(request);
        }
        Ok(transfer)
    }

    /// Receives from rank `from` what fills `payload`, in pieces as they are sent.
    pub fn receive(
        &self,
        from: usize,
        payload: Payload,
        piece: usize,
    ) -> Result<Transfer<H>, String> {
        let Handles { world, byte, .. } = self.handles;
        let mut transfer = Transfer::load(Load::Owned(payload));
        let Transfer { requests, load } = &mut transfer;
        for part in load.bytes_mut().chunks_mut(piece) {
            let mut request = byte;
            let (to, len) = (part.as_mut_ptr().cast(), part.len() as c_int);
            // SAFETY: the memory is that of the payload, which `Transfer` keeps until MPI is done,
            // and nothing reads it before; a piece's length fits an `int`.
            self.check("MPI_Irecv", unsafe {
                (self.irecv)(to, len, byte, from as c_int, TAG, world, &raw mut request)
            })?;
            requests.push(request);
        }
        Ok(transfer)
    }

    /// Whether the library supports [`Self::sum`].
    pub fn sums(&self) -> bool {
        self.handles.sum.is_some()
    }

    /// `MPI_Iallreduce` of `values`, whose sum comes into `sum`, of as many `f32`, on all ranks.
    /// Both are MPI's until both transfers are done: that of `values` is done with that of `sum`.
    pub fn sum(
        &self,
        values: Vec<f32>,
        sum: Vec<f32>,
    ) -> Result<(Transfer<H>, Transfer<H>), String> {
        let Some((float, add)) = self.handles.sum else { return Err("no MPI_SUM".to_owned()) };
        let (from, mut to) = (Transfer::load(Load::from(values)), Transfer::load(Load::from(sum)));
        let (read, written) = (from.load.payload().bytes(), to.load.bytes_mut());
        let count = c_int::try_from(read.len() / size_of::<f32>());
        let count = count.map_err(|_| "more values than an int counts".to_owned())?;
        assert_eq!(read.len(), written.len(), "as many sums as values");
        let mut request = self.handles.byte;
        // SAFETY: both memories are as long as `count` says, do not overlap, and are kept by their
        // `Transfer`s until MPI is done, and leaked if these are dropped before.
        self.check("MPI_Iallreduce", unsafe {
            (self.iallreduce)(
                read.as_ptr().cast(),
                written.as_mut_ptr().cast(),
                count,
                float,
                add,
                self.handles.world,
                &raw mut request,
            )
        })?;
        to.requests.push(request);
        Ok((from, to))
    }

    /// Whether MPI no longer uses the memory of `transfer`.
    pub fn is_done(&self, transfer: &mut Transfer<H>) -> Result<bool, String> {
        while let Some(request) = &mut transfer.requests.first {
            let (mut done, mut status) = (0, Status([0; 64]));
            // SAFETY: the request is one that MPI gave and has not finished; the status has room
            // for that of any interface.
            self.check("MPI_Test", unsafe {
                (self.test)(request, &raw mut done, &raw mut status)
            })?;
            if done == 0 {
                return Ok(false);
            }
            transfer.requests.done();
        }
        Ok(true)
    }

    /// Bytes of the next message of rank `from`, if there is one.
    pub fn probe(&self, from: usize) -> Result<Option<usize>, String> {
        let Handles { world, byte, .. } = self.handles;
        let (mut found, mut len, mut status) = (0, 0, Status([0; 64]));
        // SAFETY: all are valid places; the handles are those of this interface.
        self.check("MPI_Iprobe", unsafe {
            (self.iprobe)(from as c_int, TAG, world, &raw mut found, &raw mut status)
        })?;
        if found == 0 {
            return Ok(None);
        }
        // SAFETY: the status is the one that MPI has just filled.
        self.check("MPI_Get_count", unsafe {
            (self.get_count)(&raw const status, byte, &raw mut len)
        })?;
        Ok(Some(len as usize))
    }

    fn check(&self, what: &str, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let (mut text, mut len) = (vec![0u8; VERSION_BYTES], 0);
        // SAFETY: the buffer is longer than the longest error text of any interface.
        let told = unsafe { (self.error_string)(code, text.as_mut_ptr().cast(), &raw mut len) };
        let text = CStr::from_bytes_until_nul(&text).ok().filter(|_| told == 0);
        let text = text.map(CStr::to_string_lossy).unwrap_or_default();
        Err(format!("{what}: error {code}: {text}"))
    }
}
