//! Text of input files.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::ScopedJoinHandle;

use crate::diagnostic::{Diagnostic, position_of};

/// Formats an error without its number.
pub(crate) fn io_message(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(n) => text[..n].to_owned(),
        None => text,
    }
}

/// Reads a text file in UTF-8, or in Latin-1 if it is XML that declares this encoding.
pub(crate) fn load(path: &Path) -> Result<String, Diagnostic> {
    let bytes = read(path)
        .map_err(|error| Diagnostic::in_file(path, format!("cannot be read: {}", io_message(&error))))?;
    decode(path, bytes)
}

/// Minimum bytes of a file that several threads read. They spend most of the time on page faults.
const PARALLEL_THRESHOLD: u64 = 8 << 20;
/// Bytes that a thread reads at a time.
const PIECE: usize = 4 << 20;
/// Number of reading threads.
const THREADS: usize = 2;

/// Maximum bytes that are read of a pipe, whose length is not known.
const MAX_PIPE: u64 = 4 << 30;

/// Set when the inputs are those of another user, as long as this process lives.
static ONLY_REGULAR_FILES: AtomicBool = AtomicBool::new(false);

/// Opens no pipe and no device from now on. What a plan of another user names can be one of the user who
/// looks at it: reading it takes from somebody else what was written to it, or does not end.
pub(crate) fn open_only_regular_files() {
    ONLY_REGULAR_FILES.store(true, Ordering::Relaxed);
}

/// Opens an input file.
///
/// # Errors
/// It cannot be opened, or is a FIFO of another user.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    match ONLY_REGULAR_FILES.load(Ordering::Relaxed) {
        true => pmc_files::open(path),
        false => pmc_files::open_input(path),
    }
}

/// Reads a file. It may be one of another user.
///
/// # Errors
/// It cannot be opened or read; it is a FIFO of another user, or has no end.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return pmc_files::read_at_most(file, MAX_PIPE);
    }
    if about.len() >= PARALLEL_THRESHOLD
        && let Some(bytes) = read_by_threads(&file, about.len())
    {
        return Ok(bytes);
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(about.len()).unwrap_or(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a file with several threads. Returns `None` if memory is short, the length has changed, or reading
/// fails. Does not move the position in the file.
fn read_by_threads(file: &File, length: u64) -> Option<Vec<u8>> {
    let size = usize::try_from(length).ok()?;
    // Zeroed memory cannot be allocated fallibly.
    Vec::<u8>::new().try_reserve_exact(size).ok()?;
    let mut bytes = vec![0; size];
    let pieces = Mutex::new(bytes.chunks_mut(PIECE).zip(0_u64..));
    let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
    let thread = || -> io::Result<()> {
        while let Some((piece, n)) = next() {
            file.read_exact_at(piece, n * PIECE as u64)?;
        }
        Ok(())
    };
    let read = std::thread::scope(|scope| {
        let others: Vec<_> = (1..THREADS)
            .filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, thread).ok())
            .collect();
        let own = thread();
        let join = |other: ScopedJoinHandle<'_, io::Result<()>>| {
            other
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        others.into_iter().map(join).chain([own]).all(|read| read.is_ok())
    });
    (read && file.metadata().is_ok_and(|now| now.len() == length)).then_some(bytes)
}

pub(crate) fn decode(path: &Path, bytes: Vec<u8>) -> Result<String, Diagnostic> {
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err(Diagnostic::in_file(
            path,
            "the file is in UTF-16, it must be in UTF-8",
        ));
    }
    let mut text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let bytes = error.into_bytes();
            if !declares_latin1(&bytes) {
                let before = String::from_utf8_lossy(&bytes[..at]).into_owned();
                let position = position_of(&before, before.len());
                return Err(Diagnostic::at(path, position, "the file is not text in UTF-8"));
            }
            bytes.iter().map(|&byte| char::from(byte)).collect()
        }
    };
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(text)
}

fn declares_latin1(bytes: &[u8]) -> bool {
    let head = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).to_ascii_lowercase();
    let declaration = head.split("?>").next().unwrap_or_default();
    declaration.starts_with("<?xml") && declaration.contains("iso-8859-1")
}

/// Returns whether a text is XML: its first non-space character is `<`.
pub(crate) fn is_xml(text: &str) -> bool {
    text.trim_start().starts_with('<')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> Result<String, String> {
        decode(Path::new("f"), bytes.to_vec()).map_err(|e| e.to_string())
    }

    #[test]
    fn encodings_are_detected() {
        assert_eq!(decoded(b"\xef\xbb\xbfa"), Ok("a".into()));
        assert_eq!(decoded("é".as_bytes()), Ok("é".into()));
        assert_eq!(
            decoded(b"<?xml version='1.0' encoding='ISO-8859-1'?><a>\xe9</a>"),
            Ok("<?xml version='1.0' encoding='ISO-8859-1'?><a>é</a>".into())
        );
        assert_eq!(
            decoded(b"a\nbc\xff"),
            Err("f:2:3: the file is not text in UTF-8".into())
        );
        assert_eq!(
            decoded(b"\xff\xfea\0"),
            Err("f: the file is in UTF-16, it must be in UTF-8".into())
        );
    }

    #[test]
    fn large_files_are_read_completely() {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        let text: String = (0..2_000_000).map(|n| format!("{n}\n")).collect();
        assert!(text.len() as u64 > PARALLEL_THRESHOLD && !text.len().is_multiple_of(PIECE));
        io::Write::write_all(&mut file, text.as_bytes()).expect("it can be written");
        assert!(load(file.path()).expect("it can be read") == text);
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = load(Path::new("/nonexistent/w.yml")).expect_err("no such file");
        assert_eq!(
            error.to_string(),
            "/nonexistent/w.yml: cannot be read: No such file or directory"
        );
    }
}
