//! Calls MPI by dynamic loading. This is the only file of the crate with `unsafe` (decision 0032).
//!
//! The file contains code that opens a library, determines its binary interface, and wraps the
//! dozen functions that the progress thread calls. A [`Transfer`] owns the memory that MPI reads or
//! writes.
#![expect(unsafe_code, reason = "calls into a foreign library; decision 0032")]

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;

use super::library::{Interface, OpenError};
use crate::element::{Load, Payload};

/// Buffer size that holds the longest version text of any interface.
const VERSION_BYTES: usize = 8192;
/// `MPI_THREAD_FUNNELED` of every interface: one thread calls MPI.
const FUNNELED: c_int = 1;
/// All messages have the same tag, so messages from one rank arrive in order.
const TAG: c_int = 17;

/// An MPI library that stays loaded until the process ends.
#[derive(Clone)]
pub struct MpiHandle {
    handle: *mut c_void,
    /// Name or path under which the library was opened.
    pub name: String,
    /// Version text that the library reports about itself.
    pub version: String,
    /// Binary interface by which the library is called.
    pub interface: Interface,
}

// SAFETY: `handle` is only passed to `dlsym`, which any thread may call.
unsafe impl Send for MpiHandle {}

impl MpiHandle {
    /// Opens the library that the dynamic linker finds under `name`.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        let path = CString::new(name).map_err(|_| OpenError::absent(name, "a NUL in its name"))?;
        // Open MPI loads its own components, which need the symbols of the library. The flag
        // `RTLD_GLOBAL` makes the symbols visible to these components. SAFETY: `path` is a
        // NUL-terminated C string that outlives the call. Loading runs the library's constructors,
        // which the caller requests by opening it.
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

    /// Returns the MPI functions of an interface whose handles are as wide as an address.
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

    /// Returns the MPI functions of an interface whose handles are integers.
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
                // SAFETY: `address` is the address of this function, and the MPI standard defines
                // its signature. The width of `H` follows from `interface`, which was derived from
                // the library's version.
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
            get_processor_name: function!(c"MPI_Get_processor_name", GetText),
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
    // SAFETY: `address` is `MPI_Get_library_version`, whose signature the MPI standard defines.
    // `MPI_Get_library_version` may be called before initialization.
    let get = unsafe { std::mem::transmute::<*mut c_void, GetText>(address) };
    let (mut text, mut len) = (vec![0u8; VERSION_BYTES], 0);
    // SAFETY: `text` has `VERSION_BYTES` bytes, as many as the longest version text of any
    // interface, and `len` is a valid place for its length.
    unsafe { get(text.as_mut_ptr().cast(), &raw mut len) };
    let text = CStr::from_bytes_until_nul(&text).map_err(|_| OpenError::Unknown {
        library: name.to_owned(),
        version: "more than 8191 bytes".to_owned(),
    })?;
    Ok(text.to_string_lossy().trim().to_owned())
}

fn symbol(handle: *mut c_void, library: &str, name: &CStr) -> Result<*mut c_void, OpenError> {
    // SAFETY: `handle` belongs to a library that is never closed, and `name` is a NUL-terminated C
    // string that outlives the call.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() {
        let (library, symbol) = (library.to_owned(), name.to_string_lossy().into_owned());
        return Err(OpenError::NoSymbol { library, symbol });
    }
    Ok(address)
}

