//! What an invocation inherits: environment, directory, streams. The program takes it from its process; an
//! executor makes one for each task.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ffi::{OsString, c_char};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use monitord_compat::invocation_record::Usage;
use nix::sys::stat::{Mode, umask};

use crate::inside::Inside;
use crate::spares::Spares;

/// What a process got from whoever started it.
#[derive(Clone, Debug)]
pub struct Inherited {
    /// Environment.
    pub environment: Environment,
    /// File mode creation mask.
    pub umask: u32,
    /// File of kickstart.
    pub program: PathBuf,
}

impl Inherited {
    /// That of this process. To be called before any other thread exists: the only way to ask for the mask is to change it.
    #[must_use]
    pub fn of_process(program: PathBuf) -> Self {
        let mask = umask(Mode::empty());
        umask(mask);
        Self {
            environment: std::env::vars_os().collect(),
            umask: mask.bits(),
            program,
        }
    }
}

/// Environment variables by name. A copy with some changes is cheap: what was there before is shared.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Sorted by name.
    inherited: Arc<[Variable]>,
    /// Besides those or in their place.
    own: Changes,
    /// The names of the former.
    names: NameFilter,
}

/// Variables in one piece of memory.
#[derive(Clone, Debug, Default)]
struct Changes {
    /// `NAME=value` and a zero of each; some are replaced and not used any more.
    texts: Vec<u8>,
    /// Sorted by name.
    places: Vec<Place>,
    names: NameFilter,
}

/// Where a variable is.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: usize,
    end: usize,
    /// Length of the name.
    name: usize,
    /// There is no zero but that at the end.
    valid: bool,
}

impl Changes {
    /// Bytes and number of the variables that are usually set for a task.
    const USUAL: (usize, usize) = (512, 12);

    fn name(&self, place: &Place) -> &[u8] {
        &self.texts[place.start..place.start + place.name]
    }

    fn value(&self, place: &Place) -> &[u8] {
        &self.texts[place.start + place.name + 1..place.end - 1]
    }

    fn find(&self, name: &[u8]) -> Result<usize, usize> {
        self.places.binary_search_by(|place| self.name(place).cmp(name))
    }

    fn set(&mut self, name: &[u8], value: &[u8]) {
        if self.places.is_empty() {
            self.texts.reserve(Self::USUAL.0);
            self.places.reserve(Self::USUAL.1);
        }
        let start = self.texts.len();
        for part in [name, b"=", value] {
            self.texts.extend_from_slice(part);
        }
        let valid = !self.texts[start..].contains(&0);
        self.texts.push(0);
        let place = Place {
            start,
            end: self.texts.len(),
            name: name.len(),
            valid,
        };
        self.names.add(name);
        match self.find(name) {
            Ok(at) => self.places[at] = place,
            Err(at) => self.places.insert(at, place),
        }
    }
}

/// Tells of most names that are not in a set that they are not: most of what kickstart looks for is not set.
#[derive(Clone, Copy, Debug, Default)]
struct NameFilter([u64; 4]);

impl NameFilter {
    /// Word and bit of a name.
    fn place(name: &[u8]) -> (usize, u64) {
        let byte = |at: usize| name.get(at).map_or(0, |&byte| usize::from(byte));
        let ends = byte(0) + 5 * byte(name.len().wrapping_sub(1));
        let hash = 29 * name.len() + ends + 13 * byte(name.len() / 2);
        (hash / 64 % 4, 1 << (hash % 64))
    }

    fn add(&mut self, name: &[u8]) {
        let (word, bit) = Self::place(name);
        self.0[word] |= bit;
    }

    fn may_have(&self, name: &[u8]) -> bool {
        let (word, bit) = Self::place(name);
        self.0[word] & bit != 0
    }
}

/// One variable, as programs get it.
#[derive(Clone, Debug)]
struct Variable {
    /// `NAME=value` and a zero.
    text: Vec<u8>,
    /// Length of the name.
    name: usize,
    /// It has no other zero.
    valid: bool,
}

impl Variable {
    fn new(name: &[u8], value: &[u8]) -> Self {
        let text = [name, b"=", value, b"\0"].concat();
        Self {
            valid: !text[..text.len() - 1].contains(&0),
            text,
            name: name.len(),
        }
    }

    fn name(&self) -> &[u8] {
        &self.text[..self.name]
    }

