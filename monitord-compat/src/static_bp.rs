//! `LABEL-INDEX.static.bp`: the events of the planner about a workflow, for monitoring.
//!
//! One event per line, `ts=TIME event=NAME xwf.id=UUID key="value" … `, in the syntax of NetLogger. The
//! reader knows one escape only, `\"`; a line break would end the event, so it is written as `\n`.

use std::fmt::Write as _;

/// Writes events of one workflow, all with the same time.
#[derive(Clone, Debug)]
pub struct Events<'a> {
    /// Time, ISO 8601 with fraction and zone, for example `2026-01-02T03:04:05.000000Z`.
    pub time: &'a str,
    /// Identifier of the workflow.
    pub workflow: &'a str,
}

/// The common beginning of all events with one name, for frequent events.
#[derive(Clone, Debug)]
pub struct Head {
    text: String,
}

impl Head {
    /// Begins an event. Dropping it ends the line.
    pub fn begin<'o>(&self, out: &'o mut String) -> Event<'o> {
        out.push_str(&self.text);
        Event { out }
    }
}

/// Events that differ in their last value only.
#[derive(Clone, Debug, Default)]
pub struct Group {
    text: String,
}

impl Group {
    /// Begins a group with the common part of its events, up to the last key.
    pub fn begin(&mut self, head: &Head, (key, value): (&str, &str), last: &str) {
        head.text.clone_into(&mut self.text);
        push_pair(&mut self.text, key, value);
        self.text.push_str(last);
        self.text.push_str("=\"");
    }
    /// Adds an event with the value of its last key.
    pub fn add(&self, out: &mut String, value: &str) {
        out.push_str(&self.text);
        push_escaped(out, value);
        out.push_str("\" \n");
    }
}

/// An event in the making. Dropping it ends its line.
#[derive(Debug)]
pub struct Event<'o> {
    out: &'o mut String,
}

impl Events<'_> {
    /// Returns the common beginning of events with a name.
    pub fn head(&self, name: &str) -> Head {
        let mut text = String::new();
        for part in ["ts=", self.time, " event=", name, " xwf.id=", self.workflow, " "] {
            text.push_str(part);
        }
        Head { text }
    }
    /// Begins an event. Dropping it ends the line.
    pub fn begin<'o>(&self, out: &'o mut String, name: &str) -> Event<'o> {
        self.head(name).begin(out)
    }
}

impl Event<'_> {
    /// Adds a key and its value.
    pub fn with(self, key: &str, value: &str) -> Self {
        push_pair(self.out, key, value);
        self
    }
    /// Adds a key and a number.
    pub fn with_number(self, key: &str, value: u64) -> Self {
        // Writing into a String cannot fail.
        let _ = write!(self.out, "{key}=\"{value}\" ");
        self
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        self.out.push('\n');
    }
}

/// Returns whether no byte has to be escaped. Blocks of bytes are checked at once; the last block may overlap
/// the previous one.
fn is_plain(bytes: &[u8]) -> bool {
    fn plain(block: &[u8]) -> bool {
        let special = |b: u8| (b == b'"') | (b == b'\n') | (b == b'\r') | (b == b'\\');
        !block.iter().fold(false, |found, &b| found | special(b))
    }
    if let Some(last) = bytes.last_chunk::<16>() {
        let (blocks, _) = bytes.as_chunks::<16>();
        blocks.iter().all(|block| plain(block)) && plain(last)
    } else if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        plain(first) && plain(last)
    } else {
        plain(bytes)
    }
}

fn push_pair(out: &mut String, key: &str, value: &str) {
    out.push_str(key);
    out.push_str("=\"");
    push_escaped(out, value);
    out.push_str("\" ");
}

fn push_escaped(out: &mut String, value: &str) {
    // There may be millions of values, and nearly all are plain.
    if is_plain(value.as_bytes()) {
        out.push_str(value);
        return;
    }
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            c => out.push(c),
        }
    }
    if value.ends_with('\\') {
        // A backslash at the end would escape the closing quote.
        out.push(' ');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EVENTS: Events<'_> = Events {
        time: "2026-01-02T03:04:05.000000Z",
        workflow: "u-1",
    };

    #[test]
    fn a_line_has_all_attributes() {
        let mut out = String::new();
        EVENTS
            .begin(&mut out, "task.info")
            .with("task.id", "A")
            .with("argv", "-m \"x y\"\nz");
        EVENTS.begin(&mut out, "static.meta.start");
        EVENTS.begin(&mut out, "job.info").with_number("clustered", 0);
        assert_eq!(
            out,
            "ts=2026-01-02T03:04:05.000000Z event=task.info xwf.id=u-1 task.id=\"A\" argv=\"-m \\\"x y\\\"\\nz\" \n\
             ts=2026-01-02T03:04:05.000000Z event=static.meta.start xwf.id=u-1 \n\
             ts=2026-01-02T03:04:05.000000Z event=job.info xwf.id=u-1 clustered=\"0\" \n"
        );
    }

    #[test]
    fn a_group_equals_single_events() {
        let head = EVENTS.head("task.edge");
        let (mut one, mut other) = (String::new(), String::new());
        let mut group = Group::default();
        for (parent, child) in [("A", "B"), ("A", "C\"D"), ("\"", "A")] {
            drop(head.begin(&mut one).with("parent", parent).with("child", child));
            group.begin(&head, ("parent", parent), "child");
            group.add(&mut other, child);
        }
        assert_eq!(one, other);
    }

    proptest! {
        /// A value stays one quoted text on one line: all its quotes are escaped, and it ends without a
        /// backslash.
        #[test]
        fn a_value_never_leaves_its_quotes(value in "\\PC*|[\"\\\\\n a]*") {
            let mut out = String::new();
            EVENTS.begin(&mut out, "e").with("k", &value);
            prop_assert_eq!(out.lines().count(), 1);
            let quoted = out.split_once("k=\"").and_then(|(_, rest)| rest.strip_suffix("\" \n"));
            let quoted = quoted.expect("the value is quoted");
            prop_assert!(!quoted.ends_with('\\'));
            let mut before = ' ';
            for c in quoted.chars() {
                prop_assert!(c != '"' || before == '\\');
                before = c;
            }
        }
    }
}
