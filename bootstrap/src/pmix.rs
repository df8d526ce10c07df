//! PMIx, through `libpmix.so.2`, which is loaded when it is used.
//!
//! The types follow the PMIx 4.2 ABI (`pmix_common.h`): a process is 260 bytes, a value 32, a byte
//! object 16 and an info 552. PMIx starts a thread of its own, which ends with [`Pmix`].

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use libloading::Library;
use static_assertions::{assert_type_eq_all, const_assert_eq};

use crate::{Bootstrap, Error, MAX_VALUE, Runtime, check, check_key, check_rank};

/// How long the server may take for a value that it has.
const SOON: Duration = Duration::from_secs(30);
/// The operation of [`Pmix::open`].
const CONNECTING: &str = "connecting to the PMIx server";
const NAMES: [&str; 2] = ["libpmix.so.2", "libpmix.so"];

const SUCCESS: c_int = 0;
const OPERATION_SUCCEEDED: c_int = -157;
const UNREACHABLE: c_int = -25;
const NOT_FOUND: c_int = -46;
const GLOBAL: u8 = 3;
const TYPE_BOOL: u16 = 1;
const TYPE_STRING: u16 = 3;
const TYPE_UINT32: u16 = 14;
const TYPE_BYTES: u16 = 27;
const WILDCARD: u32 = u32::MAX - 1;

/// `pmix_proc_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct Process {
    namespace: [c_char; 256],
    rank: u32,
}
const_assert_eq!(size_of::<Process>(), 260);

/// `pmix_byte_object_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct Bytes {
    start: *mut c_char,
    size: usize,
}
const_assert_eq!(size_of::<Bytes>(), 16);

/// The union of `pmix_value_t`, as far as it is used.
#[repr(C)]
#[derive(Clone, Copy)]
union Data {
    flag: bool,
    number: u32,
    text: *mut c_char,
    bytes: Bytes,
    whole: [u64; 3],
}

/// `pmix_value_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct Value {
    kind: u16,
    data: Data,
}
const_assert_eq!(size_of::<Value>(), 32);
const_assert_eq!(std::mem::offset_of!(Value, data), 8);

/// `pmix_info_t`
#[repr(C)]
struct Info {
    key: [c_char; 512],
    flags: u32,
    value: Value,
}
const_assert_eq!(size_of::<Info>(), 552);
const_assert_eq!(std::mem::offset_of!(Info, value), 520);
assert_type_eq_all!(c_int, i32);

type OperationDone = unsafe extern "C" fn(c_int, *mut c_void);
type ValueDone = unsafe extern "C" fn(c_int, *mut Value, *mut c_void);

