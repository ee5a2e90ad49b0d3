#![no_main]

#[allow(dead_code, reason = "each target uses one of the entries")]
#[path = "../entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entries::workflow(data));
