//! Command lines of this project's programs, for those that read or write them and do not run them: options
//! as tables, and which program a command finally runs.
//!
//! A command may begin with programs that run another one:
//!
//! ```text
//! [env NAME=VALUE…] [sh SCRIPT.secrets] [LAUNCHER OPTIONS…] [pegasus-kickstart OPTIONS…] PROGRAM WORDS…
//! ```

pub mod cluster;
pub mod kickstart;
mod lite;
pub mod shell;

pub use lite::{BadPart, LiteCall, Part, is_lite};

/// What a message about a missing output says about the check.
pub const OUTPUTS_UNCHECKED: &str =
    "with the property pmc.check.outputs=false at planning, this is no failure";

/// Transformation of jobs that remove files from work directories.
pub const CLEAN_UP: &[u8] = b"pegasus::cleanup";

/// Variable that kickstart sets for such a job, so that a directory among the files is no failure of it: no
/// plan can know which outputs are directories, and the lists are those of Pegasus.
pub const CLEAN_UP_VARIABLE: &str = "PMC_CLEANUP";

/// Runs a list of commands as one task.
pub const CLUSTER: &str = "pegasus-cluster";
/// Runs one program and writes a record of it.
pub const KICKSTART: &str = "pegasus-kickstart";
/// Runs a job in a directory of its own.
pub const LITE: &str = "pegasus-lite";

/// Moves and removes files.
pub const TRANSFER: &str = "pegasus-transfer";

/// Programs whose standard output holds records that monitoring reads.
const RECORDERS: [&str; 3] = [KICKSTART, CLUSTER, LITE];

/// Names of kickstart. The last one is that of a program of old planners with the same options.
const KICKSTARTS: [&[u8]; 3] = [KICKSTART.as_bytes(), b"kickstart", b"invoke"];

/// Programs that start another one, whose name is behind their options.
const LAUNCHERS: &str = "aprun chrt flux ibrun ionice jsrun lrun mpiexec mpiexec.hydra mpirun nice nohup \
                         numactl orterun prterun prun setsid srun stdbuf taskset time timeout";

/// End of the name of a script of pmc-plan that sets secret variables and runs its arguments.
const SECRETS: &[u8] = b".secrets";

/// Returns the program that a command finally runs, behind kickstart and `env`.
#[must_use]
pub fn application<W: AsRef<[u8]>>(words: &[W]) -> &[u8] {
    let mut rest = behind_environment(words);
    while let Some((_, arguments)) = rest
        .split_first()
        .filter(|(first, _)| KICKSTARTS.contains(&name(first)))
    {
        let mut options = kickstart::Options::new(arguments);
        options.by_ref().for_each(drop);
        rest = behind_environment(options.rest());
    }
    rest.first().or(words.first()).map_or(b"", AsRef::as_ref)
}

/// Returns whether a command moves or removes files: a server that does not answer now may do so later.
#[must_use]
pub fn is_transfer<W: AsRef<[u8]>>(words: &[W]) -> bool {
    name(application(words)) == TRANSFER.as_bytes()
}

/// Returns which of our programs a command runs whose standard output holds records that monitoring reads,
/// perhaps through a launcher.
#[must_use]
pub fn recorder<W: AsRef<[u8]>>(words: &[W]) -> Option<&'static str> {
    let named = |word: &W| {
        RECORDERS
            .into_iter()
            .find(|recorder| recorder.as_bytes() == name(word))
    };
    let (first, rest) = behind_environment(words).split_first()?;
    let launched = || {
        rest.iter().find_map(named).filter(|_| {
            LAUNCHERS
                .split(' ')
                .any(|launcher| launcher.as_bytes() == name(first))
        })
    };
    named(first).or_else(launched)
}

/// Returns whether the first process of a command is one of our programs that passes signals on to the
/// program that it runs.
#[must_use]
pub fn passes_signals<W: AsRef<[u8]>>(words: &[W]) -> bool {
    let first = behind_environment(words).first().map(|first| name(first));
    first.is_some_and(|first| KICKSTARTS.contains(&first) || first == LITE.as_bytes())
}

/// Returns how many words after `env` are its own: variables and options.
#[must_use]
pub fn env_words<W: AsRef<[u8]>>(words: impl IntoIterator<Item = W>) -> usize {
    let mut is_name = false;
    let is_own = |word: &W| {
        let word = word.as_ref();
        let is_own = is_name || word.contains(&b'=') || matches!(word, b"-" | b"-i" | b"-u");
        is_name = !is_name && word == b"-u";
        is_own
    };
    words.into_iter().take_while(is_own).count()
}

