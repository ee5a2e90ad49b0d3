//! The fuzzer of one entry, whose name is in the variable `PMC_FUZZ_ENTRY`.

#![no_main]

use std::sync::LazyLock;

mod entries;

static ENTRY: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("PMC_FUZZ_ENTRY").unwrap_or_default();
    macro_rules! find {
        ($($known:ident $entry:ident $cost:literal,)*) => {
            match name.as_str() {
                $(stringify!($known) => entries::$entry,)*
                _ => panic!("PMC_FUZZ_ENTRY is one of {}", [$(stringify!($known)),*].join(", ")),
            }
        };
    }
    for_each_entry!(find)
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| ENTRY(data));
