//! Load files: several programs as one world, as `yod`, `srun --multi-prog` and `mpiexec` have them.
//!
//! ```text
//! yod      [-sz RANKS] [-l HOSTS] PROGRAM ARGUMENTS      without both one rank, with a list alone one a host
//! srun     RANKS PROGRAM ARGUMENTS                       0-3,7 or *; %t is the rank, %o its number there
//! mpiexec  -n RANKS PROGRAM ARGUMENTS
//! ```
//!
//! `#` begins a comment. Words are quoted as in DAG files, and no shell sees them. All lines are of one kind.
//! Ranks are numbered in the order of the lines, and a line is one program of the world.

use std::ops::RangeInclusive;

/// Most ranks of a line.
pub(crate) const MAX_RANKS: u32 = 10_000_000;

/// Most hosts of a line.
const MAX_HOSTS: usize = 100_000;

/// A line of a load file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) ranks: Ranks,
    /// Program and arguments.
    pub(crate) words: Vec<Vec<u8>>,
    /// Hosts of its ranks; empty for any.
    pub(crate) hosts: Vec<String>,
}

/// The ranks of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ranks {
    /// So many, after those of the lines before.
    Number(u32),
    /// These numbers.
    These(Vec<RangeInclusive<u32>>),
    /// All that no other line has.
    Others,
}

/// What is wrong, and in which line, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoadFileError {
    pub(crate) line: usize,
    pub(crate) why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Yod,
    Srun,
    Mpiexec,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Yod => "yod",
            Self::Srun => "srun --multi-prog",
            Self::Mpiexec => "mpiexec",
        }
    }

    /// The kind of a line, by its first word.
    fn of(first: &[u8]) -> Self {
        let is_list = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b',' | b'-');
        match first {
            b"-n" | b"-np" => Self::Mpiexec,
            b"*" => Self::Srun,
            // A program can have such a name; with a directory before it, it is one.
            word if word.first().is_some_and(u8::is_ascii_digit) && word.iter().all(is_list) => Self::Srun,
            _ => Self::Yod,
        }
    }
}

/// Reads a load file.
///
/// # Errors
/// A line is of none of the kinds, or of another one than the first.
pub(crate) fn parse(text: &[u8]) -> Result<Vec<Line>, LoadFileError> {
    let mut lines = Vec::new();
    let mut first: Option<(usize, Kind)> = None;
    for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
        let line = line.strip_suffix(b"\r").unwrap_or(line).trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let wrong = |why: String| LoadFileError { line: number, why };
        if pmc_dag::words::has_open_quote(line) {
            return Err(wrong("a quote is not closed".to_owned()));
        }
        let words = pmc_dag::words::split(line);
        let kind = words.first().map_or(Kind::Yod, |word| Kind::of(word));
        let (at, known) = *first.get_or_insert((number, kind));
        if known != kind {
            let (kind, known) = (kind.name(), known.name());
            return Err(wrong(format!(
                "it is a line of {kind}, and line {at} is one of {known}"
            )));
        }
        lines.push(parse_line(kind, words).map_err(wrong)?);
    }
    match lines.is_empty() {
        true => Err(LoadFileError {
            line: 1,
            why: "it has no line with a program".to_owned(),
        }),
        false => Ok(lines),
    }
}

/// Number of ranks that the lines say; `None` if they have all that no other line has.
pub(crate) fn ranks_of(lines: &[Line]) -> Option<u32> {
    let mut all = 0_u32;
    for line in lines {
        match &line.ranks {
            Ranks::Number(count) => all = all.saturating_add(*count),
            Ranks::These(ranges) => {
                let last = ranges.iter().map(|range| range.end().saturating_add(1)).max();
                all = all.max(last.unwrap_or(0));
            }
            Ranks::Others => return None,
        }
    }
    Some(all)
}