/// The functions of the library, which is never unloaded.
struct Functions {
    finalize: unsafe extern "C" fn(*const Info, usize) -> c_int,
    put: unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int,
    commit: unsafe extern "C" fn() -> c_int,
    fence: unsafe extern "C" fn(
        *const Process,
        usize,
        *const Info,
        usize,
        OperationDone,
        *mut c_void,
    ) -> c_int,
    get: unsafe extern "C" fn(
        *const Process,
        *const c_char,
        *const Info,
        usize,
        ValueDone,
        *mut c_void,
    ) -> c_int,
    abort: unsafe extern "C" fn(c_int, *const c_char, *mut Process, usize) -> c_int,
    text: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// `PMIx_Init`.
type Init = unsafe extern "C" fn(*mut Process, *mut Info, usize) -> c_int;

/// Calls `PMIx_Init`. It has no time limit, and does not return if the server ends meanwhile: its
/// thread then stays in the call until the process ends.
fn initialize(init: Init, timeout: Duration) -> Result<(c_int, Process), Error> {
    let (done, result) = mpsc::channel();
    let call = move || {
        let mut process = MaybeUninit::<Process>::zeroed();
        // SAFETY: the process is written, and no info is given.
        #[allow(unsafe_code, reason = "calls libpmix")]
        let status = unsafe { init(process.as_mut_ptr(), ptr::null_mut(), 0) };
        // SAFETY: zeroed bytes are a process, and so is whatever the call has written.
        #[allow(unsafe_code, reason = "calls libpmix")]
        let process = unsafe { process.assume_init() };
        // The receiver may have given up.
        let _ = done.send((status, process));
    };
    thread::Builder::new()
        .name("pmix-init".to_owned())
        .spawn(call)
        .map_err(|error| refused(CONNECTING, error.to_string()))?;
    result.recv_timeout(timeout).map_err(|_| Error::TimedOut {
        runtime: Runtime::Pmix,
        operation: CONNECTING,
        waited: timeout,
        missing: String::new(),
    })
}

impl Functions {
    fn load() -> Result<(Self, Init), Error> {
        let mut reasons = Vec::new();
        for name in NAMES {
            // SAFETY: the library's initialisers are those of the system's PMIx, which sets up its
            // own state only.
            #[allow(unsafe_code, reason = "loads libpmix")]
            let loaded = unsafe { Library::new(name) };
            let library = match loaded {
                Ok(library) => library,
                Err(error) => {
                    reasons.push(error.to_string());
                    continue;
                }
            };
            // SAFETY: the types are those of the functions in `pmix.h` of PMIx 3 to 5. The library
            // is never unloaded.
            #[allow(unsafe_code, reason = "finds the functions of libpmix")]
            let functions = unsafe { Self::find(library) };
            return functions
                .map_err(|error| refused("loading libpmix", format!("{name}: {error}")));
        }
        let reason = format!("{}; install it (Debian: libpmix2)", reasons.join("; "));
        Err(refused("loading libpmix", reason))
    }

    /// # Safety
    /// `library` is libpmix.
    #[allow(unsafe_code, reason = "finds the functions of libpmix")]
    unsafe fn find(library: Library) -> Result<(Self, Init), libloading::Error> {
        // SAFETY: each symbol has the type of the field that it is stored in, according to
        // `pmix.h`.
        unsafe {
            let init = *library.get(b"PMIx_Init\0")?;
            let functions = Self {
                finalize: *library.get(b"PMIx_Finalize\0")?,
                put: *library.get(b"PMIx_Put\0")?,
                commit: *library.get(b"PMIx_Commit\0")?,
                fence: *library.get(b"PMIx_Fence_nb\0")?,
                get: *library.get(b"PMIx_Get_nb\0")?,
                abort: *library.get(b"PMIx_Abort\0")?,
                text: *library.get(b"PMIx_Error_string\0")?,
            };
            // Never unloaded: a thread of the library may run until the process ends.
            std::mem::forget(library);
            Ok((functions, init))
        }
    }
}

/// Where a callback leaves its result. The info that the call was given lives here, too, because
/// the library may read it until the callback.
struct Waiter {
    outcome: Mutex<Option<(c_int, Option<Found>)>>,
    done: Condvar,
    info: Vec<Info>,
}

// SAFETY: the pointers in `info` are null: its values are flags.
#[allow(unsafe_code, reason = "Info is not Send because of unused pointers")]
unsafe impl Send for Waiter {}
// SAFETY: `info` is only read after the waiter was made.
#[allow(unsafe_code, reason = "Info is not Sync because of unused pointers")]
unsafe impl Sync for Waiter {}

/// A value, copied.
#[derive(Debug, Clone)]
enum Found {
    Bytes(Vec<u8>),
    Text(String),
    Number(u32),
    Other(u16),
}

impl Waiter {
    fn new(info: Vec<Info>) -> Arc<Self> {
        Arc::new(Self { outcome: Mutex::new(None), done: Condvar::new(), info })
    }

    fn finish(&self, status: c_int, found: Option<Found>) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some((status, found));
        self.done.notify_one();
    }

