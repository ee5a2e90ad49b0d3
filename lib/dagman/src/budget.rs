//! What a whole DAG may take, whatever its files multiply.

use std::cell::Cell;

use crate::error::ErrorKind;

/// Bytes that a DAG may have: of all texts each time that they are read, of names and of expanded values.
/// A million nodes with long command lines take a half.
const MAX_BYTES: usize = if cfg!(test) { 16 << 20 } else { 1 << 30 };
/// Times that DAGMan files may be read: a file counts each time that it is part of another one.
const MAX_FILES: usize = if cfg!(test) { 1 << 12 } else { 1 << 16 };
/// Bytes that a macro counts for, besides its value.
const PER_MACRO: usize = 64;

/// The rest of what a DAG may take.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: Cell<usize>,
    files: Cell<usize>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            bytes: Cell::new(MAX_BYTES),
            files: Cell::new(MAX_FILES),
        }
    }
}

impl Budget {
    /// Takes bytes.
    ///
    /// # Errors
    /// There are fewer left.
    pub(crate) fn bytes(&self, bytes: usize) -> Result<(), ErrorKind> {
        take(&self.bytes, bytes, MAX_BYTES, "bytes of text, macros expanded")
    }

    /// Takes the expansion of a macro.
    ///
    /// # Errors
    /// There is not so much left.
    pub(crate) fn expansion(&self) -> Result<(), ErrorKind> {
        self.bytes(PER_MACRO)
    }

    /// Takes one reading of a DAGMan file.
    ///
    /// # Errors
    /// There is none left.
    pub(crate) fn file(&self) -> Result<(), ErrorKind> {
        take(&self.files, 1, MAX_FILES, "parts (INCLUDE, SPLICE, SUBDAG)")
    }
}

fn take(left: &Cell<usize>, number: usize, limit: usize, what: &'static str) -> Result<(), ErrorKind> {
    let rest = left.get().checked_sub(number);
    left.set(rest.ok_or(ErrorKind::TooLarge { what, limit })?);
    Ok(())
}
