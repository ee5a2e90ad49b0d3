//! Plain text tables.

use std::fmt::Write as _;

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// A table with a heading and two blanks between columns.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes an empty table with these columns.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Table {
            columns: columns.iter().map(|(_, align)| *align).collect(),
            rows: vec![columns.iter().map(|(name, _)| (*name).to_owned()).collect()],
        }
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Renders the table; each line starts with `indent`.
    pub fn render(&self, indent: &str) -> String {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = indent.to_owned();
            for ((cell, align), width) in row.iter().zip(&self.columns).zip(&widths) {
                let _ = match align {
                    Align::Left => write!(line, "{cell:<width$}  "),
                    Align::Right => write!(line, "{cell:>width$}  "),
                };
            }
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out
    }
}

/// Formats a number with commas, such as `12,345`.
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("name", Align::Left), ("count", Align::Right)]);
        table.row(["ä", "1"]);
        table.row(["longer", "12,345"]);
        assert_eq!(
            table.render("  "),
            "  name     count\n  ä            1\n  longer  12,345\n"
        );
    }

    #[test]
    fn large_numbers() {
        let texts: Vec<_> = [0, 999, 1000, 1_234_567].map(thousands).into();
        assert_eq!(texts, ["0", "999", "1,000", "1,234,567"]);
    }
}