    fn value(&self) -> &[u8] {
        &self.text[self.name + 1..self.text.len() - 1]
    }
}

impl Environment {
    /// The value of `name`.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        if self.own.names.may_have(name)
            && let Ok(at) = self.own.find(name)
        {
            return Some(self.own.value(&self.own.places[at]));
        }
        if !self.names.may_have(name) {
            return None;
        }
        let at = self
            .inherited
            .binary_search_by(|variable| variable.name().cmp(name))
            .ok()?;
        Some(self.inherited[at].value())
    }

    /// The value of `name` as a path, if it is set and not empty.
    #[must_use]
    pub fn path(&self, name: &[u8]) -> Option<PathBuf> {
        let value = self.get(name).filter(|value| !value.is_empty())?;
        Some(OsString::from_vec(value.to_vec()).into())
    }

    /// The value of `KICKSTART_name`, or else of `GRIDSTART_name`. No setting has a name of more than 22 bytes.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&[u8]> {
        const PREFIXES: [&[u8; 10]; 2] = [b"KICKSTART_", b"GRIDSTART_"];
        // Compared in one piece, it takes a tenth of the time.
        let mut key = [0; 32];
        let length = PREFIXES[0].len() + name.len();
        key.get_mut(PREFIXES[0].len()..length)?
            .copy_from_slice(name.as_bytes());
        PREFIXES.iter().find_map(|prefix| {
            key[..prefix.len()].copy_from_slice(*prefix);
            self.get(&key[..length])
        })
    }

    /// Sets `name` to `value`.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        self.own.set(name, value);
    }

    /// All variables, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut inherited = self.inherited.iter().peekable();
        let mut own = self.own.places.iter().peekable();
        std::iter::from_fn(move || {
            let order = match (inherited.peek(), own.peek()) {
                (Some(one), Some(other)) => one.name().cmp(self.own.name(other)),
                (_, None) => Ordering::Less,
                (None, _) => Ordering::Greater,
            };
            if order == Ordering::Less {
                return inherited
                    .next()
                    .map(|variable| (variable.name(), variable.value()));
            }
            if order == Ordering::Equal {
                inherited.next();
            }
            own.next()
                .map(|place| (self.own.name(place), self.own.value(place)))
        })
    }

    /// The variables as programs get them: pointers into this, with a null pointer at the end.
    ///
    /// # Errors
    /// One of them has a zero within.
    pub fn pointers(&self) -> io::Result<Vec<*const c_char>> {
        let mut pointers = Vec::with_capacity(self.inherited.len() + self.own.places.len() + 1);
        let mut valid = true;
        let mut rest = &self.inherited[..];
        let inherit = |pointers: &mut Vec<*const c_char>, variables: &[Variable]| {
            pointers.extend(variables.iter().map(|variable| variable.text.as_ptr().cast()));
            variables.iter().all(|variable| variable.valid)
        };
        for own in &self.own.places {
            let name = self.own.name(own);
            // Many are next to each other.
            let found = match rest.first().map(|first| first.name().cmp(name)) {
                Some(Ordering::Less) => rest.binary_search_by(|other| other.name().cmp(name)),
                Some(Ordering::Equal) => Ok(0),
                Some(Ordering::Greater) | None => Err(0),
            };
            let (before, after) = found.map_or_else(|at| (at, at), |at| (at, at + 1));
            valid &= inherit(&mut pointers, &rest[..before]) && own.valid;
            pointers.push(self.own.texts[own.start..].as_ptr().cast());
            rest = &rest[after..];
        }
        valid &= inherit(&mut pointers, rest);
        if !valid {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "zero in the environment",
            ));
        }
        pointers.push(std::ptr::null());
        Ok(pointers)
    }
}

impl FromIterator<(OsString, OsString)> for Environment {
    fn from_iter<I: IntoIterator<Item = (OsString, OsString)>>(variables: I) -> Self {
        // Of equal names the last one counts.
        let variables: BTreeMap<OsString, OsString> = variables.into_iter().collect();
        let mut names = NameFilter::default();
        variables.keys().for_each(|name| names.add(name.as_bytes()));
        Self {
            names,
            inherited: variables
                .iter()
                .map(|(name, value)| Variable::new(name.as_bytes(), value.as_bytes()))
                .collect(),
            own: Changes::default(),
        }
    }
}

