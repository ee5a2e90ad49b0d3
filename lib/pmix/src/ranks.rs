//! A server for the ranks of a launch on one host: a process of its own, which a proxy of `pmc-launch` has
//! started and talks to by its standard streams ([`pmc_wire::ranks`]).

use std::ffi::{CStr, CString, c_char, c_void};
use std::io::{self, Write as _};

use pmc_wire::command::{receive, send};
use pmc_wire::ranks::{FromServer, Part, Start, ToServer};
use serde_bytes::ByteBuf;

use crate::ffi::reason;
use crate::peers;

const SUCCESS: i32 = 0;

/// As `struct pmc_rank_upcalls` in ranks.c.
#[repr(C)]
struct Upcalls {
    begun: extern "C" fn(u32) -> bool,
    finalized: extern "C" fn(u32),
    abort: extern "C" fn(u32, i32),
    fence: unsafe extern "C" fn(*const u8, usize),
}

#[expect(unsafe_code, reason = "functions of ranks.c")]
unsafe extern "C" {
    fn pmc_ranks_start(
        name: *const c_char,
        directory: *const c_char,
        hosts: *const c_char,
        places: *const c_char,
        host_count: u32,
        size: u32,
        node: u32,
        own_host: *const c_char,
        peers: *const c_char,
        local: *const u32,
        programs: *const u32,
        local_count: u32,
        host_of: *const u32,
        host_names: *const *const c_char,
        program_count: u32,
        upcalls: *const Upcalls,
    ) -> i32;
    fn pmc_ranks_environment(
        rank: u32,
        add: unsafe extern "C" fn(*mut c_void, *const c_char),
        list: *mut c_void,
    ) -> i32;
    fn pmc_ranks_pass(bytes: *const u8, size: usize);
}

/// Serves the ranks until standard input ends.
///
/// # Errors
/// The proxy says something else than agreed.
pub fn serve() -> io::Result<()> {
    let mut input = io::stdin().lock();
    let Some(ToServer::Start(start)) = receive(&mut input)? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let directory = tempfile::Builder::new().prefix("pmc-pmix-").tempdir()?;
    let ready = begin(&start, directory.path().as_os_str().as_encoded_bytes());
    say(&match ready {
        Ok(environments) => FromServer::Ready(environments),
        Err(why) => FromServer::Failed(why),
    });
    let mut fence = Vec::new();
    while let Some(message) = receive(&mut input)? {
        let ToServer::Fence(Part { bytes, is_last }) = message else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        fence.extend(bytes);
        if is_last {
            pass(&std::mem::take(&mut fence));
        }
    }
    Ok(())
}

/// Says something to the proxy. Without it, there is nobody to serve.
fn say(message: &FromServer) {
    let mut output = io::stdout().lock();
    if send(&mut output, message).and_then(|()| output.flush()).is_err() {
        std::process::exit(1);
    }
}

/// Starts the server. Returns the variables of each rank of this host.
#[expect(unsafe_code, reason = "functions of C")]
fn begin(start: &Start, directory: &[u8]) -> Result<Vec<(u32, Vec<ByteBuf>)>, String> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| "a name has a zero byte".to_owned());
    let names: Vec<CString> = start
        .hosts
        .iter()
        .map(|host| text(host.as_bytes()))
        .collect::<Result<_, _>>()?;
    let pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let mut of_hosts = vec![String::new(); start.hosts.len()];
    for (rank, host) in start.host_of.iter().enumerate() {
        let ranks = of_hosts
            .get_mut(*host as usize)
            .ok_or_else(|| "a rank has no host".to_owned())?;
        let comma = if ranks.is_empty() { "" } else { "," };
        ranks.push_str(&format!("{comma}{rank}"));
    }
    let own = start.node as usize;
    let (Some(own_host), Some(peers)) = (names.get(own), of_hosts.get(own)) else {
        return Err("this host is none of the launch".to_owned());
    };
    let (local, programs): (Vec<u32>, Vec<u32>) = start.programs.iter().copied().unzip();
    let program_count = programs.iter().max().map_or(1, |last| last + 1);
    let (name, directory) = (text(start.name.as_bytes())?, text(directory)?);
    let hosts = text(start.hosts.join(",").as_bytes())?;
    let (places, peers) = (text(of_hosts.join(";").as_bytes())?, text(peers.as_bytes())?);
    let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    let upcalls = Upcalls {
        begun: on_begun,
        finalized: on_finalized,
        abort: on_abort,
        fence: on_fence,
    };
    // SAFETY: all texts and arrays live during the call, which copies them. Arrays have the given lengths,
    // and each rank has a host among the names.
    let status = unsafe {
        pmc_ranks_start(
            name.as_ptr(),
            directory.as_ptr(),
            hosts.as_ptr(),
            places.as_ptr(),
            number(names.len()),
            number(start.host_of.len()),
            start.node,
            own_host.as_ptr(),
            peers.as_ptr(),
            local.as_ptr(),
            programs.as_ptr(),
            number(local.len()),
            start.host_of.as_ptr(),
            pointers.as_ptr(),
            program_count,
            &raw const upcalls,
        )
    };
    if status != SUCCESS {
        return Err(reason(status));
    }
    local
        .into_iter()
        .map(|rank| Ok((rank, environment(rank)?)))
        .collect()
}

#[expect(unsafe_code, reason = "functions of C")]
fn environment(rank: u32) -> Result<Vec<ByteBuf>, String> {
    let mut variables: Vec<ByteBuf> = Vec::new();
    // SAFETY: the list lives during the call.
    let status = unsafe { pmc_ranks_environment(rank, add_variable, (&raw mut variables).cast()) };
    match status {
        SUCCESS => Ok(variables),
        other => Err(reason(other)),
    }
}

#[expect(unsafe_code, reason = "called by C")]
unsafe extern "C" fn add_variable(list: *mut c_void, variable: *const c_char) {
    // SAFETY: these are the list of `environment`, and a text of the C part.
    let (list, variable) = unsafe { (&mut *list.cast::<Vec<ByteBuf>>(), CStr::from_ptr(variable)) };
    list.push(ByteBuf::from(variable.to_bytes()));
}

#[expect(unsafe_code, reason = "a C function")]
fn pass(bytes: &[u8]) {
    // SAFETY: the bytes live during the call, which copies them.
    unsafe { pmc_ranks_pass(bytes.as_ptr(), bytes.len()) };
}

extern "C" fn on_begun(rank: u32) -> bool {
    // The library believes whatever user number a process gives.
    let is_admitted = peers::admit(None);
    if is_admitted {
        say(&FromServer::Begun(rank));
    }
    is_admitted
}

extern "C" fn on_finalized(rank: u32) {
    say(&FromServer::Finalized(rank));
}

extern "C" fn on_abort(rank: u32, code: i32) {
    say(&FromServer::Abort { rank, code });
}

#[expect(unsafe_code, reason = "called by C")]
unsafe extern "C" fn on_fence(bytes: *const u8, size: usize) {
    let bytes = match bytes.is_null() {
        true => &[],
        // SAFETY: the library has this number of bytes there until this function returns.
        false => unsafe { std::slice::from_raw_parts(bytes, size) },
    };
    Part::all_of(bytes).for_each(|part| say(&FromServer::Fence(part)));
}
