//! Arguments and variables in the form that `execve` takes.

use std::ffi::{CStr, c_char};
use std::io;
use std::ptr;

/// An array of C strings in one piece of memory.
#[derive(Clone, Debug, Default)]
pub struct CStrings {
    /// The strings, each with its final zero byte.
    text: Vec<u8>,
    /// Where each string starts in `text`.
    starts: Vec<usize>,
}

impl CStrings {
    /// Reserves memory for strings with this number of bytes.
    #[must_use]
    pub fn with_capacity(strings: usize, bytes: usize) -> Self {
        Self {
            text: Vec::with_capacity(bytes + strings),
            starts: Vec::with_capacity(strings),
        }
    }

    /// Adds a string.
    pub fn push(&mut self, string: &CStr) {
        self.starts.push(self.text.len());
        self.text.extend_from_slice(string.to_bytes_with_nul());
    }

    /// Adds a string that has no final zero byte yet.
    ///
    /// # Errors
    /// `InvalidInput` if the string contains a zero byte.
    pub fn push_bytes(&mut self, string: &[u8]) -> io::Result<()> {
        if string.contains(&0) {
            let message = "an argument or variable contains a zero byte";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        self.starts.push(self.text.len());
        self.text.extend_from_slice(string);
        self.text.push(0);
        Ok(())
    }

    /// Returns the number of strings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns whether there are no strings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Returns pointers to the strings, with a null pointer at the end. They are valid while `self` is
    /// borrowed.
    pub(crate) fn pointers(&self) -> Vec<*const c_char> {
        let mut pointers = Vec::with_capacity(self.starts.len() + 1);
        pointers.extend(
            self.starts
                .iter()
                .map(|&start| self.text[start..].as_ptr().cast()),
        );
        pointers.push(ptr::null());
        pointers
    }
}

impl<'a> FromIterator<&'a CStr> for CStrings {
    fn from_iter<I: IntoIterator<Item = &'a CStr>>(strings: I) -> Self {
        let mut array = Self::default();
        array.extend(strings);
        array
    }
}

impl<'a> Extend<&'a CStr> for CStrings {
    fn extend<I: IntoIterator<Item = &'a CStr>>(&mut self, strings: I) {
        for string in strings {
            self.push(string);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_with_a_zero_byte_are_refused() {
        let mut array = CStrings::default();
        array.push_bytes(b"a=b").unwrap();
        assert!(array.push_bytes(b"c\0d").is_err());
        assert_eq!(array.len(), 1);
        assert_eq!(array.text, b"a=b\0");
    }
}