/// What an invocation inherits.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// When the invocation began: by the clock, and for durations.
    pub began: (SystemTime, Instant),
    /// Environment of the jobs before kickstart's own changes; also where its settings are.
    pub environment: Environment,
    /// Working directory, absolute; relative names of options are relative to it.
    pub directory: PathBuf,
    /// Whether that is the working directory of the process, which jobs inherit.
    pub entered: bool,
    /// File mode creation mask of the process, for the record.
    pub umask: u32,
    /// File of the program, for the record.
    pub program: PathBuf,
    /// Standard input for `-i -`.
    pub stdin: BorrowedFd<'a>,
    /// Standard output for `-o -`.
    pub stdout: BorrowedFd<'a>,
    /// Standard error for `-e -`.
    pub stderr: BorrowedFd<'a>,
    /// Descriptors that the jobs keep under their numbers.
    pub keep: Vec<BorrowedFd<'a>>,
    /// What earlier invocations of this process have left to use again.
    pub spares: &'a Spares,
    /// Does jobs of some programs without a process for each; nothing does so otherwise.
    pub inside: Option<&'a Inside>,
    /// Whose usage the record states as kickstart's.
    pub own_usage: OwnUsage,
    /// True to start each job in a process group of its own and to signal the group. Otherwise the jobs stay in
    /// the group of kickstart, so that a batch system that kills the group reaches them.
    pub own_group: bool,
}

/// Whose resources are stated as kickstart's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnUsage {
    /// Those of the process.
    Process,
    /// Those of the process since it had used so much.
    Since(Usage),
    /// Those of the calling thread.
    Thread,
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use proptest::prelude::*;

    use super::*;

    /// The variables as a program gets them.
    fn texts(environment: &Environment) -> Vec<String> {
        let pointers = environment.pointers().unwrap();
        let (null, pointers) = pointers.split_last().unwrap();
        assert!(null.is_null());
        #[expect(unsafe_code, reason = "they are those of the environment above")]
        let texts = pointers.iter().map(|text| unsafe { CStr::from_ptr(*text) });
        texts.map(|text| text.to_str().unwrap().to_owned()).collect()
    }

    proptest! {
        #[test]
        fn variables_are_found_and_sorted(
            inherited in proptest::collection::vec(("[A-C_]{0,4}", "[a-b]{0,2}"), 0..12),
            own in proptest::collection::vec(("[A-C_]{0,4}", "[a-b]{0,2}"), 0..8),
            name in "[A-C_]{0,4}",
        ) {
            let mut expected: BTreeMap<String, String> = inherited.iter().cloned().collect();
            let pairs = inherited.iter().map(|(name, value)| (name.into(), value.into()));
            let mut environment: Environment = pairs.collect();
            for (name, value) in &own {
                environment.set(name.as_bytes(), value.as_bytes());
            }
            expected.extend(own);
            let found = environment.get(name.as_bytes());
            prop_assert_eq!(found, expected.get(&name).map(String::as_bytes));
            let all: Vec<String> = expected.iter().map(|(name, value)| format!("{name}={value}")).collect();
            prop_assert_eq!(texts(&environment), all);
        }
    }

    #[test]
    fn own_variables_take_the_place_of_inherited_ones() {
        let inherited = [("B", "1"), ("GRIDSTART_X", "2"), ("A", "3"), ("A", "4")];
        let inherited = inherited.map(|(name, value)| (name.into(), value.into()));
        let before = Environment::from_iter(inherited);
        let mut environment = before.clone();
        for (name, value) in [("C", "5"), ("A", "6"), ("AA", ""), ("C", "7=8")] {
            environment.set(name.as_bytes(), value.as_bytes());
        }
        let text = |environment: &Environment| texts(environment).join(" ");
        assert_eq!(text(&environment), "A=6 AA= B=1 C=7=8 GRIDSTART_X=2");
        assert_eq!(text(&before), "A=4 B=1 GRIDSTART_X=2");
        assert_eq!(environment.get(b"A"), Some(&b"6"[..]));
        assert_eq!(environment.get(b"B"), Some(&b"1"[..]));
        assert_eq!(environment.get(b"D"), None);
        assert_eq!(environment.path(b"AA"), None);
        assert_eq!(environment.setting("X"), Some(&b"2"[..]));
        environment.set(b"KICKSTART_X", b"9");
        assert_eq!(environment.setting("X"), Some(&b"9"[..]));
        environment.set(b"Z", b"\0");
        assert!(environment.pointers().is_err());
    }
}
