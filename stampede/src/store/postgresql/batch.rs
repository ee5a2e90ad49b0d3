//! Rows that were not sent yet, column by column.

use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Statement};

use super::client::Client;

/// Maximum rows held back.
const MAX_ROWS: usize = 20_000;
/// Maximum bytes of their texts.
const MAX_BYTES: usize = 8 << 20;

/// A value of a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'v> {
    Int(Option<i64>),
    Real(Option<f64>),
    Text(Option<&'v str>),
}

impl From<i64> for Value<'_> {
    fn from(value: i64) -> Self {
        Self::Int(Some(value))
    }
}

impl<'v> From<&'v str> for Value<'v> {
    fn from(value: &'v str) -> Self {
        Self::Text(Some(value))
    }
}

impl<'v> From<&'v String> for Value<'v> {
    fn from(value: &'v String) -> Self {
        Self::Text(Some(value))
    }
}

impl<'v> From<Option<&'v str>> for Value<'v> {
    fn from(value: Option<&'v str>) -> Self {
        Self::Text(value)
    }
}

impl<'v> From<&'v Option<String>> for Value<'v> {
    fn from(value: &'v Option<String>) -> Self {
        Self::Text(value.as_deref())
    }
}

/// Type of a column.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// `BIGINT`.
    Id,
    /// `INTEGER`; larger numbers are clamped.
    Int,
    /// `NUMERIC` with this number of digits before the point.
    Real(u8),
    /// `VARCHAR` of this length.
    Varchar(usize),
    /// `TEXT`.
    Text,
}

/// A table and its statement.
#[derive(Debug)]
pub(super) struct Table {
    pub kinds: &'static [Kind],
    /// Inserts all rows: one array per column.
    pub sql: &'static str,
}

#[derive(Debug)]
enum Column {
    Ints(Vec<Option<i64>>),
    Reals(Vec<Option<f64>>),
    Texts(Vec<Option<String>>),
}

impl Column {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Id | Kind::Int => Self::Ints(Vec::new()),
            Kind::Real(_) => Self::Reals(Vec::new()),
            Kind::Varchar(_) | Kind::Text => Self::Texts(Vec::new()),
        }
    }

    fn parameter(&self) -> &(dyn ToSql + Sync) {
        match self {
            Self::Ints(values) => values,
            Self::Reals(values) => values,
            Self::Texts(values) => values,
        }
    }

    fn clear(&mut self) {
        match self {
            Self::Ints(values) => values.clear(),
            Self::Reals(values) => values.clear(),
            Self::Texts(values) => values.clear(),
        }
    }
}

struct Batch {
    table: &'static Table,
    columns: Vec<Column>,
    rows: usize,
    statement: Option<Statement>,
}

/// The rows of all tables, which are sent in the order of their tables.
pub(super) struct Batches {
    batches: Vec<Batch>,
    rows: usize,
    bytes: usize,
}

impl Batches {
    /// No rows of these tables.
    pub fn new(tables: &'static [Table]) -> Self {
        let batch = |table: &'static Table| Batch {
            table,
            columns: table.kinds.iter().map(|kind| Column::new(*kind)).collect(),
            rows: 0,
            statement: None,
        };
        Self {
            batches: tables.iter().map(batch).collect(),
            rows: 0,
            bytes: 0,
        }
    }

    /// Adds a row. Returns the number of truncated texts.
    pub fn push<const N: usize>(&mut self, table: usize, row: [Value<'_>; N]) -> u64 {
        let batch = &mut self.batches[table];
        debug_assert_eq!(batch.columns.len(), N, "{}", batch.table.sql);
        let mut truncated = 0;
        for ((column, kind), value) in batch.columns.iter_mut().zip(batch.table.kinds).zip(row) {
            match (column, value) {
                (Column::Ints(values), Value::Int(value)) => values.push(match kind {
                    Kind::Int => value.map(|value| value.clamp(i32::MIN.into(), i32::MAX.into())),
                    _ => value,
                }),
                (Column::Reals(values), Value::Real(value)) => {
                    values.push(value.map(|value| real(value, *kind)))
                }
                (Column::Texts(values), Value::Text(value)) => {
                    let (text, whole) = value.map_or((None, true), |value| {
                        let (text, whole) = fitting(value, *kind);
                        self.bytes += text.len();
                        (Some(text), whole)
                    });
                    truncated += u64::from(!whole);
                    values.push(text);
                }
                (Column::Ints(values), _) => values.push(None),
                (Column::Reals(values), _) => values.push(None),
                (Column::Texts(values), _) => values.push(None),
            }
        }
        batch.rows += 1;
        self.rows += 1;
        truncated
    }

    pub fn is_full(&self) -> bool {
        self.rows >= MAX_ROWS || self.bytes >= MAX_BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns whether there are rows of a table.
    pub fn has_rows(&self, table: usize) -> bool {
        self.batches[table].rows > 0
    }

    /// Sends all rows.
    pub fn send(&mut self, client: &mut Client) -> Result<(), Error> {
        for batch in self.batches.iter_mut().filter(|batch| batch.rows > 0) {
            let statement = match &batch.statement {
                Some(statement) => statement,
                None => batch.statement.insert(client.prepare(batch.table.sql)?),
            };
            let parameters: Vec<_> = batch.columns.iter().map(Column::parameter).collect();
            client.execute(statement, &parameters)?;
            batch.columns.iter_mut().for_each(Column::clear);
            batch.rows = 0;
        }
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }
}

/// Clamps a number to its column.
fn real(value: f64, kind: Kind) -> f64 {
    let digits = match kind {
        Kind::Real(digits) => i32::from(digits),
        _ => return value,
    };
    // The largest number that is not rounded up to one more digit.
    let max = 10_f64.powi(digits) - 1.0;
    if value.is_nan() {
        0.0
    } else {
        value.clamp(-max, max)
    }
}

/// Truncates a text to its column. Returns whether it is complete, too. Removes NUL, which servers refuse.
fn fitting(text: &str, kind: Kind) -> (String, bool) {
    let max = match kind {
        Kind::Varchar(max) => max,
        _ => usize::MAX,
    };
    let end = if text.len() <= max {
        None
    } else {
        text.char_indices().nth(max).map(|(at, _)| at)
    };
    let part = &text[..end.unwrap_or(text.len())];
    let text = if part.contains('\0') {
        part.replace('\0', "")
    } else {
        part.to_owned()
    };
    (text, end.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_fitted_to_their_columns() {
        assert_eq!(fitting("äöü", Kind::Varchar(2)), ("äö".to_owned(), false));
        assert_eq!(fitting("äöü", Kind::Varchar(3)), ("äöü".to_owned(), true));
        assert_eq!(fitting("a\0b", Kind::Text), ("ab".to_owned(), true));
        assert_eq!(real(1e9, Kind::Real(7)), 9_999_999.0);
        assert_eq!(real(f64::NAN, Kind::Real(7)), 0.0);
        assert_eq!(real(-2.5, Kind::Real(7)), -2.5);
    }
}
