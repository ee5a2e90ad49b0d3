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
    /// Besides those or in their place, sorted by name.
    own: Vec<Variable>,
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
        Self {
            text: [name, b"=", value, b"\0"].concat(),
            name: name.len(),
            valid: !name.contains(&0) && !value.contains(&0),
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
        [&self.own[..], &self.inherited]
            .into_iter()
            .find_map(|variables| {
                let at = variables
                    .binary_search_by(|variable| variable.name().cmp(name))
                    .ok()?;
                Some(variables[at].value())
            })
    }

    /// The value of `name` as a path, if it is set and not empty.
    #[must_use]
    pub fn path(&self, name: &[u8]) -> Option<PathBuf> {
        let value = self.get(name).filter(|value| !value.is_empty())?;
        Some(OsString::from_vec(value.to_vec()).into())
    }

    /// The value of `KICKSTART_name`, or else of `GRIDSTART_name`.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&[u8]> {
        ["KICKSTART_", "GRIDSTART_"].iter().find_map(|prefix| {
            // Compared in one piece, it takes a tenth of the time.
            self.get(&[prefix.as_bytes(), name.as_bytes()].concat())
        })
    }

    /// Sets `name` to `value`.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        let variable = Variable::new(name, value);
        match self.own.binary_search_by(|own| own.name().cmp(name)) {
            Ok(at) => self.own[at] = variable,
            Err(at) => self.own.insert(at, variable),
        }
    }

    /// All variables, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.variables()
            .map(|variable| (variable.name(), variable.value()))
    }

    fn variables(&self) -> impl Iterator<Item = &Variable> {
        let (mut inherited, mut own) = (self.inherited.iter().peekable(), self.own.iter().peekable());
        std::iter::from_fn(move || {
            let (Some(one), Some(other)) = (inherited.peek(), own.peek()) else {
                return inherited.next().or_else(|| own.next());
            };
            match one.name().cmp(other.name()) {
                Ordering::Less => inherited.next(),
                Ordering::Greater => own.next(),
                Ordering::Equal => {
                    inherited.next();
                    own.next()
                }
            }
        })
    }

    /// The variables as programs get them: pointers into this, with a null pointer at the end.
    ///
    /// # Errors
    /// One of them has a zero within.
    pub fn pointers(&self) -> io::Result<Vec<*const c_char>> {
        let mut pointers = Vec::with_capacity(self.inherited.len() + self.own.len() + 1);
        for variable in self.variables() {
            if !variable.valid {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "zero in the environment",
                ));
            }
            pointers.push(variable.text.as_ptr().cast());
        }
        pointers.push(std::ptr::null());
        Ok(pointers)
    }
}

impl FromIterator<(OsString, OsString)> for Environment {
    fn from_iter<I: IntoIterator<Item = (OsString, OsString)>>(variables: I) -> Self {
        // Of equal names the last one counts.
        let variables: BTreeMap<OsString, OsString> = variables.into_iter().collect();
        Self {
            inherited: variables
                .iter()
                .map(|(name, value)| Variable::new(name.as_bytes(), value.as_bytes()))
                .collect(),
            own: Vec::new(),
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

    use super::*;

    #[test]
    fn own_variables_take_the_place_of_inherited_ones() {
        let inherited = [("B", "1"), ("GRIDSTART_X", "2"), ("A", "3"), ("A", "4")];
        let inherited = inherited.map(|(name, value)| (name.into(), value.into()));
        let before = Environment::from_iter(inherited);
        let mut environment = before.clone();
        for (name, value) in [("C", "5"), ("A", "6"), ("AA", ""), ("C", "7=8")] {
            environment.set(name.as_bytes(), value.as_bytes());
        }
        let text = |environment: &Environment| {
            let pointers = environment.pointers().unwrap();
            let (null, pointers) = pointers.split_last().unwrap();
            assert!(null.is_null());
            #[expect(unsafe_code, reason = "they are those of the environment above")]
            let texts = pointers.iter().map(|text| unsafe { CStr::from_ptr(*text) });
            let texts: Vec<_> = texts.map(|text| text.to_str().unwrap().to_owned()).collect();
            texts.join(" ")
        };
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