fn last_error() -> String {
    // SAFETY: `dlerror` returns NULL or a C string that is valid until this thread's next `dl`
    // call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: `text` is not NULL, so it points to a NUL-terminated C string, which is copied before
    // the next `dl` call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The predefined MPI objects that are used.
#[derive(Clone, Copy)]
struct Handles<H> {
    world: H,
    byte: H,
    errors_return: H,
    /// Handles of `MPI_FLOAT` and `MPI_SUM`, if they are known for this interface.
    sum: Option<(H, H)>,
}

/// Memory for the status of any interface, which has at most 32 bytes. The status is only passed
/// back to MPI.
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
/// The common C signature of `MPI_Get_library_version` and `MPI_Get_processor_name`.
type GetText = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;

/// The functions of an MPI library. All of them are called from one thread.
pub struct MpiFunctions<H> {
    handles: Handles<H>,
    init_thread: InitThread,
    finalize: Finalize,
    abort: Abort<H>,
    comm_rank: CommPlace<H>,
    comm_size: CommPlace<H>,
    get_processor_name: GetText,
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
    /// Number of ranks in `MPI_COMM_WORLD`.
    pub size: usize,
    /// The level of thread support: 0 single, 1 funneled, 2 serialized, 3 multiple.
    pub thread_level: i32,
}

/// A send or receive in progress. The transfer owns its memory until MPI has finished with it.
pub struct Transfer<H> {
    /// Requests of the pieces that MPI has not finished.
    requests: Requests<H>,
    /// The memory, which must stay allocated while MPI may use it.
    load: ManuallyDrop<Load>,
}

/// Requests in order. A payload that is sent in pieces has several requests. A single request needs
/// no allocation.
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

    /// Returns the memory of a transfer that is complete, see [`MpiFunctions::is_done`].
    ///
    /// # Panics
    /// Panics if the transfer is not complete, because MPI still uses the memory.
    pub fn finish(mut self) -> Load {
        assert!(self.requests.first.is_none(), "the transfer is still in progress");
        // SAFETY: `load` is taken only once, because `self` is consumed here and has no `Drop` of
        // its own.
        unsafe { ManuallyDrop::take(&mut self.load) }
    }
}

impl<H: Copy> MpiFunctions<H> {
    /// Calls `MPI_Init_thread`. The calling thread must also make all later calls to MPI.
    pub fn init(&self) -> Result<Initialized, String> {
        let (mut thread_level, mut rank, mut size) = (0, 0, 0);
        let world = self.handles.world;
        // SAFETY: MPI allows NULL for the two argument pointers, and `thread_level` is a valid
        // place for the result.
        self.check("MPI_Init_thread", unsafe {
            (self.init_thread)(ptr::null_mut(), ptr::null_mut(), FUNNELED, &raw mut thread_level)
        })?;
        // SAFETY: MPI is initialized, and both handles belong to this library's interface.
        self.check("MPI_Comm_set_errhandler", unsafe {
            (self.set_errhandler)(world, self.handles.errors_return)
        })?;
        // SAFETY: MPI is initialized, `world` belongs to this library's interface, and `rank` is a
        // valid place for the result.
        self.check("MPI_Comm_rank", unsafe { (self.comm_rank)(world, &raw mut rank) })?;
        // SAFETY: MPI is initialized, `world` belongs to this library's interface, and `size` is a
        // valid place for the result.
        self.check("MPI_Comm_size", unsafe { (self.comm_size)(world, &raw mut size) })?;
        Ok(Initialized { rank: rank as usize, size: size as usize, thread_level })
    }