fn parse_line(kind: Kind, words: Vec<Vec<u8>>) -> Result<Line, String> {
    let mut words = words.into_iter().peekable();
    let mut hosts = Vec::new();
    let ranks = match kind {
        Kind::Srun => ranks_of_srun(&words.next().unwrap_or_default())?,
        Kind::Mpiexec => {
            words.next();
            Ranks::Number(count(words.next(), "-n")?)
        }
        Kind::Yod => {
            let mut number = None;
            while let Some(option) = words.next_if(|word| word == b"-sz" || word == b"-l") {
                match option.as_slice() {
                    b"-sz" => number = Some(count(words.next(), "-sz")?),
                    _ => {
                        let list = words.next().unwrap_or_default();
                        let list = String::from_utf8_lossy(&list).into_owned();
                        hosts = pmc_hosts::parse_hosts(&list, MAX_HOSTS)
                            .map_err(|error| format!("-l: {error}"))?;
                    }
                }
            }
            let default = u32::try_from(hosts.len()).unwrap_or(u32::MAX).max(1);
            Ranks::Number(number.unwrap_or(default))
        }
    };
    let words: Vec<Vec<u8>> = words.collect();
    match words.first() {
        None => Err("it has no program".to_owned()),
        Some(program) if program.starts_with(b"-") => {
            let option = String::from_utf8_lossy(program);
            Err(format!("the option {option} is unknown"))
        }
        Some(_) => Ok(Line { ranks, words, hosts }),
    }
}

fn count(word: Option<Vec<u8>>, option: &str) -> Result<u32, String> {
    let number = word.and_then(|word| std::str::from_utf8(&word).ok()?.parse().ok());
    number
        .filter(|number| (1..=MAX_RANKS).contains(number))
        .ok_or_else(|| format!("{option} needs a number from 1 to {MAX_RANKS}"))
}

/// Reads a list of ranks as `srun` has it: `0-3,7`, or `*` for all others.
pub(crate) fn ranks_of_srun(word: &[u8]) -> Result<Ranks, String> {
    if word == b"*" {
        return Ok(Ranks::Others);
    }
    let text = String::from_utf8_lossy(word);
    let number = |text: &str| text.parse().ok().filter(|number| *number < MAX_RANKS);
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        (first <= last).then_some(first..=last)
    };
    let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
    ranges
        .map(Ranks::These)
        .ok_or_else(|| format!("{text} is no list of ranks, such as 0-3,7"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(text: &str) -> Vec<(Ranks, String)> {
        let words = |line: Line| {
            let words = line
                .words
                .iter()
                .map(|word| String::from_utf8_lossy(word).into_owned());
            (line.ranks, words.collect::<Vec<_>>().join("|"))
        };
        parse(text.as_bytes()).unwrap().into_iter().map(words).collect()
    }

    fn refused(text: &str) -> (usize, String) {
        let error = parse(text.as_bytes()).unwrap_err();
        (error.line, error.why)
    }

    #[test]
    fn the_three_kinds_are_read() {
        let yod = "# a comment\n-sz 2 ./a 1\n\n  ./b 'x y'\r\n-l n[1-3] ./c\n-l n[1-3] -sz 5 c";
        let all = parse(yod.as_bytes()).unwrap();
        assert_eq!(all[2].hosts, ["n1", "n2", "n3"]);
        let number = |number, words: &str| (Ranks::Number(number), words.to_owned());
        assert_eq!(
            lines(yod),
            [
                number(2, "./a|1"),
                number(1, "./b|x y"),
                number(3, "./c"),
                number(5, "c")
            ]
        );
        assert_eq!(
            lines("0-3,7 ./a %t\n* b"),
            [
                (Ranks::These(vec![0..=3, 7..=7]), "./a|%t".to_owned()),
                (Ranks::Others, "b".to_owned())
            ]
        );
        assert_eq!(lines("-n 2 ./a\n-np 3 b c"), [number(2, "./a"), number(3, "b|c")]);
    }

    #[test]
    fn other_lines_are_refused_with_their_number() {
        assert_eq!(refused("\n# nothing\n").1, "it has no line with a program");
        assert_eq!(
            refused("./a\n\n-n 2 b"),
            (3, "it is a line of mpiexec, and line 1 is one of yod".to_owned())
        );
        assert_eq!(refused("-sz 2").1, "it has no program");
        assert_eq!(refused("-sz 0 a").1, "-sz needs a number from 1 to 10000000");
        assert_eq!(
            refused("-n 4294967296 a").1,
            "-n needs a number from 1 to 10000000"
        );
        assert_eq!(refused("-x a").1, "the option -x is unknown");
        assert_eq!(refused("a 'b").1, "a quote is not closed");
        assert_eq!(refused("3-1 a").1, "3-1 is no list of ranks, such as 0-3,7");
        assert!(refused("-l n[ a").1.starts_with("-l: "));
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_no_panic(text: Vec<u8>) {
            let _ = parse(&text);
        }

        #[test]
        fn lines_like_those_of_load_files_are_no_panic(text in "([-*0-9a-z,' \n]|-sz |-l |-n )*") {
            let _ = parse(text.as_bytes());
        }
    }
}
