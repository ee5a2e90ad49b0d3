//! `pmc-monitord`.
fn main() {}