    /// Returns the name of the host, as MPI reports it.
    pub fn processor_name(&self) -> Result<String, String> {
        let (mut text, mut len) = (vec![0u8; VERSION_BYTES], 0);
        // SAFETY: MPI is initialized, `text` is longer than the longest processor name of any
        // interface, and `len` is a valid place for its length.
        self.check("MPI_Get_processor_name", unsafe {
            (self.get_processor_name)(text.as_mut_ptr().cast(), &raw mut len)
        })?;
        text.truncate(len as usize);
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Calls `MPI_Finalize`. No MPI function may be called after it.
    pub fn finalize(&self) -> Result<(), String> {
        // SAFETY: MPI is initialized, and only this thread calls it.
        self.check("MPI_Finalize", unsafe { (self.finalize)() })
    }

    /// Calls `MPI_Abort`, which ends all ranks. The call usually does not return.
    pub fn abort(&self, code: i32) {
        // SAFETY: MPI is initialized, and the handle belongs to this library's interface.
        unsafe { (self.abort)(self.handles.world, code) };
    }

    /// Starts sending `load` to rank `to`, in pieces of at most `piece` bytes.
    pub fn send(&self, to: usize, load: Load, piece: usize) -> Result<Transfer<H>, String> {
        let Handles { world, byte, .. } = self.handles;
        let mut transfer = Transfer::load(load);
        let Transfer { requests, load } = &mut transfer;
        for part in load.payload().bytes().chunks(piece) {
            let mut request = byte;
            let (from, len) = (part.as_ptr().cast(), part.len() as c_int);
            // SAFETY: `from` points into the payload. `Transfer` keeps the payload until MPI is
            // done, and leaks it if it is dropped before. The length of a piece fits into a C
            // `int`.
            self.check("MPI_Isend", unsafe {
                (self.isend)(from, len, byte, to as c_int, TAG, world, &raw mut request)
            })?;
            requests.push(request);
        }
        Ok(transfer)
    }

    /// Starts filling `payload` with data from rank `from`, in the pieces in which it is sent.
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
            // SAFETY: `to` points into the payload. `Transfer` keeps the payload until MPI is done,
            // and nothing reads it before. The length of a piece fits into a C `int`.
            self.check("MPI_Irecv", unsafe {
                (self.irecv)(to, len, byte, from as c_int, TAG, world, &raw mut request)
            })?;
            requests.push(request);
        }
        Ok(transfer)
    }

    /// Returns whether the library supports [`Self::sum`].
    pub fn sums(&self) -> bool {
        self.handles.sum.is_some()
    }

    /// Starts `MPI_Iallreduce`, which sums `values` over all ranks and writes the result to `sum`.
    /// MPI uses both buffers until the second transfer is done. The transfer of `values` has no
    /// request, so it is done together with the second one.
    pub fn sum(
        &self,
        values: Vec<f32>,
        sum: Vec<f32>,
    ) -> Result<(Transfer<H>, Transfer<H>), String> {
        let Some((float, add)) = self.handles.sum else { return Err("no MPI_SUM".to_owned()) };
        let (from, mut to) = (Transfer::load(Load::from(values)), Transfer::load(Load::from(sum)));
        let (read, written) = (from.load.payload().bytes(), to.load.bytes_mut());
        let count = c_int::try_from(read.len() / size_of::<f32>());
        let count = count.map_err(|_| "more values than a C int can count".to_owned())?;
        assert_eq!(read.len(), written.len(), "`sum` and `values` have equal lengths");
        let mut request = self.handles.byte;
        // SAFETY: `read` and `written` both have `count` elements and do not overlap. `from` and
        // `to` keep both buffers until MPI is done, and leak them if they are dropped before.
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

    /// Returns whether MPI no longer uses the memory of `transfer`.
    pub fn is_done(&self, transfer: &mut Transfer<H>) -> Result<bool, String> {
        while let Some(request) = &mut transfer.requests.first {
            let (mut done, mut status) = (0, Status([0; 64]));
            // SAFETY: `request` was returned by MPI and is not finished, and `status` has room for
            // the status of any interface.
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

    /// Returns the size in bytes of the next message from rank `from`, if there is one.
    pub fn probe(&self, from: usize) -> Result<Option<usize>, String> {
        let Handles { world, byte, .. } = self.handles;
        let (mut found, mut len, mut status) = (0, 0, Status([0; 64]));
        // SAFETY: `found` and `status` are valid places for the results, and `world` belongs to
        // this library's interface.
        self.check("MPI_Iprobe", unsafe {
            (self.iprobe)(from as c_int, TAG, world, &raw mut found, &raw mut status)
        })?;
        if found == 0 {
            return Ok(None);
        }
        // SAFETY: `status` is the status that MPI has just filled, and `len` is a valid place for
        // the result.
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
        // SAFETY: `text` is longer than the longest error text of any interface, and `len` is a
        // valid place for its length.
        let told = unsafe { (self.error_string)(code, text.as_mut_ptr().cast(), &raw mut len) };
        let text = CStr::from_bytes_until_nul(&text).ok().filter(|_| told == 0);
        let text = text.map(CStr::to_string_lossy).unwrap_or_default();
        Err(format!("{what}: error {code}: {text}"))
    }
}
