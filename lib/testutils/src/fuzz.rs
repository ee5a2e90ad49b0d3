//! Random changes to saved inputs, for fuzz tests with stable Rust.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Random;

/// Maximum length in bytes of a changed input.
pub const MAX_LENGTH: usize = 1 << 16;

/// Pieces of text at which parsers go wrong.
const PIECES: &[&[u8]] = &[
    b"\n",
    b"\r\n",
    b"\\",
    b"\"",
    b"'",
    b"''",
    b"\\\"",
    b": ",
    b": |\n",
    b"- ",
    b"  ",
    b"#",
    b"[[[[",
    b"{{{{",
    b"${",
    b"-1",
    b"0",
    b"2147483648",
    b"4294967296",
    b"9223372036854775808",
    b"99999999999999999999",
    b"1e999",
    b"nan",
    b"\xff\xfe",
    b"\xc3",
    b"\xe2\x80\xa8",
    b"02/30/26 25:61:61 ",
    b"1970-01-01T00:00:00Z",
];

/// How long an entry is fuzzed.
#[derive(Clone, Copy, Debug)]
pub enum Length {
    /// This number of changed inputs.
    Inputs(u64),
    /// At least this time.
    Time(Duration),
}

/// Returns the files of a folder, sorted by name.
///
/// # Panics
/// The folder is empty or cannot be read.
#[must_use]
pub fn corpus(folder: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map_while(Result::ok).map(|entry| entry.path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no corpus in {}", folder.display());
    let read = |file: &_| fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", Path::display(file)));
    files.iter().map(|file| read(file)).collect()
}

/// Calls `entry` with the inputs of the corpus, with all of their beginnings, and with changed inputs.
/// Returns the number of calls.
///
/// # Panics
/// A call panics. The input is printed.
pub fn run(name: &str, corpus: &[Vec<u8>], entry: fn(&[u8]), seed: u64, length: Length) -> u64 {
    let begin = Instant::now();
    let check = |input: &[u8]| {
        if let Err(cause) = catch_unwind(AssertUnwindSafe(|| entry(input))) {
            eprintln!("{name} fails with b\"{}\"", input.escape_ascii());
            resume_unwind(cause);
        }
    };
    let mut calls = 0;
    for input in corpus {
        // Of a long input, about a thousand beginnings.
        for length in (0..=input.len()).rev().step_by(1 + input.len() / 1000) {
            check(&input[..length]);
            calls += 1;
        }
    }
    let mut random = Random(seed);
    let mut changed = 0;
    loop {
        let is_over = match length {
            Length::Inputs(inputs) => changed == inputs,
            Length::Time(time) => begin.elapsed() >= time,
        };
        if is_over {
            return calls;
        }
        changed += 1;
        let mut input = corpus[random.index(corpus.len())].clone();
        for _ in 0..=random.index(5) {
            change(&mut input, corpus, &mut random);
        }
        check(&input);
        calls += 1;
    }
}

fn random_byte(random: &mut Random) -> u8 {
    const SPECIAL: &[u8] = b"\0\n\r\t \"'\\#@-=\x01\x7f\xff";
    match random.index(2) {
        0 => random.pick(SPECIAL),
        _ => random.number() as u8,
    }
}

/// Makes one random change. `corpus` gives parts of other inputs.
pub fn change(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let at = random.index(input.len() + 1);
    match random.index(9) {
        0 => input.truncate(at),
        1 => input.insert(at, random_byte(random)),
        2 if at < input.len() => {
            input.remove(at);
        }
        3 if at < input.len() => input[at] ^= 1 << random.index(8),
        4 => {
            // A number at its limits.
            let value = [0, 1, 0x7f, 0xff][random.index(4)];
            let end = (at + [1, 2, 4, 8][random.index(4)]).min(input.len());
            input[at..end].fill(value);
        }
        5 => {
            let other = &corpus[random.index(corpus.len())];
            let from = random.index(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        6 => {
            let piece = random.pick(PIECES);
            input.splice(at..at, piece.iter().copied());
        }
        7 => {
            // A line of another input.
            let other = &corpus[random.index(corpus.len())];
            let lines: Vec<&[u8]> = other.split_inclusive(|byte| *byte == b'\n').collect();
            let line = lines.get(random.index(lines.len())).copied().unwrap_or_default();
            let start = input[..at]
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |at| at + 1);
            input.splice(start..start, line.iter().copied());
        }
        _ => {
            let from = random.index(at + 1);
            let piece = input[from..at].to_vec();
            input.splice(at..at, piece);
        }
    }
    input.truncate(MAX_LENGTH);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuses_two_zeros(input: &[u8]) {
        assert!(!input.windows(2).any(|two| two == [0, 0]), "two zeros");
    }

    #[test]
    fn a_defect_is_found() {
        let run = || {
            run(
                "two_zeros",
                &[b"some text".to_vec()],
                refuses_two_zeros,
                1,
                Length::Inputs(10_000),
            )
        };
        assert!(catch_unwind(run).is_err());
    }

    #[test]
    fn the_corpus_and_its_beginnings_are_run() {
        let calls = run(
            "nothing",
            &[b"abc".to_vec(), Vec::new()],
            |_| (),
            1,
            Length::Inputs(7),
        );
        assert_eq!(calls, 4 + 1 + 7);
    }
}
