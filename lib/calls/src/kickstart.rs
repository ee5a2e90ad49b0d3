//! Options of `pegasus-kickstart`: for its parser, its help, its manual page, and for those that look behind
//! it.
//!
//! Options are single letters; a value is glued to its letter or the next word. Only the letter after the
//! dash counts, so flags cannot be joined. The options end at the first word without dash, after `--`, or at
//! an unknown option, which is then the program.

/// An option of the command line.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// Letter after one dash.
    pub short: Option<char>,
    /// Name after two dashes.
    pub long: Option<&'static str>,
    /// Placeholder of the value; `None` for a flag.
    pub value: Option<&'static str>,
    /// Description.
    pub help: &'static str,
}

const fn flag(short: char, help: &'static str) -> OptionSpec {
    OptionSpec {
        short: Some(short),
        long: None,
        value: None,
        help,
    }
}

const fn option(short: char, value: &'static str, help: &'static str) -> OptionSpec {
    OptionSpec {
        short: Some(short),
        long: None,
        value: Some(value),
        help,
    }
}

const fn long(name: &'static str, help: &'static str) -> OptionSpec {
    OptionSpec {
        short: None,
        long: Some(name),
        value: None,
        help,
    }
}

/// Letters of the original's tracing, which take no value. They are refused.
pub const TRACING: [char; 3] = ['t', 'z', 'Z'];

/// All options, in the order of the help text. Those with a letter are read by this table.
pub const OPTIONS: &[OptionSpec] = &[
    option('n', "TEXT", "transformation, namespace::name:version"),
    option('N', "TEXT", "id of the task in the abstract workflow"),
    option('R', "TEXT", "site"),
    option('L', "TEXT", "label of the workflow"),
    option('T', "TEXT", "time of the abstract workflow"),
    option('w', "DIR", "working directory"),
    option('W', "DIR", "working directory; it is made if it does not exist"),
    option(
        'i',
        "FILE",
        "standard input of the program; - is that of kickstart (default: /dev/null)",
    ),
    option(
        'o',
        "FILE",
        "standard output of the program; - is that of kickstart, !FILE appends, ^FILE renames an existing \
         file to FILE.000 and so on (default: into the record)",
    ),
    option(
        'e',
        "FILE",
        "standard error of the program, with the same forms as -o",
    ),
    option(
        'l',
        "FILE",
        "append the record to FILE; if that fails, it goes to standard output with a warning (default: \
         standard output)",
    ),
    option(
        'B',
        "N",
        "characters of captured output to keep, counted from the end, or all, which is up to 256 MiB (default: 262144)",
    ),
    flag('q', "leave captured output out of the record if the jobs succeed"),
    flag(
        'f',
        "put environment and limits in the record even if the jobs succeed",
    ),
    flag('H', "leave the machine out of the record"),
    option(
        'S',
        "FILE",
        "record size, times and owner of FILE before the run; LFN=FILE gives its logical name, @LIST names a \
         file with one such entry per line; may be repeated",
    ),
    option('s', "FILE", "the same after the run, with SHA-256"),
    flag(
        'M',
        "fail if a FILE of -s is missing after a successful run, as for files after the line \"# required\" of a LIST",
    ),
    flag('X', "make the program executable first"),
    option('k', "SECONDS", "send SIGTERM after this time (default: 0, never)"),
    option(
        'K',
        "SECONDS",
        "send SIGKILL this long after SIGTERM (default: 5)",
    ),
    option(
        'I',
        "FILE",
        "read program and arguments from FILE, one per line; must be the last option",
    ),
    flag('F', "sync the record to disk"),
    flag('c', "ignored"),
    flag(
        'V',
        "print the version of Pegasus that this program is compatible with",
    ),
    long("version", "print the version of this program"),
    flag('h', "print this text and exit with 127, as -?"),
    flag('?', "print this text and exit with 127, as -h"),
    long("help", "print this text"),
];

/// The options of a call, by the words after the name of the program.
#[derive(Clone, Debug)]
pub struct Options<'w, W> {
    words: &'w [W],
    /// Number of the next word.
    next: usize,
    has_ended: bool,
}

/// An option of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given<'w> {
    /// Its letter; a dash for a long option.
    pub letter: char,
    /// Its value, or the name of a long option. `None` for a flag, and if the value is missing.
    pub value: Option<&'w [u8]>,
    /// Number of the word that holds the value, and where in it the value starts.
    pub place: (usize, usize),
}

