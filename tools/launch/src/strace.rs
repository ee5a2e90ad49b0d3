//! What the command line says of `strace`, and which ranks run below it.

use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::Args;
use pmc_dag::words;

use crate::error::LaunchError;
use crate::frames::{Bytes, Strace};
use crate::loadfile::{Ranks, ranks_of_srun};

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct StraceOptions {
    /// Write the system calls of ranks into files strace.JOB.RANK in this directory, by strace; JOB is the
    /// number of the process of this program
    #[arg(id = "strace", long = "strace", value_name = "DIR", conflicts_with_all = ["trace", "hold"])]
    directory: Option<PathBuf>,
    /// Further options of strace, such as -f -e trace=file
    #[arg(
        id = "strace-options",
        long = "strace-options",
        value_name = "TEXT",
        requires = "strace",
        allow_hyphen_values = true
    )]
    options: Option<String>,
    /// Ranks whose system calls are written, such as 0-3,7; * for all
    #[arg(
        id = "strace-ranks",
        long = "strace-ranks",
        value_name = "RANKS",
        requires = "strace",
        default_value = "0"
    )]
    #[arg(value_parser = parse_ranks)]
    ranks: Traced,
}

/// Some ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Traced(Ranks);

fn parse_ranks(text: &str) -> Result<Traced, String> {
    ranks_of_srun(text.as_bytes()).map(Traced)
}

impl StraceOptions {
    /// What a proxy with these ranks is told. Makes the directory if it is missing.
    ///
    /// # Errors
    /// A quote in the options is never closed, or the directory cannot be made.
    pub(crate) fn of_launch(&self) -> Result<Option<Strace>, LaunchError> {
        let Some(directory) = &self.directory else {
            return Ok(None);
        };
        let text = self.options.as_deref().unwrap_or_default().as_bytes();
        if words::has_open_quote(text) {
            let why = "a quote in --strace-options is never closed";
            return Err(LaunchError::Usage(why.to_owned()));
        }
        if !directory.is_dir() {
            std::fs::create_dir(directory).map_err(|error| LaunchError::File {
                path: directory.clone(),
                why: pmc_dag::reason(&error).to_string(),
            })?;
        }
        Ok(Some(Strace {
            directory: Bytes(directory.as_os_str().as_bytes().to_vec()),
            job: std::process::id(),
            options: words::split(text).into_iter().map(Bytes).collect(),
            ranks: Vec::new(),
        }))
    }

    /// True if a rank runs below it.
    pub(crate) fn has(&self, rank: u32) -> bool {
        match &self.ranks.0 {
            Ranks::These(ranges) => ranges.iter().any(|range| range.contains(&rank)),
            Ranks::Number(_) | Ranks::Others => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::Options;

    fn parsed(words: &[&str]) -> Result<Options, String> {
        let all = ["pmc-launch"].iter().chain(words).chain(&["a"]);
        Options::try_parse_from(all).map_err(|error| error.to_string())
    }

    #[test]
    fn the_options_of_strace_are_words() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("new");
        let directory = directory.to_str().unwrap();
        let options = parsed(&[
            "--strace",
            directory,
            "--strace-options",
            "-f -e 'trace=file,read'",
        ]);
        let strace = options.unwrap().strace;
        let sent = strace.of_launch().unwrap().unwrap();
        let text = |bytes: &Bytes| String::from_utf8(bytes.0.clone()).unwrap();
        assert_eq!(
            sent.options.iter().map(text).collect::<Vec<_>>(),
            ["-f", "-e", "trace=file,read"]
        );
        assert_eq!(text(&sent.directory), directory);
        assert!(folder.path().join("new").is_dir());
        assert!(strace.has(0) && !strace.has(1), "without a list, rank 0");
        let open = parsed(&["--strace", directory, "--strace-options", "-e 'x"]).unwrap();
        assert!(open.strace.of_launch().unwrap_err().is_usage());
        assert_eq!(parsed(&[]).unwrap().strace.of_launch().unwrap(), None);
    }

    #[test]
    fn ranks_are_a_list() {
        let has = |list: &str, rank| {
            parsed(&["--strace", "x", "--strace-ranks", list])
                .unwrap()
                .strace
                .has(rank)
        };
        assert!(has("1-2,5", 5) && has("1-2,5", 1) && !has("1-2,5", 0) && has("*", 77));
        for wrong in [
            &["--strace", "x", "--strace-ranks", "2-1"][..],
            &["--strace-ranks", "1"],
            &["--strace-options", "-f"],
            &["--strace", "x", "-g"],
            &["--strace", "x", "--hold"],
        ] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }
}
