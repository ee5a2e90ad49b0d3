//! Differences between two sequences.

use std::fmt::Write as _;
use std::ops::Range;

/// A part of a sequence that another part replaces. Either may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Positions in the old sequence.
    pub old: Range<usize>,
    /// Positions in the new sequence.
    pub new: Range<usize>,
}

/// A common part of two sequences: its start in each, and its length.
type Block = (usize, usize, usize);

/// Returns the changes that make the new sequence from the old one, in order. The longest common parts are
/// matched first.
pub fn changes<T: PartialEq>(old: &[T], new: &[T]) -> Vec<Change> {
    let mut blocks = Vec::new();
    let mut parts = vec![(0..old.len(), 0..new.len())];
    while let Some((a, b)) = parts.pop() {
        let (start_old, start_new, length) = longest_match(old, new, a.clone(), b.clone());
        if length > 0 {
            blocks.push((start_old, start_new, length));
            parts.push((a.start..start_old, b.start..start_new));
            parts.push((start_old + length..a.end, start_new + length..b.end));
        }
    }
    blocks.sort_unstable();
    blocks.push((old.len(), new.len(), 0));
    let mut result = Vec::new();
    let (mut at_old, mut at_new) = (0, 0);
    for (start_old, start_new, length) in blocks {
        if at_old < start_old || at_new < start_new {
            result.push(Change {
                old: at_old..start_old,
                new: at_new..start_new,
            });
        }
        (at_old, at_new) = (start_old + length, start_new + length);
    }
    result
}

/// Finds the longest common part; of equal ones the first.
fn longest_match<T: PartialEq>(old: &[T], new: &[T], a: Range<usize>, b: Range<usize>) -> Block {
    let mut best = (a.start, b.start, 0);
    // Lengths of the common parts that end at the previous item of `old` and at each item of `new`.
    let mut lengths = vec![0; b.len() + 1];
    for i in a {
        let mut diagonal = 0;
        for (offset, j) in b.clone().enumerate() {
            let above = lengths[offset + 1];
            let length = if old[i] == new[j] { diagonal + 1 } else { 0 };
            lengths[offset + 1] = length;
            diagonal = above;
            if length > best.2 {
                best = (i + 1 - length, j + 1 - length, length);
            }
        }
    }
    best
}

/// Describes the changes between two lists of words in one line: `before [old words] -> [new words]; …`.
pub fn words(old: &[&str], new: &[&str]) -> String {
    let parts = changes(old, new).into_iter().map(|change| {
        let before = change.old.start.checked_sub(1).map(|i| format!("{} ", old[i]));
        let (from, to) = (old[change.old].join(" "), new[change.new].join(" "));
        format!("{}[{from}] -> [{to}]", before.unwrap_or_default())
    });
    parts.collect::<Vec<_>>().join("; ")
}

/// Shows the changes between two texts, with two lines around each. Missing lines begin with `-`, additional
/// ones with `+`.
pub fn lines(old: &str, new: &str) -> String {
    const CONTEXT: usize = 2;
    let (old, new): (Vec<&str>, Vec<&str>) = (old.split('\n').collect(), new.split('\n').collect());
    // Large equal parts at both ends would make the search for the longest common parts slow.
    let start = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let limit = old.len().min(new.len()) - start;
    let equal_at_end = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b);
    let end = equal_at_end.take(limit).count();
    let mut result = String::new();
    for change in changes(&old[start..old.len() - end], &new[start..new.len() - end]) {
        let from = start + change.old.start..start + change.old.end;
        let to = start + change.new.start..start + change.new.end;
        let _ = writeln!(result, "@@ line {}", from.start + 1);
        for line in &old[from.start.saturating_sub(CONTEXT)..from.start] {
            let _ = writeln!(result, " {line}");
        }
        for line in &old[from.clone()] {
            let _ = writeln!(result, "-{line}");
        }
        for line in &new[to] {
            let _ = writeln!(result, "+{line}");
        }
        for line in &old[from.end..old.len().min(from.end + CONTEXT)] {
            let _ = writeln!(result, " {line}");
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_differ_are_shown_behind_the_one_before() {
        let split = |text: &'static str| text.split(' ').collect::<Vec<_>>();
        assert_eq!(words(&split("a -w x b"), &split("a -w y z b")), "-w [x] -> [y z]");
        assert_eq!(
            words(&split("a b c d"), &split("b c e d f")),
            "[a] -> []; c [] -> [e]; d [] -> [f]"
        );
        assert_eq!(words(&split("a b"), &split("a b")), "");
    }

    #[test]
    fn lines_that_differ_are_shown_with_those_around() {
        let old = "1\n2\n3\n4\n5\n6\n7\n8\n";
        let new = "1\n2\n3\n4\nfive\n6\n7\n8\n9\n";
        assert_eq!(
            lines(old, new),
            "@@ line 5\n 3\n 4\n-5\n+five\n 6\n 7\n@@ line 9\n 7\n 8\n+9\n \n"
        );
        assert_eq!(lines("a", "a\n"), "@@ line 2\n a\n+\n");
    }
}
