//! Captured text and integrity data for the record.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use monitord_compat::invocation_record::Payload;
use monitord_compat::yaml;

/// Maximum bytes that [`read`] reads, also of a stream of which all is wanted.
const MAX_TAIL: u64 = 256 << 20;

/// Reads the last `limit` characters of `file`, which has `size` bytes, or of its last 256 MiB. Returns
/// `None` if it is empty. Each broken UTF-8 sequence counts as one character.
///
/// # Errors
/// The file cannot be read.
pub fn read(file: &File, size: u64, limit: Option<usize>) -> io::Result<Option<Payload<'static>>> {
    if size == 0 {
        return Ok(None);
    }
    let tail = tail_length(size, limit);
    let mut bytes = vec![0; usize::try_from(tail).map_err(io::Error::other)?];
    read_up_to(file, &mut bytes, size - tail)?;
    if tail < size {
        let cut = bytes
            .iter()
            .take(3)
            .take_while(|&&byte| byte & 0xc0 == 0x80)
            .count();
        bytes.drain(..cut);
    }
    let mut text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    };
    let mut truncated = tail < size;
    if let Some(limit) = limit
        && text.len() > limit
        && let Some((at, _)) = text.char_indices().rev().nth(limit - 1).filter(|(at, _)| *at > 0)
    {
        text.drain(..at);
        truncated = true;
    }
    Ok(Some(Payload {
        truncated,
        text: Cow::Owned(text),
    }))
}

/// Returns how many bytes at the end of a file have its last `limit` characters.
fn tail_length(size: u64, limit: Option<usize>) -> u64 {
    // A character has at most four bytes. Three more bytes may be the rest of one that is cut.
    let wanted = limit.map_or(size, |limit| (limit as u64).saturating_mul(4).saturating_add(3));
    wanted.min(size).min(MAX_TAIL)
}

/// Maximum bytes that [`read_all`] reads: a job decides how large the file is.
const MAX_BYTES: u64 = 64 << 20;

/// Reads all of `file`, which has `size` bytes.
///
/// # Errors
/// The file cannot be read, or has more than 64 MiB.
pub fn read_all(file: &File, size: u64) -> io::Result<Vec<u8>> {
    if size > MAX_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = vec![0; usize::try_from(size).map_err(io::Error::other)?];
    read_up_to(file, &mut bytes, 0)?;
    Ok(bytes)
}

/// Fills `bytes` from `offset` on. The file may shrink meanwhile; then `bytes` shrinks, too.
fn read_up_to(file: &File, bytes: &mut Vec<u8>, offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(done);
    Ok(())
}

/// Integrity data from the job: complete entries of the record.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct IntegrityData {
    /// Key and lines of each entry. The last of equal keys counts.
    pub entries: Vec<(String, String)>,
    /// Number of malformed entries, which are left out.
    pub dropped: usize,
}

/// Parses integrity data.
///
/// The job appends complete lines: `    key:`, followed by lines `      name: value`. Anything else is
/// dropped, for example the last entry of a job killed while writing: the record must stay readable.
#[must_use]
pub fn parse_integrity_data(data: &[u8]) -> IntegrityData {
    let Ok(text) = str::from_utf8(data) else {
        return IntegrityData {
            entries: Vec::new(),
            dropped: 1,
        };
    };
    let mut found = IntegrityData::default();
    let mut entries = Vec::new();
    // Index of the last entry of each key.
    let mut places = HashMap::new();
    let mut lines = text
        .split_terminator('\n')
        .filter(|line| !line.trim().is_empty())
        .peekable();
    while let Some(head) = lines.next() {
        let key = head
            .strip_prefix("    ")
            .and_then(|rest| rest.strip_suffix(':'))
            .and_then(scalar);
        let mut entry = format!("{head}\n");
        let mut good = true;
        while let Some(line) = lines.next_if(|line| line.starts_with("     ")) {
            good &= line
                .strip_prefix("      ")
                .and_then(|line| line.split_once(": "))
                .is_some_and(|(name, value)| {
                    yaml::is_plain(name.as_bytes()) && (scalar(value).is_some() || is_value(value))
                });
            entry.push_str(line);
            entry.push('\n');
        }
        match key {
            Some(key) if good => {
                if let Some(before) = places.insert(key.clone(), entries.len()) {
                    entries[before] = None;
                }
                entries.push(Some((key, entry)));
            }
            _ => found.dropped += 1,
        }
    }
    found.entries = entries.into_iter().flatten().collect();
    found
}

