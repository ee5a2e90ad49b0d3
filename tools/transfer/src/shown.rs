//! Display of file names in messages and logs: always on one line, with any bytes.

use std::fmt::{self, Display, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Displays bytes as text. Escapes control characters and bytes that are not UTF-8.
pub struct Shown<'a>(&'a [u8]);

/// Displays a path.
#[must_use]
pub fn path(path: &Path) -> Shown<'_> {
    Shown(path.as_os_str().as_bytes())
}

/// Displays bytes.
#[must_use]
pub fn bytes(bytes: &[u8]) -> Shown<'_> {
    Shown(bytes)
}

impl Display for Shown<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() {
                    write!(out, "{}", c.escape_default())?;
                } else {
                    out.write_char(c)?;
                }
            }
            for byte in chunk.invalid() {
                write!(out, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_bytes_are_escaped() {
        assert_eq!(
            bytes(b"a\nb\xff\x1bc 'd' \xc3\xa9").to_string(),
            "a\\nb\\xff\\u{1b}c 'd' é"
        );
    }
}
