//! `libtcsio.so`: the functions of `tcsio.h` for programs in C and C++.

#![expect(unsafe_code, reason = "the functions of a C library")]

use std::ffi::{CStr, c_char, c_int, c_long, c_void};

use pmc_tcsio::api;

pmc_tcsio::functions_without_texts!();

/// Prepares the library. `exp` must be a null pointer.
#[unsafe(no_mangle)]
pub extern "C" fn tcs_init_(exp: *mut c_void) -> c_int {
    api::init(exp.is_null())
}

/// Opens a file for writing.
///
/// # Safety
/// `prefix` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcs_open_write_(prefix: *mut c_char) -> c_int {
    // SAFETY: as above.
    api::open(&unsafe { api::prefix_of(prefix) }, true)
}

/// Opens a file for reading.
///
/// # Safety
/// `prefix` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcs_open_read_(prefix: *mut c_char) -> c_int {
    // SAFETY: as above.
    api::open(&unsafe { api::prefix_of(prefix) }, false)
}

/// Says something about the progress of the program. Without a length, or with length 0, the text is a C
/// string.
///
/// # Safety
/// `length` is null or leads to a number. `msg` leads to that number of bytes, or is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcs_postmessage_(msg: *const c_char, length: *mut c_int) -> c_int {
    if msg.is_null() {
        return api::postmessage(b"");
    }
    // SAFETY: as above.
    let text = match unsafe { api::number(length) }.and_then(|length| usize::try_from(length).ok()) {
        // SAFETY: as above.
        None | Some(0) => unsafe { CStr::from_ptr(msg) }.to_bytes(),
        // SAFETY: as above.
        Some(length) => unsafe { std::slice::from_raw_parts(msg.cast(), length) },
    };
    api::postmessage(text)
}

/// Returns whether the program is to save its state now.
#[unsafe(no_mangle)]
pub extern "C" fn pmc_checkpoint_due() -> c_int {
    api::checkpoint_due()
}
