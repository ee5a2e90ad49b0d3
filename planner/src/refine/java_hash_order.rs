//! Order of a hash table over names.
//!
//! Where several jobs share a level's work, it is of no importance which of them gets what, but it decides
//! how many jobs and edges there are. The order in which work is shared out is that of Pegasus, which takes
//! it from hash tables of the Java library, so that a plan has the same jobs and edges. Like any fixed order
//! it depends on the names alone.

/// Sorts entries of a table that had `size` of them by bucket; entries of one bucket stay in the order in which they
/// came in. `hash` gives the hashes of their names.
pub(crate) fn sort_hashed<T: Copy>(entries: &mut [T], size: usize, hash: impl Fn(&T) -> u32) {
    let buckets = buckets(size);
    let bucket = |entry: &T| hash(entry) & (buckets - 1);
    match entries.len() {
        0 | 1 => {}
        2..=FEW => sort_few(entries, bucket),
        _ => sort_many(entries, buckets.trailing_zeros(), bucket),
    }
}

/// Sorts entries of a table of `size`, and then as a table of their own, in one go.
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

/// From so many entries on, sorting by digits takes less time than by comparison; it is linear.
const MANY: usize = 4096;
/// Bits of a digit.
const DIGIT: u32 = 11;

/// Stable sort by keys of so many bits.
fn sort_many<T: Copy>(entries: &mut [T], bits: u32, key: impl Fn(&T) -> u32) {
    if entries.len() < MANY {
        return entries.sort_by_cached_key(key);
    }
    let mut keyed: Vec<(u32, T)> = entries.iter().map(|entry| (key(entry), *entry)).collect();
    let mut sorted = keyed.clone();
    for shift in (0..bits).step_by(DIGIT as usize) {
        let digit = |key: u32| (key >> shift) as usize & ((1 << DIGIT) - 1);
        let mut places = [0usize; 1 << DIGIT];
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

/// Tables of most jobs: a few files or children.
const FEW: usize = 8;

/// Stable insertion sort that needs no memory of its own.
fn sort_few<T>(entries: &mut [T], key: impl Fn(&T) -> u32) {
    let mut keys = [0; FEW];
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

/// Hash of a name over its UTF-16 units, its halves combined.
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

/// Buckets of a table that is filled to three quarters at most: a power of two.
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
    fn names_have_an_order_of_their_own() {
        let mut names = ["part_F1", "part_F2", "part_F3", "part_F4", "part_F5", "part_F6"];
        sort(&mut names, |name| name);
        assert_eq!(
            names,
            ["part_F6", "part_F2", "part_F3", "part_F4", "part_F5", "part_F1"]
        );
    }

    #[test]
    fn few_entries_are_sorted_like_many() {
        let names: Vec<String> = (0..FEW)
            .map(|n| format!("file.{}.{}", n * 7919 % 13, n % 3))
            .collect();
        for length in 0..=FEW {
            let mut few: Vec<&str> = names[..length].iter().map(String::as_str).collect();
            let mut many = few.clone();
            many.sort_by_key(|name| bucket(name, 16));
            sort(&mut few, |name| name);
            assert_eq!(few, many);
        }
    }

    #[test]
    fn two_sorts_in_one_go() {
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
    fn a_table_is_filled_to_three_quarters() {
        assert_eq!(
            [0, 12, 13, 24, 25, 96, 97].map(buckets),
            [16, 16, 32, 32, 64, 128, 256]
        );
    }

    #[test]
    fn entries_of_one_bucket_stay_in_order() {
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
