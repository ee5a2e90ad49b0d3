//! Iteration order of Java's hash tables over names.
//!
//! Pegasus distributes the work of a level over jobs in this order. The order decides how many jobs and edges
//! a plan has. With the same order, plans have the same jobs and edges as those of Pegasus. It depends on the
//! names only.

/// Sorts entries of a table with `size` entries by bucket. Entries of one bucket keep their order. `hash`
/// returns the hash of an entry's name.
pub(crate) fn sort_hashed<T: Copy>(entries: &mut [T], size: usize, hash: impl Fn(&T) -> u32) {
    let buckets = buckets(size);
    let bucket = |entry: &T| hash(entry) & (buckets - 1);
    match entries.len() {
        0 | 1 => {}
        2..=MAX_INSERTION_SORT => sort_few(entries, bucket),
        _ => sort_many(entries, buckets.trailing_zeros(), bucket),
    }
}

/// Sorts entries as a table of `size` entries, and then as a table of these entries only, in one pass.
pub(crate) fn sort_by_buckets<'n, T: Copy>(entries: &mut [T], size: usize, name: impl Fn(&T) -> &'n str) {
    let then = buckets(entries.len());
    let (then_bits, first_bits) = (then.trailing_zeros(), buckets(size).max(then).trailing_zeros());
    let more = first_bits - then_bits;
    sort_many(entries, first_bits, |entry| {
        let hash = hash(name(entry));
        let above = (hash >> then_bits) & ((1 << more) - 1);
        ((hash & (then - 1)) << more) | above
    });
}

/// Entries from which on radix sort is faster than sorting by comparison.
const MIN_RADIX_SORT: usize = 4096;
/// Bits of a digit.
const DIGIT_BITS: u32 = 11;

/// Sorts stably by keys with this number of bits.
fn sort_many<T: Copy>(entries: &mut [T], bits: u32, key: impl Fn(&T) -> u32) {
    if entries.len() < MIN_RADIX_SORT {
        return entries.sort_by_cached_key(key);
    }
    let mut keyed: Vec<(u32, T)> = entries.iter().map(|entry| (key(entry), *entry)).collect();
    let mut sorted = keyed.clone();
    for shift in (0..bits).step_by(DIGIT_BITS as usize) {
        let digit = |key: u32| (key >> shift) as usize & ((1 << DIGIT_BITS) - 1);
        let mut places = [0usize; 1 << DIGIT_BITS];
        for &(key, _) in &keyed {
            places[digit(key)] += 1;
        }
        let mut next = 0;
        for place in &mut places {
            next += std::mem::replace(place, next);
        }
        for &entry in &keyed {
            let place = &mut places[digit(entry.0)];
            sorted[*place] = entry;
            *place += 1;
        }
        std::mem::swap(&mut keyed, &mut sorted);
    }
    for (entry, (_, sorted)) in entries.iter_mut().zip(keyed) {
        *entry = sorted;
    }
}

/// Entries up to which insertion sort is used. Most jobs have few files and children.
const MAX_INSERTION_SORT: usize = 8;

/// Stable insertion sort without allocation.
fn sort_few<T>(entries: &mut [T], key: impl Fn(&T) -> u32) {
    let mut keys = [0; MAX_INSERTION_SORT];
    for n in 0..entries.len() {
        keys[n] = key(&entries[n]);
        let mut at = n;
        while at > 0 && keys[at - 1] > keys[at] {
            keys.swap(at - 1, at);
            entries.swap(at - 1, at);
            at -= 1;
        }
    }
}

/// Hash of a name as Java computes it, over UTF-16 units, with its halves combined.
pub(crate) fn hash(name: &str) -> u32 {
    let add = |hash: u32, unit: u32| hash.wrapping_mul(31).wrapping_add(unit);
    let hash = if name.is_ascii() {
        name.bytes().fold(0, |hash, byte| add(hash, u32::from(byte)))
    } else {
        name.encode_utf16()
            .fold(0, |hash, unit| add(hash, u32::from(unit)))
    };
    hash ^ (hash >> 16)
}

/// Returns the number of buckets, a power of two, with a load factor of at most three quarters.
fn buckets(entries: usize) -> u32 {
    let needed = u32::try_from(entries)
        .unwrap_or(u32::MAX / 2)
        .div_ceil(3)
        .saturating_mul(4);
    needed.clamp(16, 1 << 30).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sort<'n>(entries: &mut [&'n str], name: impl Fn(&&'n str) -> &'n str) {
        sort_hashed(entries, entries.len(), |entry| hash(name(entry)));
    }

    /// Bucket of a name.
    fn bucket(name: &str, buckets: u32) -> u32 {
        hash(name) & (buckets - 1)
    }

    #[test]
    fn names_are_sorted_by_bucket() {
        let mut names = ["part_F1", "part_F2", "part_F3", "part_F4", "part_F5", "part_F6"];
        sort(&mut names, |name| name);
        assert_eq!(
            names,
            ["part_F6", "part_F2", "part_F3", "part_F4", "part_F5", "part_F1"]
        );
    }

    #[test]
    fn few_entries_are_sorted_like_many() {
        let names: Vec<String> = (0..MAX_INSERTION_SORT)
            .map(|n| format!("file.{}.{}", n * 7919 % 13, n % 3))
            .collect();
        for length in 0..=MAX_INSERTION_SORT {
            let mut few: Vec<&str> = names[..length].iter().map(String::as_str).collect();
            let mut many = few.clone();
            many.sort_by_key(|name| bucket(name, 16));
            sort(&mut few, |name| name);
            assert_eq!(few, many);
        }
    }

    #[test]
    fn one_pass_equals_two_sorts() {
        let names: Vec<String> = (0..9000).map(|n| format!("job_ID{}", n * 7919 % 9000)).collect();
        for length in [0, 1, 5, 100, 1000, 9000] {
            for size in [length, 20_000, 1_000_000] {
                let mut at_once: Vec<&str> = names[..length].iter().map(String::as_str).collect();
                let mut twice = at_once.clone();
                sort_by_buckets(&mut at_once, size, |name| name);
                twice.sort_by_key(|name| bucket(name, buckets(size)));
                twice.sort_by_key(|name| bucket(name, buckets(length)));
                assert_eq!(at_once, twice);
            }
        }
    }

    #[test]
    fn load_factor_is_three_quarters() {
        assert_eq!(
            [0, 12, 13, 24, 25, 96, 97].map(buckets),
            [16, 16, 32, 32, 64, 128, 256]
        );
    }

    #[test]
    fn entries_of_one_bucket_keep_their_order() {
        // The first two have the same hash.
        let mut names = ["BB", "Aa", "AaAa", "BBBB", "AaBB"];
        let spots = names.map(|name| bucket(name, 16));
        assert_eq!(spots[0], spots[1]);
        sort(&mut names, |name| name);
        let of = |name| names.iter().position(|n| *n == name);
        assert!(of("BB") < of("Aa"));
        assert!(of("AaAa") < of("BBBB") && of("BBBB") < of("AaBB"));
    }
}
