//! The `queue` of a submit description: how many jobs it makes, and which macros differ between them.

use crate::error::ErrorKind;

/// A `queue`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) line: u32,
    /// Jobs of each item, before macros are expanded; empty for one.
    pub(crate) count: String,
    /// Macros that get the words of an item, in lower case.
    pub(crate) names: Vec<String>,
    pub(crate) items: Items,
}

/// The items of a `queue`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Items {
    /// There are none.
    #[default]
    None,
    /// These.
    List(Vec<String>),
    /// The lines of this file, before macros are expanded.
    File(String),
}

/// How far a submit description is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Before `queue`.
    Commands,
    /// Between the parentheses of `queue … in (`.
    Words,
    /// Between the parentheses of `queue … from (`.
    Rows,
    /// After `queue`.
    End,
}

/// One job of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    /// `$(Process)`.
    pub(crate) number: u32,
    /// `$(Step)`: its number among the jobs of the item.
    pub(crate) step: u32,
    /// `$(ItemIndex)` and `$(Row)`.
    pub(crate) row: u32,
    /// Macros of the item, by their names in lower case.
    pub(crate) values: Vec<(String, String)>,
}

const ITEMS: &str = "write the items into the submit description, or into a file";

impl Queue {
    /// Parses what follows the word `queue`. The parentheses of a list may end on a later line.
    pub(crate) fn parse(text: &str, line: u32) -> Result<(Self, Progress), ErrorKind> {
        let text = text.trim();
        let mut queue = Queue {
            line,
            ..Queue::default()
        };
        let Some((before, keyword, after)) = split_at_keyword(text) else {
            text.clone_into(&mut queue.count);
            return Ok((queue, Progress::End));
        };
        let mut words = before
            .split([',', ' ', '\t'])
            .filter(|word| !word.is_empty())
            .peekable();
        let is_count = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit() || c == '$');
        queue.count = words.next_if(is_count).unwrap_or_default().to_owned();
        queue.names = words.map(str::to_ascii_lowercase).collect();
        if queue.names.is_empty() {
            queue.names.push("item".to_owned());
        }
        let is_in = keyword.eq_ignore_ascii_case("in");
        if keyword.eq_ignore_ascii_case("matching") || after.starts_with('[') || after.ends_with('|') {
            return Err(ErrorKind::unsupported(format!("queue {text}"), ITEMS));
        }
        if is_in && queue.names.len() > 1 {
            return Err(invalid(text, "`in` gives values to one macro"));
        }
        let Some(list) = after.strip_prefix('(') else {
            queue.items = match is_in {
                true => Items::List(split_words(after).collect()),
                false => Items::File(after.to_owned()),
            };
            return Ok((queue, Progress::End));
        };
        queue.items = Items::List(Vec::new());
        let mut progress = if is_in { Progress::Words } else { Progress::Rows };
        if !list.trim().is_empty() {
            let (list, is_end) = match list.trim().strip_suffix(')') {
                Some(list) => (list.trim(), true),
                None => (list.trim(), false),
            };
            queue.add(list, progress);
            if is_end {
                progress = Progress::End;
            }
        }
        Ok((queue, progress))
    }

    /// Adds a line of a list in parentheses. Returns how far the description is read then.
    pub(crate) fn add_line(&mut self, text: &str, progress: Progress) -> Progress {
        let end = match progress {
            Progress::Words => text.strip_suffix(')'),
            _ => (text == ")").then_some(""),
        };
        self.add(end.unwrap_or(text), progress);
        if end.is_some() { Progress::End } else { progress }
    }

    fn add(&mut self, text: &str, progress: Progress) {
        let Items::List(list) = &mut self.items else {
            return;
        };
        match progress {
            Progress::Words => list.extend(split_words(text)),
            _ if text.is_empty() => {}
            _ => list.push(text.to_owned()),
        }
    }

    /// Returns the jobs of the items, `count` of each. There are at most `max`.
    pub(crate) fn processes(&self, items: &[String], count: u32, max: u32) -> Option<Vec<Process>> {
        let rows = match self.items {
            Items::None => 1,
            _ => u32::try_from(items.len()).ok()?,
        };
        let all = rows.checked_mul(count).filter(|all| *all <= max)?;
        let process = |number: u32| {
            let row = number / count;
            let item = items.get(row as usize).map_or("", String::as_str);
            Process {
                number,
                step: number % count,
                row,
                values: self.values(item),
            }
        };
        Some((0..all).map(process).collect())
    }

    /// Splits an item into the values of the macros. The last one gets the rest.
    fn values(&self, item: &str) -> Vec<(String, String)> {
        let mut rest = item.trim();
        let mut values = Vec::with_capacity(self.names.len());
        for (at, name) in self.names.iter().enumerate() {
            let is_last = at + 1 == self.names.len();
            let end = rest.find([',', ' ', '\t']).filter(|_| !is_last);
            let (value, after) = rest.split_at(end.unwrap_or(rest.len()));
            values.push((name.clone(), value.to_owned()));
            let after = after.trim_start();
            rest = after.strip_prefix(',').unwrap_or(after).trim_start();
        }
        values
    }
}

