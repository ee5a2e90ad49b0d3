//! Writes a submit description whose jobs print their arguments and variables, and what they should print:
//! `quotings COUNT DIRECTORY`. `tests/condor` gives it to HTCondor.

#[path = "../tests/random/mod.rs"]
mod random;

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use pmc_dagman::write::{Dollars, SubmitFile, arguments, environment};
use random::Random;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [count, directory] = words.as_slice() else {
        return Err("usage: quotings COUNT DIRECTORY".into());
    };
    let directory = PathBuf::from(directory);
    fs::create_dir_all(&directory)?;
    let mut random = Random::new(2);
    let mut text = String::from("executable = show\nlog = words.log\nshould_transfer_files = YES\n");
    for n in 0..count.parse::<usize>()? {
        let (words, variables) = (random.words(), random.variables());
        let mut job = SubmitFile::default();
        // HTCondor matches a job of the one with a machine, and starts the other one at once.
        job.command("universe", if n % 4 == 0 { "vanilla" } else { "local" })?;
        job.command("output", &format!("{n}.out"))?;
        let pairs = words.iter().map(|word| (word, true));
        job.command("arguments", &arguments(pairs, Dollars::AtMatch)?)?;
        let pairs = variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str(), true));
        job.command("environment", &environment(pairs, Dollars::AtMatch)?)?;
        text.push_str(&job.queue());
        let mut expected: String = words.iter().map(|word| format!("{word}\0")).collect();
        expected.push('\0');
        expected.extend(variables.iter().map(|(name, value)| format!("{name}={value}\0")));
        fs::write(directory.join(format!("{n}.expected")), expected)?;
    }
    fs::write(directory.join("words.sub"), text)?;
    Ok(())
}
