//! The functions of Appendix A, for the layers that have their names and calling conventions.
//!
//! They print what goes wrong to standard error and return what the paper says: most of them 0, or another
//! number if they were not successful.

use std::ffi::{c_char, c_int, c_void};
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pmc_checkpoint::{MAX_PREFIX, Settings};
use pmc_wire::checkpoint::VARIABLE;

use crate::{Connection, KeepDirectory, Library, Process};

/// What `tcs_init_` has made.
static LIBRARY: Mutex<Option<Library>> = Mutex::new(None);

fn library() -> MutexGuard<'static, Option<Library>> {
    // What is inside is valid at every moment, even if a thread panicked.
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints a message.
fn say(function: &str, message: &str) {
    // If that fails, there is no other way to say it.
    let _ = writeln!(std::io::stderr(), "tcsio: {function}: {message}");
}

/// Calls something with the library. Without `tcs_init_`, and after an error, returns `failed`.
fn with(function: &str, failed: c_int, act: impl FnOnce(&mut Library) -> Result<c_int, String>) -> c_int {
    let result = match &mut *library() {
        Some(library) => act(library),
        None => Err("tcs_init_ must be called first, and be successful".to_owned()),
    };
    result.unwrap_or_else(|message| {
        say(function, &message);
        failed
    })
}

/// `tcs_init_`: 0, or -1. `is_zero`: the reserved parameter has the value that it must have.
pub fn init(is_zero: bool) -> c_int {
    if !is_zero {
        say("tcs_init_", "the parameter is reserved: it must be 0");
        return -1;
    }
    let mut library = library();
    if library.is_some() {
        return 0;
    }
    let variable = |name: &str| std::env::var(name).ok();
    let process = Process::find(variable);
    if let Err(error) = Settings::find(variable) {
        say("tcs_init_", &error.to_string());
        return -1;
    }
    match Connection::open(variable(VARIABLE).as_deref(), process) {
        Ok(connection) => {
            let keep = KeepDirectory(std::env::var_os("TMPDIR").map(Into::into));
            *library = Some(Library::new(connection, process.rank, keep));
            0
        }
        Err(error) => {
            say("tcs_init_", &error.to_string());
            -1
        }
    }
}

/// `tcs_jobrestarted_`: the number of the series from which the program goes on, 0 without one, or -1.
pub fn jobrestarted() -> c_int {
    with("tcs_jobrestarted_", -1, |library| Ok(library.restarted()))
}

/// `tcs_open_write_` and `tcs_open_read_`: the number of the file, or -1.
pub fn open(prefix: &[u8], writes: bool) -> c_int {
    let function = if writes {
        "tcs_open_write_"
    } else {
        "tcs_open_read_"
    };
    let prefix = String::from_utf8_lossy(prefix);
    with(function, -1, |library| library.open(&prefix, writes))
}

/// Returns the letters and digits at the beginning of a C string, at most one more than a prefix has.
///
/// # Safety
/// The text must end with a byte that is neither a letter nor a digit, or have as many bytes as that.
#[expect(unsafe_code, reason = "C strings have no length")]
pub unsafe fn prefix_of(text: *const c_char) -> Vec<u8> {
    let mut prefix = Vec::new();
    if text.is_null() {
        return prefix;
    }
    for at in 0..=MAX_PREFIX {
        // SAFETY: all bytes before were letters or digits, so the text does not end here.
        let byte = unsafe { text.add(at).cast::<u8>().read() };
        if !byte.is_ascii_alphanumeric() {
            break;
        }
        prefix.push(byte);
    }
    prefix
}

/// Returns the letters and digits at the beginning of a text.
#[must_use]
pub fn prefix_in(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| !byte.is_ascii_alphanumeric());
    text.get(..end.unwrap_or(text.len())).unwrap_or(text)
}

/// Returns the number that a pointer leads to.
///
/// # Safety
/// The pointer must be null or lead to a number.
#[expect(unsafe_code, reason = "programs pass numbers by their addresses")]
pub unsafe fn number<T: Copy + TryInto<i64>>(pointer: *const T) -> Option<i64> {
    // SAFETY: as above.
    let value = (!pointer.is_null()).then(|| unsafe { pointer.read_unaligned() })?;
    value.try_into().ok()
}

/// Returns the bytes of `count` elements of this size.
fn length(data: *const c_void, count: Option<i64>, size: Option<i64>) -> Result<usize, String> {
    let bytes = count.zip(size).and_then(|(count, size)| count.checked_mul(size));
    let bytes = bytes.filter(|_| size > Some(0));
    let length = bytes.and_then(|bytes| isize::try_from(bytes).ok()?.try_into().ok());
    let length: usize = length.ok_or("the number of elements or their size is wrong")?;
    match data.is_null() && length > 0 {
        true => Err("the buffer is a null pointer".to_owned()),
        false => Ok(length),
    }
}

fn file(lun: Option<i64>) -> Result<i32, String> {
    let number = lun.and_then(|lun| i32::try_from(lun).ok());
    number.ok_or_else(|| "the number of the file is missing".to_owned())
}

