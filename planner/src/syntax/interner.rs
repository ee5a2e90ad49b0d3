//! String interner: each text is stored once, in one buffer, and has a number.

use std::hash::{BuildHasher, BuildHasherDefault};

use hashbrown::HashTable;
use rustc_hash::FxHasher;

/// Texts numbered from 0 in order of first mention.
#[derive(Clone, Debug, Default)]
pub struct Interner {
    text: String,
    /// End of each text in `text`; it starts where the previous one ends.
    ends: Vec<usize>,
    /// Hash and number of each text.
    numbers: HashTable<(u32, u32)>,
}

#[inline]
fn hash(name: &str) -> u32 {
    (BuildHasherDefault::<FxHasher>::default().hash_one(name) >> 32) as u32
}

/// Expands a stored hash to 64 bits, so that a growing table need not read the texts.
#[inline]
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[inline]
fn slice<'a>(text: &'a str, ends: &[usize], number: u32) -> &'a str {
    let number = number as usize;
    let start = if number == 0 { 0 } else { ends[number - 1] };
    &text[start..ends[number]]
}

impl Interner {
    /// Returns the number of the text, and whether it is new.
    pub fn intern(&mut self, name: &str) -> (u32, bool) {
        let hash_of_name = hash(name);
        let Interner { text, ends, numbers } = self;
        let is_it = |&(hash, n): &(u32, u32)| hash == hash_of_name && slice(text, ends, n) == name;
        if let Some(&(_, number)) = numbers.find(spread(hash_of_name), is_it) {
            return (number, false);
        }
        let number = u32::try_from(ends.len()).expect("fewer than 2^32 names: memory ends before");
        text.push_str(name);
        ends.push(text.len());
        numbers.insert_unique(spread(hash_of_name), (hash_of_name, number), |&(hash, _)| {
            spread(hash)
        });
        (number, true)
    }
    /// Returns the number of a known text.
    pub fn find(&self, name: &str) -> Option<u32> {
        let hash_of_name = hash(name);
        let is_it =
            |&(hash, n): &(u32, u32)| hash == hash_of_name && slice(&self.text, &self.ends, n) == name;
        self.numbers.find(spread(hash_of_name), is_it).map(|&(_, n)| n)
    }
    /// Returns the text with a number from [`Interner::intern`].
    pub fn name(&self, number: u32) -> &str {
        slice(&self.text, &self.ends, number)
    }
    /// Returns the number of texts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_first_mentions() {
        let mut names = Interner::default();
        assert_eq!(names.intern("a"), (0, true));
        assert_eq!(names.intern(""), (1, true));
        assert_eq!(names.intern("a"), (0, false));
        assert_eq!(names.intern("b"), (2, true));
        assert_eq!((names.name(0), names.name(1), names.name(2)), ("a", "", "b"));
        assert_eq!(names.find("b"), Some(2));
        assert_eq!(names.find("c"), None);
        for n in 0..10_000 {
            names.intern(&format!("file{n}"));
        }
        assert_eq!(names.find("file9999").map(|n| names.name(n)), Some("file9999"));
        assert_eq!(names.len(), 10_003);
    }
}