/// Returns the value of a plain or double-quoted scalar that is certainly a string.
fn scalar(text: &str) -> Option<String> {
    if yaml::is_plain(text.as_bytes()) {
        return Some(text.to_owned());
    }
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    let mut value = String::with_capacity(inner.len());
    let mut characters = inner.chars();
    while let Some(c) = characters.next() {
        value.push(match c {
            '"' => return None,
            '\\' => match characters.next()? {
                c @ ('"' | '\\' | '/') => c,
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                _ => return None,
            },
            c if c.is_control() => return None,
            c => c,
        });
    }
    Some(value)
}

/// Returns whether the text is a number, time or word, which no parser takes for structure.
fn is_value(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b" _./+-:".contains(&byte))
        && !text.contains(": ")
        && !text.ends_with([':', ' '])
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn data_of_any_size_needs_little_memory() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        assert!(read_all(&file, 1 << 40).is_err());
        for limit in [None, Some(usize::MAX)] {
            assert_eq!(tail_length(1 << 40, limit), MAX_TAIL);
            assert_eq!(tail_length(9, limit), 9);
        }
    }

    #[test]
    fn many_entries_take_little_time() {
        let entry = |number: usize| format!("    f{number}:\n      sha256: ab\n");
        let data: String = (0..200_000).chain([7]).map(entry).collect();
        let begun = std::time::Instant::now();
        let found = parse_integrity_data(data.as_bytes());
        // With a look at all others for each one, it would be minutes.
        assert!(begun.elapsed() < std::time::Duration::from_secs(20));
        assert_eq!((found.entries.len(), found.dropped), (200_000, 0));
        assert_eq!(found.entries.last().unwrap().0, "f7");
        assert_eq!(found.entries[7].0, "f8");
    }

    fn captured(bytes: &[u8], limit: Option<usize>) -> Option<(bool, String)> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        read(&file, bytes.len() as u64, limit)
            .unwrap()
            .map(|payload| (payload.truncated, payload.text.into_owned()))
    }

    #[test]
    fn long_text_keeps_its_tail() {
        assert_eq!(captured(b"", Some(8)), None);
        assert_eq!(
            captured(b"0123456789\n", Some(8)),
            Some((true, "3456789\n".into()))
        );
        assert_eq!(captured(b"01234567", Some(8)), Some((false, "01234567".into())));
        assert_eq!(
            captured("ä€😀ä€😀".as_bytes(), Some(2)),
            Some((true, "€😀".into()))
        );
        assert_eq!(captured("ä€😀".as_bytes(), Some(3)), Some((false, "ä€😀".into())));
        assert_eq!(captured(b"a\xffb", None), Some((false, "a\u{fffd}b".into())));
    }

    proptest! {
        #[test]
        fn the_tail_has_the_last_characters(text in any::<String>(), limit in 1_usize..20) {
            let whole: Vec<char> = text.chars().collect();
            let tail: String = whole[whole.len().saturating_sub(limit)..].iter().collect();
            let expected = (!text.is_empty()).then_some((whole.len() > limit, tail));
            prop_assert_eq!(captured(text.as_bytes(), Some(limit)), expected);
        }
    }

    #[test]
    fn malformed_integrity_data_is_dropped() {
        let good = "    \"f.a\":\n      comment: entry generated by pegasus-integrity\n      file_name: \"/data/f.a\"\n      \
                    mode: 0o100644\n      size: 6\n      mtime: 2026-11-21T06:10:05.406558\n      output: True\n";
        let whole = |dropped| IntegrityData {
            entries: vec![("f.a".into(), good.into())],
            dropped,
        };
        assert_eq!(parse_integrity_data(good.as_bytes()), whole(0));
        assert_eq!(parse_integrity_data(format!("{good}{good}").as_bytes()), whole(0));
        let torn = format!("{good}    \"f.b\":\n      file_name: \"/da");
        assert_eq!(parse_integrity_data(torn.as_bytes()), whole(1));
        let nothing = IntegrityData {
            entries: Vec::new(),
            dropped: 1,
        };
        for bad in [
            "x: y\n",
            "    a: b: c\n",
            "    k:\n      a: *x\n",
            "    k:\n      a: b: c\n",
            "\u{1}\n",
        ] {
            assert_eq!(parse_integrity_data(bad.as_bytes()), nothing, "{bad}");
        }
        assert_eq!(parse_integrity_data(b"\xff"), nothing);
    }
}
