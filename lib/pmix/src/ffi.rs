//! The C part, and what it calls.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ops::BitAnd;
use std::sync::{Arc, OnceLock};

use crate::{Host, Processes, Refusal, StartError, peers};

const SUCCESS: i32 = 0;
const TIMEOUT: i32 = -24;
const NOT_FOUND: i32 = -46;
const NOT_SUPPORTED: i32 = -47;
const IOF_FAILURE: i32 = -172;
/// Ends the collection of input in the library of the tool.
const IOF_COMPLETE: i32 = -173;
const ALL_RANKS: u32 = u32::MAX - 1;
const STDOUT: u32 = 2;
const STDERR: u32 = 4;

/// What a tool wants of a pull or a push: `PMC_…` in shim.c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants(u32);

impl Wants {
    /// The tool gets the output instead of its file.
    pub const REDIRECT: Self = Self(1);
    /// Lines begin with namespace, rank and stream.
    pub const TAG: Self = Self(2);
    /// Lines begin with rank and stream.
    pub const RANK: Self = Self(8);
    /// Lines begin with the time.
    pub const TIMESTAMP: Self = Self(16);
    /// Lines are elements of XML.
    pub const XML: Self = Self(32);
    /// The input ends.
    pub const COMPLETE: Self = Self(64);
    /// Something that this crate does not know, and that the tool needs.
    pub const UNKNOWN: Self = Self(128);
    /// The library of the tool reads the standard input of the tool.
    const COLLECTED: Self = Self(256);

    /// Returns whether this is wanted.
    #[must_use]
    pub fn has(self, what: Self) -> bool {
        self.0 & what.0 != 0
    }
}

impl BitAnd for Wants {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl std::ops::BitOr for Wants {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// `pmix_proc_t`.
#[repr(C)]
struct Proc {
    namespace: [c_char; 256],
    rank: u32,
}

/// A tool does not say whose it is.
const NO_USER: u32 = u32::MAX;

/// `struct pmc_upcalls`.
#[repr(C)]
struct Upcalls {
    admit: extern "C" fn(u32) -> bool,
    pull: unsafe extern "C" fn(*const Proc, usize, u32, u32) -> i32,
    stop: extern "C" fn(),
    push: unsafe extern "C" fn(*const Proc, usize, u32, *const u8, usize, *mut c_void) -> i32,
    list: extern "C" fn(*mut c_void),
}

#[expect(unsafe_code, reason = "the C part")]
unsafe extern "C" {
    fn pmc_pmix_start(
        namespace: *const c_char,
        directory: *const c_char,
        uri_file: *const c_char,
        upcalls: *const Upcalls,
    ) -> i32;
    fn pmc_pmix_deliver(rank: u32, is_error: bool, bytes: *const u8, size: usize) -> i32;
    fn pmc_pmix_taken(token: *mut c_void, status: i32);
    fn pmc_pmix_add(list: *mut c_void, rank: u32, task: *const c_char, host: *const c_char);
    fn pmc_pmix_stop();
    fn pmc_pmix_reason(status: i32) -> *const c_char;
}

static HOST: OnceLock<Arc<dyn Host>> = OnceLock::new();

/// A piece of input that was not answered.
#[derive(Debug)]
pub struct Taken {
    /// `None` if it is forgotten.
    token: Option<*mut c_void>,
    is_last: bool,
}

#[expect(unsafe_code, reason = "the library takes answers from any thread")]
// SAFETY: the token is used once, by `pmc_pmix_taken`, which only hands a message to the library's thread.
unsafe impl Send for Taken {}

impl Taken {
    /// Answers the tool.
    pub fn answer(mut self, result: Result<(), Refusal>) {
        if let Some(token) = self.token.take() {
            let status = match result {
                Err(Refusal::NotSupported) => NOT_SUPPORTED,
                // At the end of the tool's standard input, the library would read it again. It comes as often
                // as the library has pieces without an answer, so that the task may have ended meanwhile.
                _ if self.is_last => IOF_COMPLETE,
                Ok(()) => SUCCESS,
                Err(refusal) => status(refusal),
            };
            taken(token, status);
        }
    }

    /// Returns whether this is the end of the standard input of a tool, which may come several times.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.is_last
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            taken(token, if self.is_last { IOF_COMPLETE } else { IOF_FAILURE });
        }
    }
}

#[expect(unsafe_code, reason = "a C function")]
fn taken(token: *mut c_void, status: i32) {
    // SAFETY: the token came with `push` and was not answered: `Taken` gives it away once.
    unsafe { pmc_pmix_taken(token, status) };
}

fn status(refusal: Refusal) -> i32 {
    match refusal {
        Refusal::NotSupported => NOT_SUPPORTED,
        Refusal::NotFound => NOT_FOUND,
        Refusal::Timeout => TIMEOUT,
        Refusal::Failed => IOF_FAILURE,
    }
}

