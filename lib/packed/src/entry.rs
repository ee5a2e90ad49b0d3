//! The line of an entry.

use std::io::Write as _;

/// First word of a line.
const MAGIC: &[u8] = b"pmc-pack";
/// Number of words of a line.
const WORDS: usize = 11;

/// An attempt of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt<'a> {
    /// Name of the task.
    pub task: &'a [u8],
    /// How often the task was submitted before: the number in the names of files.
    pub number: u32,
    /// Submit number.
    pub submit: u64,
    /// Start, in milliseconds since the epoch.
    pub start_ms: u64,
}

/// Length and checksum of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) len: u64,
    pub(crate) crc: u32,
}

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Where the line begins in the pack.
    pub(crate) offset: u64,
    pub(crate) task: Vec<u8>,
    pub(crate) number: u32,
    pub(crate) start_ms: u64,
    pub(crate) out: Extent,
    pub(crate) err: Extent,
}

/// Appends the line of an entry.
pub(crate) fn write(line: &mut Vec<u8>, offset: u64, attempt: Attempt<'_>, out: Extent, err: Extent) {
    let begin = line.len();
    line.extend_from_slice(MAGIC);
    let Attempt {
        task,
        number,
        submit,
        start_ms,
    } = attempt;
    // Writing to memory cannot fail.
    let _ = write!(line, " {offset} {number} {submit} {start_ms}");
    for Extent { len, crc } in [out, err] {
        let _ = write!(line, " {len} {crc:08x}");
    }
    line.push(b' ');
    for byte in task {
        match byte {
            0..=b' ' | b'%' | 0x7f => _ = write!(line, "%{byte:02x}"),
            _ => line.push(*byte),
        }
    }
    let crc = crc32fast::hash(&line[begin..]);
    let _ = writeln!(line, " {crc:08x}");
}

/// Reads a line without its line feed. `None` if it is torn or damaged.
pub(crate) fn read(line: &[u8]) -> Option<Entry> {
    let checked = line.len().checked_sub(9)?;
    let crc = hexadecimal(line.get(checked + 1..)?)?;
    let mut words = line.split(|byte| *byte == b' ');
    if line[checked] != b' '
        || crc32fast::hash(&line[..checked]) != crc
        || words.clone().count() != WORDS
        || words.next()? != MAGIC
    {
        return None;
    }
    let offset = decimal(words.next()?)?;
    let number = u32::try_from(decimal(words.next()?)?).ok()?;
    let _submit = decimal(words.next()?)?;
    let start_ms = decimal(words.next()?)?;
    let mut extent = || {
        Some(Extent {
            len: decimal(words.next()?)?,
            crc: hexadecimal(words.next()?)?,
        })
    };
    let (out, err) = (extent()?, extent()?);
    // Readers add these without a check.
    offset
        .checked_add(line.len() as u64 + 1)?
        .checked_add(out.len)?
        .checked_add(err.len)?;
    Some(Entry {
        offset,
        task: unescape(words.next()?)?,
        number,
        start_ms,
        out,
        err,
    })
}

fn decimal(word: &[u8]) -> Option<u64> {
    let has_digits = word.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(word)
        .ok()
        .filter(|_| has_digits)?
        .parse()
        .ok()
}

fn hexadecimal(word: &[u8]) -> Option<u32> {
    let has_digits = word.len() == 8 && word.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(word).ok().filter(|_| has_digits)?;
    u32::from_str_radix(text, 16).ok()
}

fn unescape(word: &[u8]) -> Option<Vec<u8>> {
    let mut name = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first == b'%' {
            let (digits, after) = rest.split_first_chunk::<2>()?;
            name.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            name.push(*first);
        }
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lines_round_trip_and_torn_ones_are_refused(
            task in prop::collection::vec(any::<u8>(), 0..30), offset in 0..1_u64 << 60, number: u32, submit: u64,
            start_ms: u64, lens in [0..1_u64 << 60, 0..1_u64 << 60], crcs: [u32; 2],
        ) {
            let attempt = Attempt { task: &task, number, submit, start_ms };
            let [out, err] = [0, 1].map(|at| Extent { len: lens[at], crc: crcs[at] });
            let mut line = Vec::new();
            write(&mut line, offset, attempt, out, err);
            prop_assert_eq!(line.pop(), Some(b'\n'));
            prop_assert!(!line.contains(&b'\n'));
            let entry = Entry { offset, task: task.clone(), number, start_ms, out, err };
            prop_assert_eq!(read(&line), Some(entry));
            for end in 0..line.len() {
                prop_assert_eq!(read(&line[..end]), None, "{} bytes", end);
            }
        }

        #[test]
        fn a_changed_line_is_refused(at in 0_usize..60, byte: u8) {
            let attempt = Attempt { task: b"step_ID0000001", number: 0, submit: 1, start_ms: 1_795_246_124_086 };
            let mut line = Vec::new();
            write(&mut line, 0, attempt, Extent::default(), Extent::default());
            line.pop();
            let is_same = line[at] == byte;
            line[at] = byte;
            prop_assert_eq!(read(&line).is_some(), is_same);
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        let attempt = Attempt {
            task: b"a",
            number: 0,
            submit: 1,
            start_ms: 0,
        };
        let huge = Extent {
            len: u64::MAX,
            crc: 0,
        };
        let mut line = Vec::new();
        write(&mut line, 5, attempt, huge, huge);
        assert_eq!(read(line.trim_ascii_end()), None);
    }

    #[test]
    fn the_line_is_for_people_too() {
        let attempt = Attempt {
            task: b"a b%",
            number: 2,
            submit: 7,
            start_ms: 1_795_246_124_086,
        };
        let out = Extent { len: 12, crc: 0xab };
        let mut line = Vec::new();
        write(&mut line, 100, attempt, out, Extent::default());
        let text = String::from_utf8(line).unwrap();
        assert!(
            text.starts_with("pmc-pack 100 2 7 1795246124086 12 000000ab 0 00000000 a%20b%25 "),
            "{text}"
        );
    }
}
