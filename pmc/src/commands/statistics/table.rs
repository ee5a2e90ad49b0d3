//! Rows of CSV, and numbers in tables.

use std::borrow::Cow;
use std::io::{self, Write};

/// Writes a row.
pub fn line<S: AsRef<str>>(out: &mut impl Write, cells: &[S]) -> io::Result<()> {
    for (at, cell) in cells.iter().enumerate() {
        if at > 0 {
            out.write_all(b",")?;
        }
        out.write_all(quoted(cell.as_ref()).as_bytes())?;
    }
    out.write_all(b"\n")
}

/// Quotes a cell. Spreadsheets compute cells that begin with these characters, so names get an apostrophe.
pub fn quoted(cell: &str) -> Cow<'_, str> {
    if cell.starts_with(['=', '+', '-', '@', '\t']) && cell != "-" && cell.parse::<f64>().is_err() {
        return Cow::Owned(quoted(&format!("'{cell}")).into_owned());
    }
    if cell.contains([',', '"', '\n', '\r']) {
        Cow::Owned(format!("\"{}\"", cell.replace('"', "\"\"")))
    } else {
        Cow::Borrowed(cell)
    }
}

/// Formats a number with at most six decimals.
pub fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