pub(crate) fn invalid(value: &str, problem: &'static str) -> ErrorKind {
    ErrorKind::Value {
        name: "queue".to_owned(),
        value: value.to_owned(),
        problem,
    }
}

/// Splits a text at the first of the words `in`, `from` and `matching`.
fn split_at_keyword(text: &str) -> Option<(&str, &str, &str)> {
    let mut at = 0;
    while at < text.len() {
        let word = &text[at..];
        let end = word
            .find(|c: char| c.is_whitespace() || matches!(c, ',' | '('))
            .unwrap_or(word.len());
        let (word, after) = word.split_at(end);
        let keywords = ["in", "from", "matching"];
        if keywords.iter().any(|keyword| word.eq_ignore_ascii_case(keyword)) {
            return Some((&text[..at], word, after.trim()));
        }
        at += end + after.chars().next().map_or(0, char::len_utf8);
    }
    None
}

fn split_words(text: &str) -> impl Iterator<Item = String> + '_ {
    let words = text.split(|c: char| c.is_whitespace() || c == ',');
    words.filter(|word| !word.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Queue {
        let (queue, progress) = Queue::parse(text, 1).unwrap();
        assert_eq!(progress, Progress::End, "{text}");
        queue
    }

    #[test]
    fn forms_of_the_manual_are_read() {
        assert_eq!(parsed("").count, "");
        assert_eq!(parsed(" 5 ").count, "5");
        assert_eq!(parsed("$(n)").count, "$(n)");
        let list = |text: &str| match parsed(text).items {
            Items::List(list) => list,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(list("in (a, b c)"), ["a", "b", "c"]);
        assert_eq!(list("input IN a.dat b.dat"), ["a.dat", "b.dat"]);
        assert_eq!(list("x in(1,2)"), ["1", "2"]);
        let queue = parsed("2 Name, file from list (1).txt");
        assert_eq!(
            (queue.count.as_str(), &*queue.names),
            ("2", &["name", "file"].map(String::from)[..])
        );
        assert_eq!(queue.items, Items::File("list (1).txt".to_owned()));
        assert_eq!(parsed("in (a)").names, ["item"]);
        for wrong in [
            "f matching *.dat",
            "x in [1:2] (a b c)",
            "x from ls |",
            "a, b in (x y)",
        ] {
            assert!(Queue::parse(wrong, 1).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lists_go_over_several_lines() {
        let (mut queue, mut progress) = Queue::parse("a b from (", 1).unwrap();
        for line in ["1, x y", "2 (z)", "3", ")"] {
            progress = queue.add_line(line, progress);
        }
        assert_eq!(progress, Progress::End);
        let Items::List(items) = queue.items.clone() else {
            panic!()
        };
        let processes = queue.processes(&items, 2, 10).unwrap();
        let shown: Vec<_> = processes
            .iter()
            .map(|one| {
                format!(
                    "{} {} {} {}|{}",
                    one.number, one.step, one.row, one.values[0].1, one.values[1].1
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                "0 0 0 1|x y",
                "1 1 0 1|x y",
                "2 0 1 2|(z)",
                "3 1 1 2|(z)",
                "4 0 2 3|",
                "5 1 2 3|"
            ]
        );
        assert_eq!(queue.processes(&items, 4, 10), None);
        assert_eq!(queue.processes(&items, u32::MAX, u32::MAX), None);
        let (mut queue, progress) = Queue::parse("in ( a", 1).unwrap();
        let progress = queue.add_line("b,", progress);
        assert_eq!(queue.add_line("c )", progress), Progress::End);
        assert_eq!(
            queue.items,
            Items::List(["a", "b", "c"].map(String::from).to_vec())
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "([a-c0-2 ,()\\[\\|$é]|in|from|matching)*", line in "[a-c ,)]*") {
            if let Ok((mut queue, progress)) = Queue::parse(&text, 1) {
                queue.add_line(&line, progress);
                let _ = queue.processes(&[line], 2, 100);
            }
        }
    }
}