/// Starts the server of this process.
#[expect(unsafe_code, reason = "C functions")]
pub(crate) fn start(
    namespace: &CStr,
    directory: &CStr,
    uri_file: &CStr,
    host: Arc<dyn Host>,
) -> Result<(), StartError> {
    HOST.set(host).map_err(|_| StartError::Name)?;
    let upcalls = Upcalls {
        admit: on_admit,
        pull: on_pull,
        stop: on_stop,
        push: on_push,
        list: on_list,
    };
    // SAFETY: the strings and the table live during the call, which copies what it keeps. It changes the
    // environment: `Server::start` says that there is no other thread yet.
    let status = unsafe {
        pmc_pmix_start(
            namespace.as_ptr(),
            directory.as_ptr(),
            uri_file.as_ptr(),
            &raw const upcalls,
        )
    };
    if status == SUCCESS {
        return Ok(());
    }
    Err(StartError::Library {
        reason: reason(status),
    })
}

/// What a status of the library means.
#[expect(unsafe_code, reason = "a C function")]
pub(crate) fn reason(status: i32) -> String {
    // SAFETY: the library returns a text that it never frees.
    let reason = unsafe { CStr::from_ptr(pmc_pmix_reason(status)) };
    reason.to_string_lossy().into_owned()
}

#[expect(unsafe_code, reason = "a C function")]
pub(crate) fn deliver(rank: u32, is_error: bool, bytes: &[u8]) {
    // SAFETY: the bytes live during the call, which returns when the library has copied them. Nobody can do
    // anything about an error: the tool has gone.
    unsafe { pmc_pmix_deliver(rank, is_error, bytes.as_ptr(), bytes.len()) };
}

#[expect(unsafe_code, reason = "a C function")]
pub(crate) fn stop() {
    // SAFETY: the server was started, and only the drop of its one value comes here.
    unsafe { pmc_pmix_stop() };
}

extern "C" fn on_admit(user: u32) -> bool {
    peers::admit((user != NO_USER).then_some(user))
}

#[expect(unsafe_code, reason = "called by C")]
unsafe extern "C" fn on_pull(procs: *const Proc, count: usize, channels: u32, wants: u32) -> i32 {
    let Some(host) = HOST.get() else {
        return NOT_SUPPORTED;
    };
    // SAFETY: the C part passes the array of the library on.
    let processes = unsafe { processes(procs, count) };
    let streams = [channels & STDOUT != 0, channels & STDERR != 0];
    let pulled = host.pull(&processes, streams, Wants(wants));
    pulled.map_or_else(status, |()| SUCCESS)
}

extern "C" fn on_stop() {
    if let Some(host) = HOST.get() {
        host.stop();
    }
}

#[expect(unsafe_code, reason = "called by C")]
unsafe extern "C" fn on_push(
    procs: *const Proc,
    count: usize,
    wants: u32,
    bytes: *const u8,
    size: usize,
    token: *mut c_void,
) -> i32 {
    let Some(host) = HOST.get() else {
        return NOT_SUPPORTED;
    };
    // SAFETY: the C part passes the array of the library on.
    let processes = unsafe { processes(procs, count) };
    let bytes = if bytes.is_null() {
        &[]
    } else {
        // SAFETY: the library keeps this number of bytes until the piece is answered.
        unsafe { std::slice::from_raw_parts(bytes, size) }
    };
    let wants = Wants(wants);
    let taken = Taken {
        token: Some(token),
        is_last: bytes.is_empty() && wants.has(Wants::COLLECTED),
    };
    host.push(&processes, bytes, wants, taken);
    // A refusal is an answer like any other: it comes through the token.
    SUCCESS
}

#[expect(unsafe_code, reason = "called by C")]
extern "C" fn on_list(list: *mut c_void) {
    let Some(host) = HOST.get() else { return };
    host.list(&mut |rank, task, host| {
        // A name with a zero byte is in no DAG.
        if let (Ok(task), Ok(host)) = (CString::new(task), CString::new(host)) {
            // SAFETY: the list is that of the C part, which copies the names.
            unsafe { pmc_pmix_add(list, rank, task.as_ptr(), host.as_ptr()) };
        }
    });
}

/// Copies an array of processes.
///
/// # Safety
/// `procs` has `count` entries, unless that is 0.
#[expect(unsafe_code, reason = "an array of C")]
unsafe fn processes(procs: *const Proc, count: usize) -> Vec<Processes> {
    if procs.is_null() || count == 0 {
        return Vec::new();
    }
    // SAFETY: see above.
    let procs = unsafe { std::slice::from_raw_parts(procs, count) };
    let process = |process: &Proc| {
        let name = process.namespace.iter().take_while(|byte| **byte != 0);
        let name: Vec<u8> = name.map(|byte| byte.to_ne_bytes()[0]).collect();
        Processes {
            namespace: String::from_utf8_lossy(&name).into_owned(),
            rank: (process.rank != ALL_RANKS).then_some(process.rank),
        }
    };
    procs.iter().map(process).collect()
}