impl<'w, W: AsRef<[u8]>> Options<'w, W> {
    /// Reads the words after the name of the program.
    #[must_use]
    pub fn new(words: &'w [W]) -> Self {
        Self {
            words,
            next: 0,
            has_ended: false,
        }
    }

    /// Returns the words that follow the options read so far: after the last one, program and arguments.
    #[must_use]
    pub fn rest(&self) -> &'w [W] {
        self.words.get(self.next..).unwrap_or_default()
    }
}

impl<'w, W: AsRef<[u8]>> Iterator for Options<'w, W> {
    type Item = Given<'w>;

    fn next(&mut self) -> Option<Given<'w>> {
        let word = self.words.get(self.next).filter(|_| !self.has_ended)?.as_ref();
        let [b'-', letter, glued @ ..] = word else {
            return None;
        };
        let mut given = Given {
            letter: char::from(*letter),
            value: None,
            place: (self.next, word.len() - glued.len()),
        };
        if word == b"--" {
            self.has_ended = true;
            self.next += 1;
            return None;
        }
        let is_it = |spec: &&OptionSpec| {
            spec.short == Some(given.letter)
                || spec
                    .long
                    .is_some_and(|long| word.strip_prefix(b"--") == Some(long.as_bytes()))
        };
        match OPTIONS.iter().find(is_it) {
            Some(spec) if spec.long.is_some() || spec.value.is_some() && !glued.is_empty() => {
                given.value = Some(glued);
            }
            Some(spec) if spec.value.is_some() => {
                self.next += 1;
                given.place = (self.next, 0);
                given.value = self.words.get(self.next).map(AsRef::as_ref);
            }
            Some(_) => {}
            None if TRACING.contains(&given.letter) => {}
            None => return None,
        }
        self.next += 1;
        Some(given)
    }
}

/// Returns the value of the first option with this letter.
#[must_use]
pub fn value<W: AsRef<[u8]>>(words: &[W], letter: char) -> Option<&[u8]> {
    Options::new(words).find(|given| given.letter == letter)?.value
}

/// Returns the files with lists of files (`-s @FILE`, `-S @FILE`), and the places of these values.
pub fn lists<W: AsRef<[u8]> + AsRef<str>>(words: &[W]) -> impl Iterator<Item = (&str, (usize, usize))> {
    let lists = Options::new(words).filter(|given| matches!(given.letter, 's' | 'S'));
    lists.filter_map(|Given { place, .. }| {
        let word: &str = words.get(place.0)?.as_ref();
        Some((word.get(place.1..)?.strip_prefix('@')?, place))
    })
}

/// Replaces the file with a list of files.
pub fn set_list(words: &mut [String], (word, start): (usize, usize), file: &str) {
    if let Some(word) = words.get_mut(word) {
        word.truncate(start);
        word.push('@');
        word.push_str(file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<&str> {
        line.split(' ').collect()
    }

    #[test]
    fn values_are_found_before_the_program() {
        let line = words("-f -M -n split -NID1 -R local -w /x /bin/app -R other -L l");
        assert_eq!(value(&line, 'R'), Some(&b"local"[..]));
        assert_eq!(value(&line, 'N'), Some(&b"ID1"[..]));
        assert_eq!(value(&line, 'L'), None);
        assert_eq!(value(&words("-n"), 'n'), None);
    }

    #[test]
    fn options_end_at_the_program() {
        let rest = |line: &str| {
            let words = words(line);
            let mut options = Options::new(&words);
            options.by_ref().for_each(drop);
            options.rest().join(" ")
        };
        for (line, program) in [
            ("-M -s a=/etc/hosts /bin/true -x", "/bin/true -x"),
            ("-t -H -- -x -H", "-x -H"),
            ("-H -Y a", "-Y a"),
            ("-H --other a", "--other a"),
            ("--help a", "a"),
            ("-n", ""),
            ("- a", "- a"),
        ] {
            assert_eq!(rest(line), program, "{line}");
        }
    }

    #[test]
    fn lists_of_files_are_replaced_before_the_program() {
        let mut line: Vec<String> = words("-s@a -S @b -s c -n @n /bin/app -s @d")
            .iter()
            .map(|w| (*w).into())
            .collect();
        let found: Vec<_> = lists(&line)
            .map(|(list, place)| (list.to_owned(), place))
            .collect();
        assert_eq!(found, [("a".to_owned(), (0, 2)), ("b".to_owned(), (2, 0))]);
        for (list, place) in found {
            set_list(&mut line, place, &format!("/new/{list}"));
        }
        assert_eq!(line.join(" "), "-s@/new/a -S @/new/b -s c -n @n /bin/app -s @d");
    }
}
