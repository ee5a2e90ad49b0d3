//! `libtcsio.so`: the functions of `tcsio.h` for programs in C and C++.

#![expect(unsafe_code, reason = "the functions of a C library")]

use std::ffi::{CStr, c_char, c_int, c_long, c_void};

use pmc_tcsio::api;

/// Prepares the library. `exp` must be a null pointer.
#[unsafe(no_mangle)]
pub extern "C" fn tcs_init_(exp: *mut c_void) -> c_int {
    api::init(exp.is_null())
}

/// Returns the number of the series from which the program goes on.
#[unsafe(no_mangle)]
pub extern "C" fn tcs_jobrestarted_() -> c_int {
    api::jobrestarted()
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

/// Writes elements.
///
/// # Safety
/// The pointers lead to what `tcsio.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcs_write_(
    lun: *mut c_int,
    data: *mut c_void,
    len: *const c_long,
    datasize: *mut c_int,
) -> c_int {
    // SAFETY: as above.
    unsafe { api::write(api::number(lun), data, api::number(len), api::number(datasize)) }
}

/// Writes elements of 8 bytes.
///
/// # Safety
/// The pointers lead to what `tcsio.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcs_write8_(lun: *mut c_int, data: *mut c_void, len: *const c_long) -> c_int {
    // SAFETY: as above.
    unsafe { api::write(api::number(lun), data, api::number(len), Some(8)) }
}

/// Writes elements of 4 bytes.
///
/// # Safety
/// The pointers lead to what `tcsio.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcs_write4_(lun: *mut c_int, data: *mut c_void, len: *const c_long) -> c_int {
    // SAFETY: as above.
    unsafe { api::write(api::number(lun), data, api::number(len), Some(4)) }
}

/// Reads elements. Appendix A declares the address of an `int`, its program passes that of a `long`: the
/// first 32 bits are read.
///
/// # Safety
/// The pointers lead to what `tcsio.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcs_read_(
    lun: *mut c_int,
    data: *mut c_void,
    len: *const c_void,
    datasize: *mut c_int,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        let count = api::number(len.cast::<c_int>());
        api::read(api::number(lun), data, count, api::number(datasize))
    }
}

/// Reads elements of 8 bytes.
///
/// # Safety
/// The pointers lead to what `tcsio.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcs_read8_(lun: *mut c_int, data: *mut c_void, len: *mut c_long) -> c_int {
    // SAFETY: as above.
    unsafe { api::read(api::number(lun), data, api::number(len), Some(8)) }
}

/// Reads elements of 4 bytes.
///
/// # Safety
/// The pointers lead to what `tcsio.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcs_read4_(lun: *mut c_int, data: *mut c_void, len: *mut c_long) -> c_int {
    // SAFETY: as above.
    unsafe { api::read(api::number(lun), data, api::number(len), Some(4)) }
}

/// Closes a file.
///
/// # Safety
/// The pointers are null or lead to numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcs_close_(lun: *mut c_int, keep: *mut c_int) -> c_int {
    // SAFETY: as above.
    unsafe { api::close(api::number(lun), api::number(keep)) }
}

/// Releases what `tcs_init_` has taken.
#[unsafe(no_mangle)]
pub extern "C" fn tcs_finalize_() -> c_int {
    api::finalize()
}

/// Says something about the progress of the program. Without a length, or with length 0, the text is a C
/// string.
///
/// # Safety
/// `msg` leads to so many bytes, or is a C string; `length` is null or leads to a number.
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

/// Returns whether the run drains.
#[unsafe(no_mangle)]
pub extern "C" fn tcs_drainoperation_() -> c_int {
    api::drainoperation()
}

/// Returns whether the program is to save its state now.
#[unsafe(no_mangle)]
pub extern "C" fn pmc_checkpoint_due() -> c_int {
    api::checkpoint_due()
}
