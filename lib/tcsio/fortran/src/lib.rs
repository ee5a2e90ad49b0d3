//! `libtcsiof.so`: the functions of `tcsio.h` for programs in Fortran, which call them without the
//! underscore.
//!
//! A Fortran compiler passes all arguments by address, and the length of each text as a further argument at
//! the end. A literal has no zero at its end, and another one may follow it in memory.

#![expect(unsafe_code, reason = "the functions of a library")]

use std::ffi::{c_char, c_int, c_long, c_void};

use pmc_tcsio::api;

pmc_tcsio::functions_without_texts!();

/// Returns the text that a Fortran compiler passes.
///
/// # Safety
/// `text` is null or leads to `length` bytes.
unsafe fn bytes<'a>(text: *const c_char, length: usize) -> &'a [u8] {
    match text.is_null() || length == 0 {
        true => &[],
        // SAFETY: as above.
        false => unsafe { std::slice::from_raw_parts(text.cast(), length) },
    }
}

/// `tcs_init(0)`: prepares the library.
///
/// # Safety
/// `exp` is null or leads to an integer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcs_init_(exp: *mut c_int) -> c_int {
    // SAFETY: as above.
    api::init(unsafe { api::number(exp) }.unwrap_or(0) == 0)
}

/// `tcs_open_write(prefix)`: opens a file for writing.
///
/// # Safety
/// `prefix` leads to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcs_open_write_(prefix: *mut c_char, length: usize) -> c_int {
    // SAFETY: as above.
    api::open(api::prefix_in(unsafe { bytes(prefix, length) }), true)
}

/// `tcs_open_read(prefix)`: opens a file for reading.
///
/// # Safety
/// `prefix` leads to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcs_open_read_(prefix: *mut c_char, length: usize) -> c_int {
    // SAFETY: as above.
    api::open(api::prefix_in(unsafe { bytes(prefix, length) }), false)
}

/// `tcs_postmessage(msg, length)`: says something about the progress of the program. With length 0, blanks at
/// the end do not count.
///
/// # Safety
/// `msg` leads to `hidden` bytes, `length` to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcs_postmessage_(msg: *const c_char, length: *mut c_int, hidden: usize) -> c_int {
    // SAFETY: as above.
    let (text, length) = unsafe { (bytes(msg, hidden), api::number(length)) };
    let length = length
        .and_then(|length| usize::try_from(length).ok())
        .unwrap_or(0);
    api::postmessage(match length {
        0 => text.trim_ascii_end(),
        length => text.get(..length).unwrap_or(text),
    })
}

/// `pmc_checkpoint_due()`: whether the program is to save its state now.
#[unsafe(no_mangle)]
pub extern "C" fn pmc_checkpoint_due_() -> c_int {
    api::checkpoint_due()
}