/// `tcs_write_`, `tcs_write8_`, `tcs_write4_`: 0, or -1.
///
/// # Safety
/// `data` must lead to `count` elements of `size` bytes.
#[expect(unsafe_code, reason = "programs pass buffers by their addresses")]
pub unsafe fn write(lun: Option<i64>, data: *const c_void, count: Option<i64>, size: Option<i64>) -> c_int {
    with("tcs_write_", -1, |library| {
        let (lun, length) = (file(lun)?, length(data, count, size)?);
        let bytes = match length {
            0 => &[],
            // SAFETY: as above.
            _ => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) },
        };
        library.write(lun, bytes).map(|()| 0)
    })
}

/// `tcs_read_`, `tcs_read8_`, `tcs_read4_`: 0, or -1.
///
/// # Safety
/// `data` must lead to room for `count` elements of `size` bytes.
#[expect(unsafe_code, reason = "programs pass buffers by their addresses")]
pub unsafe fn read(lun: Option<i64>, data: *mut c_void, count: Option<i64>, size: Option<i64>) -> c_int {
    with("tcs_read_", -1, |library| {
        let (lun, length) = (file(lun)?, length(data, count, size)?);
        let bytes = match length {
            0 => &mut [],
            // SAFETY: as above. Whatever the buffer holds are bytes.
            _ => unsafe { std::slice::from_raw_parts_mut(data.cast::<u8>(), length) },
        };
        library.read(lun, bytes).map(|()| 0)
    })
}

/// `tcs_close_`: 0, or -1.
pub fn close(lun: Option<i64>, keep: Option<i64>) -> c_int {
    with("tcs_close_", -1, |library| {
        library
            .close(file(lun)?, keep.is_some_and(|keep| keep != 0))
            .map(|()| 0)
    })
}

/// `tcs_finalize_`: 0, or -1.
pub fn finalize() -> c_int {
    match library().take() {
        // The service discards files that are open.
        Some(library) => match library.finish() {
            Ok(()) => 0,
            Err(message) => {
                say("tcs_finalize_", &message);
                -1
            }
        },
        None => {
            say(
                "tcs_finalize_",
                "tcs_init_ must be called first, and be successful",
            );
            -1
        }
    }
}

/// `tcs_postmessage_`: 0, or -1.
pub fn postmessage(text: &[u8]) -> c_int {
    with("tcs_postmessage_", -1, |library| {
        library.message(text).map(|()| 0)
    })
}

/// `tcs_drainoperation_`: 1 if the run drains, 0 if not, -1 if that is not known.
pub fn drainoperation() -> c_int {
    with("tcs_drainoperation_", -1, |library| {
        library.is_draining().map(c_int::from)
    })
}

/// `pmc_checkpoint_due`: 1 if the program is to save its state now, 0 if not, -1 if that is not known.
pub fn checkpoint_due() -> c_int {
    with("pmc_checkpoint_due", -1, |library| {
        library.is_due().map(c_int::from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "the functions are those of C")]
    fn all_functions_fail_before_the_first() {
        let mut number = 0;
        // SAFETY: the pointers lead to the number.
        unsafe {
            assert_eq!(write(Some(1), (&raw const number).cast(), Some(1), Some(4)), -1);
            assert_eq!(read(Some(1), (&raw mut number).cast(), Some(1), Some(4)), -1);
        }
        assert_eq!([jobrestarted(), open(b"a", true), open(b"a", false)], [-1; 3]);
        assert_eq!([close(Some(1), Some(0)), finalize(), postmessage(b"x")], [-1; 3]);
        assert_eq!([drainoperation(), checkpoint_due()], [-1; 2]);
        // Outside of a run, and with a parameter that is not 0.
        assert_eq!([init(false), init(true)], [-1; 2]);
    }

    #[test]
    #[expect(unsafe_code, reason = "the functions are those of C")]
    fn prefixes_end_at_the_first_other_byte() {
        let prefix = |text: &std::ffi::CStr| {
            // SAFETY: the text ends with a zero.
            unsafe { prefix_of(text.as_ptr()) }
        };
        assert_eq!(prefix(c"fields"), b"fields");
        assert_eq!(prefix(c"fields  "), b"fields");
        assert_eq!(prefix(c""), b"");
        assert_eq!(prefix(c"abcdefghijklmnopqrstuvwxyz").len(), MAX_PREFIX + 1);
        // SAFETY: a null pointer is allowed.
        assert_eq!(unsafe { prefix_of(std::ptr::null()) }, b"");
        assert_eq!(prefix_in(b"fields  "), b"fields");
        assert_eq!(prefix_in(b"fields"), b"fields");
    }

    #[test]
    fn lengths_are_checked() {
        let data = std::ptr::dangling::<c_void>();
        assert_eq!(length(data, Some(3), Some(4)), Ok(12));
        assert_eq!(length(std::ptr::null(), Some(0), Some(4)), Ok(0));
        for (count, size) in [
            (Some(-1), Some(4)),
            (Some(1), Some(0)),
            (Some(1), Some(-4)),
            (Some(i64::MAX), Some(8)),
            (None, Some(4)),
            (Some(1), None),
        ] {
            assert!(length(data, count, size).is_err(), "{count:?} {size:?}");
        }
        assert!(length(std::ptr::null(), Some(1), Some(4)).is_err());
    }
}
