//! Writes submit descriptions of jobs that print their arguments and variables, and what they should print:
//! `quotings COUNT DIRECTORY`. `tests/condor` gives them to HTCondor.

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
    for n in 0..count.parse::<usize>()? {
        let (words, variables) = (random.words(), random.variables());
        let mut job = SubmitFile::default();
        job.command("executable", "show")?;
        job.command("should_transfer_files", "YES")?;
        // HTCondor matches a job of the one with a machine, and starts the other one at once.
        job.command("universe", if n % 4 == 0 { "vanilla" } else { "local" })?;
        job.command("output", &format!("{n}.out"))?;
        let pairs = words.iter().map(|word| (word, true));
        job.command("arguments", &arguments(pairs, Dollars::AtMatch)?)?;
        let pairs = variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str(), true));
        job.command("environment", &environment(pairs, Dollars::AtMatch)?)?;
        fs::write(directory.join(format!("{n}.sub")), job.queue())?;
        let mut expected: String = words.iter().map(|word| format!("{word}\0")).collect();
        expected.push('\0');
        expected.extend(variables.iter().map(|(name, value)| format!("{name}={value}\0")));
        fs::write(directory.join(format!("{n}.expected")), expected)?;
    }
    Ok(())
}
