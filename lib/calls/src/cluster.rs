//! Options of `pegasus-cluster`, which may be joined: `-fn 3`.

/// Letters of the options with a value.
pub const WITH_VALUE: [u8; 4] = *b"nRsS";

/// Returns the value of the last option with this letter; an empty one if it is missing.
#[must_use]
pub fn value<W: AsRef<[u8]>>(words: &[W], letter: u8) -> Option<&[u8]> {
    let mut found = None;
    let mut words = words.iter().map(AsRef::as_ref);
    while let Some(word) = words.next() {
        let letters = word.strip_prefix(b"-").unwrap_or_default();
        let Some(at) = letters.iter().position(|letter| WITH_VALUE.contains(letter)) else {
            continue;
        };
        let value = match &letters[at + 1..] {
            b"" => words.next().unwrap_or_default(),
            glued => glued,
        };
        if letters[at] == letter {
            found = Some(value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_counts() {
        for (line, number) in [
            ("", None),
            ("-n 1", Some("1")),
            ("-n4", Some("4")),
            ("-d -n auto", Some("auto")),
            ("-fn 3", Some("3")),
            ("-n 3 -n 1", Some("1")),
            ("-s n4 -R -n5", None),
            ("-n", Some("")),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(value(&words, b'n'), number.map(str::as_bytes), "{line}");
        }
    }
}
