//! Output of jobs in the columns `stdout_text` and `stderr_text`.

use serde_json::Value;

/// Maximum characters of a column; some databases limit it to 64 KiB.
const MAX_COLUMN: usize = 65_535;

const PAYLOAD_START: &str = "@@@MONITORING_PAYLOAD - START@@@";
const PAYLOAD_END: &str = "@@@MONITORING_PAYLOAD - END@@@";

/// Sums of one kind of checksum work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Metric {
    /// Files.
    pub count: i64,
    /// Files with a wrong checksum.
    pub failed: i64,
    /// Seconds.
    pub seconds: f64,
}

impl Metric {
    /// Adds another metric.
    pub fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.failed = self.failed.saturating_add(other.failed);
        self.seconds += other.seconds;
    }
}

/// Columns `type` and `file_type` of a metric: `check` or `compute`, `input` or `output`.
pub type MetricKind = (&'static str, &'static str);

/// Converts bytes to text. Bytes that are no UTF-8 are replaced.
#[must_use]
pub fn into_lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Removes the blocks for monitoring from a text. Calls `take` with their metrics.
pub fn without_payloads(text: &str, mut take: impl FnMut(MetricKind, Metric)) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(PAYLOAD_START) {
        let Some((payload, after)) = after.split_once(PAYLOAD_END) else {
            break;
        };
        out.push_str(before);
        metrics(payload, &mut take);
        rest = after;
    }
    out.push_str(rest);
    out
}

fn metrics(payload: &str, take: &mut impl FnMut(MetricKind, Metric)) {
    let Ok(event) = serde_json::from_str::<Value>(payload.trim()) else {
        return;
    };
    if event.get("monitoring_event").and_then(Value::as_str) != Some("int.metric") {
        return;
    }
    for item in event
        .get("payload")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let text = |key: &str| item.get(key).and_then(Value::as_str).unwrap_or_default();
        // Some writers quote their numbers.
        let number = |key: &str| {
            let value = item.get(key)?;
            value.as_f64().or_else(|| value.as_str()?.parse().ok())
        };
        #[expect(clippy::cast_possible_truncation, reason = "a wrong count may saturate")]
        let count = |key: &str| number(key).map_or(0, |value| value as i64);
        let kind = match text("event") {
            "check" => "check",
            "compute" => "compute",
            _ => continue,
        };
        let files = match text("file_type") {
            "input" => "input",
            "output" => "output",
            _ => continue,
        };
        let failed = count("failed");
        let total = match count("count") {
            0 => count("succeeded").saturating_add(failed),
            total => total,
        };
        let seconds = number("duration")
            .filter(|value| value.is_finite())
            .unwrap_or(0.0);
        take(
            (kind, files),
            Metric {
                count: total,
                failed,
                seconds,
            },
        );
    }
}

/// The text of a column, encoded piece by piece.
#[derive(Clone, Debug, Default)]
pub struct Column(String);

impl Column {
    /// Returns the finished column.
    #[must_use]
    pub fn finish(self) -> String {
        self.0
    }

    /// Encodes and adds a text. A text that does not fit loses its middle, as errors stand at the end.
    pub fn push(&mut self, text: &str) {
        const GAP: &str = "%0A[...]%0A";
        let room = MAX_COLUMN.saturating_sub(self.0.len());
        let size = encoded_len(text);
        if size <= room {
            self.0.reserve(size);
            text.bytes().for_each(|byte| encode(&mut self.0, byte));
        } else if let Some(room) = room.checked_sub(GAP.len()) {
            let head = fitting(text.bytes(), room / 2);
            let tail = fitting(text.bytes().rev(), room - room / 2);
            // Do not split a character.
            let head = text.floor_char_boundary(head);
            let tail = text.ceil_char_boundary(text.len() - tail);
            text[..head].bytes().for_each(|byte| encode(&mut self.0, byte));
            self.0.push_str(GAP);
            text[tail..].bytes().for_each(|byte| encode(&mut self.0, byte));
        }
    }
}

/// Returns the number of bytes whose encoding fits.
fn fitting(bytes: impl Iterator<Item = u8>, room: usize) -> usize {
    let mut left = room;
    bytes
        .take_while(
            |byte| match left.checked_sub(if is_plain(*byte) { 1 } else { 3 }) {
                Some(rest) => {
                    left = rest;
                    true
                }
                None => false,
            },
        )
        .count()
}

fn encoded_len(text: &str) -> usize {
    text.bytes().map(|byte| if is_plain(byte) { 1 } else { 3 }).sum()
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && !matches!(byte, b'%' | b'\'' | b'"')
}

fn encode(out: &mut String, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    if is_plain(byte) {
        out.push(char::from(byte));
    } else {
        out.push('%');
        out.push(char::from(HEX[usize::from(byte >> 4)]));
        out.push(char::from(HEX[usize::from(byte & 15)]));
    }
}

/// Escapes arguments for a column `argv`, as in an SQL text.
#[must_use]
pub fn argv(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\'', "\\'")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn column(text: &str) -> String {
        let mut column = Column::default();
        column.push(text);
        column.finish()
    }

    #[test]
    fn special_characters_are_encoded() {
        assert_eq!(column("a+b & 50%\n\"é'~\x7f"), "a+b & 50%25%0A%22%C3%A9%27~%7F");
        assert_eq!(argv(r"a\ 'b'"), r"a\\ \'b\'");
    }

    #[test]
    fn a_long_text_keeps_its_beginning_and_end() {
        let text = format!("begin{}end", "\n".repeat(50_000));
        let column = column(&text);
        assert!(
            column.len() <= MAX_COLUMN && column.len() > MAX_COLUMN - 10,
            "{}",
            column.len()
        );
        assert!(column.starts_with("begin%0A") && column.ends_with("%0Aend"));
    }

    #[test]
    fn payloads_become_metrics() {
        let block = |body: &str| format!("{PAYLOAD_START}{body}{PAYLOAD_END}");
        let text = format!(
            "a{}b{}c{PAYLOAD_START}",
            block(
                r#"{"monitoring_event":"int.metric","payload":[{"event":"check","file_type":"input","succeeded":4,"failed":3,"duration":"0.5"}]}"#
            ),
            block("broken")
        );
        let mut found = Vec::new();
        let rest = without_payloads(&text, |kind, metric| found.push((kind, metric)));
        assert_eq!(rest, format!("abc{PAYLOAD_START}"));
        assert_eq!(
            found,
            [(
                ("check", "input"),
                Metric {
                    count: 7,
                    failed: 3,
                    seconds: 0.5
                }
            )]
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn no_escape_is_split(text in "(\n|é|a|\u{10348}|%){0,20}", times in 1_usize..3000, first in 0_usize..70_000) {
            let mut column = Column::default();
            column.push(&"x".repeat(first));
            column.push(&text.repeat(times));
            let column = column.finish();
            prop_assert!(column.len() <= MAX_COLUMN);
            let mut rest = column.as_str();
            while let Some(at) = rest.find('%') {
                let code = rest.get(at + 1..at + 3);
                prop_assert!(code.is_some_and(|code| u8::from_str_radix(code, 16).is_ok()));
                rest = &rest[at + 3..];
            }
        }
    }
}
