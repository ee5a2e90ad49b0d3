//! Reads `LABEL-INDEX.static.bp`; see [`crate::static_bp`].

use std::borrow::Cow;

/// An event: its name, and its attributes in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// Name, for instance `job.info`.
    pub name: Cow<'a, str>,
    pairs: Vec<(&'a str, Cow<'a, str>)>,
}

impl<'a> Event<'a> {
    /// Reads a line. `None` without an event name. Text that is no attribute is skipped.
    #[must_use]
    pub fn read(line: &'a str) -> Option<Self> {
        let mut name = None;
        let mut pairs = Vec::with_capacity(10);
        let mut rest = line;
        while let Some(equals) = memchr::memchr(b'=', rest.as_bytes()) {
            let before = &rest[..equals];
            let key_start = before
                .bytes()
                .rposition(|byte| !(byte.is_ascii_alphanumeric() || b"._-".contains(&byte)))
                .map_or(0, |at| at + 1);
            // The byte at `key_start - 1` may be the last of a longer character, never the first.
            let key = before.get(key_start..).unwrap_or_default();
            let (value, after) = value(&rest[equals + 1..])?;
            rest = after;
            match key {
                "" => {}
                "event" => name = Some(value),
                _ => pairs.push((key, value)),
            }
        }
        name.map(|name| Self { name, pairs })
    }

    /// Returns an attribute.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(k, _)| *k == key)
            .map(|(_, value)| &**value)
    }
}

/// Reads a quoted value. Returns the rest, too. `None` without a closing quote.
fn value(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        return Some((Cow::Borrowed(&text[..end]), &text[end..]));
    };
    let mut escaped = false;
    let mut from = 0;
    loop {
        let at = from + memchr::memchr2(b'"', b'\\', &quoted.as_bytes()[from..])?;
        if quoted.as_bytes()[at] == b'"' {
            let inside = &quoted[..at];
            let value = if escaped {
                Cow::Owned(inside.replace("\\\"", "\""))
            } else {
                Cow::Borrowed(inside)
            };
            return Some((value, &quoted[at + 1..]));
        }
        escaped = true;
        from = (at + 2).min(quoted.len());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::static_bp::Events;

    #[test]
    fn attributes_are_read() {
        let line =
            r#"ts=1970-01-01T00:00:00Z event=job.info xwf.id=u-1 job.id="a" argv=" -x \"y = z\" \q" n="0" "#;
        let event = Event::read(line).unwrap();
        assert_eq!(event.name, "job.info");
        assert_eq!(event.get("xwf.id"), Some("u-1"));
        assert_eq!(event.get("argv"), Some(" -x \"y = z\" \\q"));
        assert_eq!(event.get("n"), Some("0"));
        assert_eq!(event.get("z"), None);
    }

    #[test]
    fn damaged_lines_keep_complete_attributes() {
        for line in [
            "",
            "hello",
            "event=",
            "ts=1 x=\"y\"",
            "event=a b=\"torn",
            "event=a b=\"torn\\",
        ] {
            let event = Event::read(line);
            assert!(event.is_none_or(|event| event.name.is_empty()), "{line}");
        }
    }

    proptest! {
        #[test]
        fn reads_what_is_written(value in "[^\\\\\n\r]*") {
            let events = Events { time: "t", workflow: "u" };
            let mut out = String::new();
            events.begin(&mut out, "e.f").with("k", &value);
            let event = Event::read(&out).unwrap();
            prop_assert_eq!(event.get("k"), Some(&*value));
        }

        #[test]
        fn never_panics(line in "([a-c.=\"\\\\ é]|\\PC){0,80}") {
            let _ = Event::read(&line);
        }
    }
}