/// Returns the words behind those that set variables.
fn behind_environment<W: AsRef<[u8]>>(mut words: &[W]) -> &[W] {
    while let Some((first, rest)) = words.split_first() {
        words = match name(first) {
            b"env" => &rest[env_words(rest)..],
            b"sh"
                if rest
                    .first()
                    .is_some_and(|script| script.as_ref().ends_with(SECRETS)) =>
            {
                &rest[1..]
            }
            _ => break,
        };
    }
    words
}

/// Returns the last part of a path.
fn name<W: AsRef<[u8]> + ?Sized>(path: &W) -> &[u8] {
    path.as_ref()
        .rsplit(|byte| *byte == b'/')
        .next()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn words(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    fn app(line: &str) -> String {
        String::from_utf8_lossy(application(&words(line))).into_owned()
    }

    #[test]
    fn kickstart_and_lite_pass_signals_on() {
        for line in [
            "/p/pegasus-kickstart -n x /bin/ls",
            "/usr/bin/env A=b /bin/sh /s/w.secrets pegasus-lite x",
        ] {
            assert!(passes_signals(&words(line)), "{line}");
        }
        for line in [
            "",
            "/bin/ls",
            "mpiexec -n 2 pegasus-kickstart x",
            "pegasus-cluster x",
        ] {
            assert!(!passes_signals(&words(line)), "{line}");
        }
    }

    #[test]
    fn wrappers_are_skipped() {
        let kickstart = "/p/bin/pegasus-kickstart -H -n mk -Nx -R hpc -w /w -S @a -L l -T t -k 3 ";
        assert_eq!(app(&format!("{kickstart} /bin/mkdir -m 2755")), "/bin/mkdir");
        assert_eq!(
            app("/usr/bin/env A=b -u C /p/kickstart -n x -- /bin/ls"),
            "/bin/ls"
        );
        assert_eq!(
            app("env A=b /bin/sh /s/w-0.secrets /p/kickstart -n x -- /bin/ls"),
            "/bin/ls"
        );
        assert_eq!(app("/p/pegasus-kickstart -n x env A=b /bin/ls"), "/bin/ls");
        assert_eq!(app("/bin/sh script"), "/bin/sh");
        assert_eq!(app("/bin/ls -l"), "/bin/ls");
        assert_eq!(app("/p/pegasus-kickstart -n x -I args"), "/p/pegasus-kickstart");
        assert_eq!(app("/p/pegasus-kickstart -n"), "/p/pegasus-kickstart");
        assert_eq!(app("env A=b"), "env");
        assert_eq!(app(""), "");
    }

    #[test]
    fn transfers_are_known_behind_kickstart() {
        for line in [
            "/p/pegasus-transfer -f x",
            "env A=b /p/pegasus-kickstart -n t /q/pegasus-transfer",
        ] {
            assert!(is_transfer(&words(line)), "{line}");
        }
        for line in [
            "/bin/cp pegasus-transfer",
            "pegasus-kickstart -n pegasus-transfer /bin/cp",
            "",
        ] {
            assert!(!is_transfer(&words(line)), "{line}");
        }
    }

    #[test]
    fn no_option_of_kickstart_is_the_program() {
        assert_eq!(
            app("pegasus-kickstart -n x -N 1 -M -s a=/etc/hosts /bin/true"),
            "/bin/true"
        );
        for option in kickstart::OPTIONS {
            let Some(letter) = option.short.filter(|letter| *letter != 'I') else {
                continue;
            };
            let value = option.value.unwrap_or_default();
            assert_eq!(
                app(&format!("pegasus-kickstart -{letter} {value} /bin/true a")),
                "/bin/true"
            );
        }
    }

    #[test]
    fn arguments_are_no_programs() {
        for (line, program) in [
            ("/o/pegasus-kickstart -n x /bin/sim", Some(KICKSTART)),
            ("env A=1 /o/pegasus-kickstart -n x /bin/sim", Some(KICKSTART)),
            ("env A=1 -u B sh /s/w.secrets pegasus-cluster list", Some(CLUSTER)),
            ("/o/pegasus-lite --part 1:2 x", Some(LITE)),
            ("srun -n 2 /o/pegasus-kickstart -n x /bin/sim", Some(KICKSTART)),
            ("/usr/bin/nice -n 5 pegasus-cluster list", Some(CLUSTER)),
            ("/bin/sh -c sleep pegasus-kickstart", None),
            ("/bin/cp /o/pegasus-lite /tmp/pegasus-cluster", None),
            ("env A=pegasus-kickstart /bin/sim", None),
            ("/bin/sim pegasus-kickstart -n x", None),
            ("my-pegasus-kickstart", None),
            ("", None),
        ] {
            assert_eq!(recorder(&words(line)), program, "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_command_panics(
            words in vec("env|pegasus-kickstart|sh|a.secrets|-[a-zA-Z-]?x?|A=b|-u", 0..9),
        ) {
            let _ = (application(&words), recorder(&words), LiteCall::new(&words));
        }
    }
}