    /// Waits for the callback; `None` if it was not called within `timeout`.
    fn wait(&self, timeout: Duration) -> Option<(c_int, Option<Found>)> {
        let start = Instant::now();
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = outcome.take() {
                return Some(outcome);
            }
            let left = timeout.checked_sub(start.elapsed())?;
            outcome =
                self.done.wait_timeout(outcome, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// # Safety
/// `waiter` comes from `Arc::into_raw` of a [`Waiter`], and is passed to one callback once.
#[allow(unsafe_code, reason = "a callback of libpmix")]
unsafe extern "C" fn operation_done(status: c_int, waiter: *mut c_void) {
    // SAFETY: the contract of this function.
    let waiter = unsafe { Arc::from_raw(waiter.cast_const().cast::<Waiter>()) };
    waiter.finish(status, None);
}

/// # Safety
/// As [`operation_done`]; `value` is null or a value that lives until this returns.
#[allow(unsafe_code, reason = "a callback of libpmix")]
unsafe extern "C" fn value_done(status: c_int, value: *mut Value, waiter: *mut c_void) {
    // SAFETY: the contract of this function.
    let waiter = unsafe { Arc::from_raw(waiter.cast_const().cast::<Waiter>()) };
    // SAFETY: the contract of this function.
    let value = unsafe { value.as_ref() };
    let found = value.map(|value| match value.kind {
        TYPE_BYTES => {
            // SAFETY: the kind says which field of the union is valid.
            let bytes = unsafe { value.data.bytes };
            let size = bytes.size.min(MAX_VALUE + 1);
            if bytes.start.is_null() || size == 0 {
                return Found::Bytes(Vec::new());
            }
            // SAFETY: a byte object has `size` bytes from `start`, which live until this returns.
            Found::Bytes(
                unsafe { std::slice::from_raw_parts(bytes.start.cast::<u8>(), size) }.to_vec(),
            )
        }
        TYPE_STRING => {
            // SAFETY: the kind says which field of the union is valid.
            let text = unsafe { value.data.text };
            if text.is_null() {
                return Found::Text(String::new());
            }
            // SAFETY: a string of PMIx ends with a zero, and lives until this returns.
            Found::Text(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        }
        // SAFETY: the kind says which field of the union is valid.
        TYPE_UINT32 => Found::Number(unsafe { value.data.number }),
        other => Found::Other(other),
    });
    waiter.finish(status, found);
}

/// Sets a flag of a request.
fn flag(name: &str) -> Info {
    let mut key = [0; 512];
    for (place, byte) in key.iter_mut().zip(name.bytes()) {
        *place = byte as c_char;
    }
    let mut data = Data { whole: [0; 3] };
    data.flag = true;
    Info { key, flags: 0, value: Value { kind: TYPE_BOOL, data } }
}

fn refused(operation: &'static str, reason: impl Into<String>) -> Error {
    Error::Refused { runtime: Runtime::Pmix, operation, reason: reason.into() }
}

/// A rank under a PMIx server.
pub struct Pmix {
    functions: Functions,
    namespace: [c_char; 256],
    rank: u32,
    size: u32,
    node_peers: Option<Vec<u32>>,
    put: BTreeSet<String>,
    failed: Option<String>,
}

impl fmt::Debug for Pmix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the functions, and with the namespace as the text that it is.
        let bytes = self.namespace.iter().map(|byte| byte.to_ne_bytes()[0]);
        let namespace: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        f.debug_struct("Pmix")
            .field("namespace", &String::from_utf8_lossy(&namespace))
            .field("rank", &self.rank)
            .field("size", &self.size)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl Pmix {
    /// Connects to the PMIx server that started this process. Connecting, and reading each of the
    /// job's values, takes at most `timeout`.
    ///
    /// # Errors
    /// [`Error::Refused`] if libpmix cannot be loaded, or no server started this process;
    /// [`Error::TimedOut`] if the server does not reply.
    pub fn open(timeout: Duration) -> Result<Self, Error> {
        let (functions, init) = Functions::load()?;
        let (status, process) = initialize(init, timeout)?;
        if status != SUCCESS {
            let mut reason = functions.text(status);
            if status == UNREACHABLE {
                reason += "; this process was not started by a launcher with PMIx (mpirun, \
                           srun --mpi=pmix)";
            }
            return Err(refused(CONNECTING, reason));
        }
        let mut this = Self {
            functions,
            namespace: process.namespace,
            rank: process.rank,
            size: 0,
            node_peers: None,
            put: BTreeSet::new(),
            failed: None,
        };
        this.size = match this.read(WILDCARD, "pmix.job.size", timeout)? {
            Some(Found::Number(size)) => size,
            other => {
                return Err(refused(
                    CONNECTING,
                    format!("the server does not tell the size of the job: {other:?}"),
                ));
            }
        };
        check_rank(this.rank, this.size)?;
        if let Some(Found::Text(peers)) = this.read(WILDCARD, "pmix.lpeers", timeout)? {
            let peers: Option<Vec<u32>> =
                peers.split(',').map(|rank| rank.trim().parse().ok()).collect();
            this.node_peers = peers.filter(|peers| peers.contains(&this.rank));
        }
        Ok(this)
    }

    fn check_usable(&self) -> Result<(), Error> {
        match &self.failed {
            None => Ok(()),
            Some(reason) => Err(Error::Unusable { runtime: Runtime::Pmix, reason: reason.clone() }),
        }
    }

    /// Reads a value; `None` if there is none.
    fn read(&self, rank: u32, key: &str, timeout: Duration) -> Result<Option<Found>, Error> {
        const OPERATION: &str = "reading a value";
        let process = Process { namespace: self.namespace, rank };
        // The server of another rank does not wait for a value to be put.
        let waiter = Waiter::new(vec![flag("pmix.immediate")]);
        let key = CString::new(key).map_err(|_| refused(OPERATION, "a key with a zero byte"))?;
        let pointer = Arc::into_raw(Arc::clone(&waiter));
        let (info, count) = (waiter.info.as_ptr(), waiter.info.len());
        // SAFETY: process and key live until the call returns, which copies them; the info and the
        // waiter live until the callback, which gets a reference of its own.
        #[allow(unsafe_code, reason = "calls libpmix")]
        let status = unsafe {
            (self.functions.get)(
                &raw const process,
                key.as_ptr(),
                info,
                count,
                value_done,
                pointer.cast_mut().cast(),
            )
        };
        self.outcome(status, pointer, &waiter, OPERATION, timeout)
    }

    /// Waits for the callback of a call that returned `status`.
    fn outcome(
        &self,
        status: c_int,
        pointer: *const Waiter,
        waiter: &Waiter,
        operation: &'static str,
        timeout: Duration,
    ) -> Result<Option<Found>, Error> {
        let (status, found) = if status == SUCCESS {
            let missing = String::new();
            let late =
                Error::TimedOut { runtime: Runtime::Pmix, operation, waited: timeout, missing };
            waiter.wait(timeout).ok_or(late)?
        } else {
            // SAFETY: the call refused, or was done at once, so that the callback is never called:
            // its reference is released here.
            #[allow(unsafe_code, reason = "releases the reference of a callback")]
            drop(unsafe { Arc::from_raw(pointer) });
            (status, None)
        };
        match status {
            SUCCESS | OPERATION_SUCCEEDED => Ok(found),
            NOT_FOUND => Ok(None),
            other => Err(refused(operation, self.functions.text(other))),
        }
    }

    fn result(&self, status: c_int, operation: &'static str) -> Result<(), Error> {
        match status {
            SUCCESS | OPERATION_SUCCEEDED => Ok(()),
            other => Err(refused(operation, self.functions.text(other))),
        }
    }
}

impl Functions {
    /// The library's text for a status.
    fn text(&self, status: c_int) -> String {
        // SAFETY: the function takes any number.
        #[allow(unsafe_code, reason = "calls libpmix")]
        let text = unsafe { (self.text)(status) };
        if text.is_null() {
            return format!("status {status}");
        }
        // SAFETY: a static string that ends with a zero.
        #[allow(unsafe_code, reason = "reads a string of libpmix")]
        let text = unsafe { CStr::from_ptr(text) };
        format!("{} (status {status})", text.to_string_lossy())
    }
}

/// The key under which the library's own keys cannot be hit.
fn wire_key(key: &str) -> String {
    format!("barewire.{key}")
}

impl Bootstrap for Pmix {
    fn runtime(&self) -> Runtime {
        Runtime::Pmix
    }

    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn node_peers(&self) -> Option<&[u32]> {
        self.node_peers.as_deref()
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        const OPERATION: &str = "writing a value";
        check(key, value)?;
        self.check_usable()?;
        if !self.put.insert(key.to_owned()) {
            return Err(Error::KeyTaken { key: key.to_owned() });
        }
        let key = CString::new(wire_key(key))
            .map_err(|_| refused(OPERATION, "a key with a zero byte"))?;
        // PMIx has no empty byte objects: a byte in front is always there.
        let mut bytes = Vec::with_capacity(value.len() + 1);
        bytes.push(0);
        bytes.extend_from_slice(value);
        let object = Bytes { start: bytes.as_mut_ptr().cast(), size: bytes.len() };
        let mut value = Value { kind: TYPE_BYTES, data: Data { bytes: object } };
        // SAFETY: key and value live until the call returns, which copies them.
        #[allow(unsafe_code, reason = "calls libpmix")]
        let status = unsafe { (self.functions.put)(GLOBAL, key.as_ptr(), &raw mut value) };
        self.result(status, OPERATION)
    }

    fn fence(&mut self, timeout: Duration) -> Result<(), Error> {
        const OPERATION: &str = "a fence";
        self.check_usable()?;
        // SAFETY: takes nothing.
        #[allow(unsafe_code, reason = "calls libpmix")]
        let status = unsafe { (self.functions.commit)() };
        self.result(status, "publishing values")?;
        let waiter = Waiter::new(vec![flag("pmix.collect")]);
        let pointer = Arc::into_raw(Arc::clone(&waiter));
        let (info, count) = (waiter.info.as_ptr(), waiter.info.len());
        // SAFETY: no process means all of the job; info and waiter live until the callback, which
        // gets a reference of its own.
        #[allow(unsafe_code, reason = "calls libpmix")]
        let status = unsafe {
            (self.functions.fence)(
                ptr::null(),
                0,
                info,
                count,
                operation_done,
                pointer.cast_mut().cast(),
            )
        };
        let done = self.outcome(status, pointer, &waiter, OPERATION, timeout).map(drop);
        if let Err(error) = &done {
            self.failed = Some(error.to_string());
        }
        done
    }

    fn get(&mut self, rank: u32, key: &str) -> Result<Vec<u8>, Error> {
        check_key(key)?;
        check_rank(rank, self.size)?;
        match self.read(rank, &wire_key(key), SOON)? {
            Some(Found::Bytes(mut bytes)) if !bytes.is_empty() && bytes.len() <= MAX_VALUE + 1 => {
                bytes.remove(0);
                Ok(bytes)
            }
            None => Err(Error::NotFound { rank, key: key.to_owned() }),
            Some(other) => {
                let kind = match other {
                    Found::Bytes(_) => "bytes of another program".to_owned(),
                    Found::Text(_) => "a text".to_owned(),
                    Found::Number(_) => "a number".to_owned(),
                    Found::Other(kind) => format!("a value of type {kind}"),
                };
                Err(refused("reading a value", format!("'{key}' of rank {rank} is {kind}")))
            }
        }
    }

    fn abort(&mut self, code: i32, reason: &str) {
        self.failed.get_or_insert_with(|| format!("this rank aborted the job: {reason}"));
        let reason = CString::new(reason.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the text lives until the call returns; no process means all of the job.
        #[allow(unsafe_code, reason = "calls libpmix")]
        unsafe {
            (self.functions.abort)(code, reason.as_ptr(), ptr::null_mut(), 0)
        };
    }
}

impl Drop for Pmix {
    fn drop(&mut self) {
        // SAFETY: no info is given, and outstanding callbacks have references of their own.
        #[allow(unsafe_code, reason = "calls libpmix")]
        unsafe {
            (self.functions.finalize)(ptr::null(), 0)
        };
    }
}
