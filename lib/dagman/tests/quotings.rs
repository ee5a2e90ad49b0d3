//! Words that are written for HTCondor are those that it reads.

mod random;

use pmc_dagman::quoting;
use pmc_dagman::write::{Dollars, arguments, environment};
use random::Random;

/// Replaces the macros that stand for dollar signs, as HTCondor does.
fn expanded(text: &str) -> String {
    text.replace("$$(DOLLARDOLLAR)", "$$").replace("$(DOLLAR)", "$")
}

#[test]
fn a_hundred_thousand_lists_are_read_again() {
    let mut random = Random::new(1);
    for n in 0..100_000 {
        let (words, variables) = (random.words(), random.variables());
        let text = arguments(words.iter().map(|word| (word, true)), Dollars::AtMatch).unwrap();
        let read = quoting::arguments(&expanded(&text)).unwrap();
        assert_eq!(read, words, "list {n}: {text}");
        let pairs = variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str(), true));
        let text = environment(pairs, Dollars::AtMatch).unwrap();
        let read: Vec<(String, String)> = quoting::environment(&expanded(&text))
            .unwrap()
            .into_iter()
            .collect();
        assert_eq!(read, variables, "environment {n}: {text}");
    }
}
