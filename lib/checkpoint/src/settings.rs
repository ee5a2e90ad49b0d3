//! The configuration file of the Terascale Computing System (`/etc/tcsiod.conf`): where checkpoint files lie.
//!
//! A line has a name and a value; `#` begins a comment. Places are *complex paths*,
//! `hostExp(redundancy):path1,path2`: hosts as `n[0-3,7]`, `{local}` or `{cluster}`, here also `{partner}`
//! and `{shared}`; the redundancy `n+1` pairs the hosts. Variables with these names come first.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use pmc_files::Owner;
use pmc_hosts::HostsError;

use crate::{InvalidPlan, Plan};

/// Variable with the path of the file.
const FILE_VARIABLE: &str = "PMC_CHECKPOINT_CONF";

/// The file of the user, below the home directory, and that of the system.
const USER_FILE: &str = ".config/pmc/tcsiod.conf";
const SYSTEM_FILE: &str = "/etc/tcsiod.conf";

/// Maximum bytes of a file.
const MAX_SIZE: u64 = 1 << 20;

/// Maximum hosts of an expression.
const MAX_HOSTS: usize = 1 << 16;

/// Maximum nodes of a set of files with one parity.
const MAX_XOR: u32 = 1 << 10;

/// Names of what can be set.
const LOCAL: &str = "TCS_LOCALCHKDIR";
const CENTRAL: &str = "TCS_CENTRALCHKDIR";
const PLAN: &str = "TCS_PLAN";
const XOR: &str = "TCS_NODES_XOR";
const LOG: &str = "TCS_IOLOG";

/// Where checkpoint files lie, and how they are kept from being lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where a node keeps what its tasks save.
    pub local: Option<ComplexPath>,
    /// Where copies go.
    pub central: Option<ComplexPath>,
    /// The plan.
    pub plan: Plan,
    /// Maximum nodes of a set of files with one parity.
    pub nodes_xor: u32,
    /// Whether there are statistics of files.
    pub logs: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            local: None,
            central: None,
            plan: Plan::default(),
            nodes_xor: 8,
            logs: true,
        }
    }
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file belongs to another user.
    #[error("{} belongs to another user", .0.display())]
    OtherUser(PathBuf),
    /// A line of a file cannot be read.
    #[error("{}, line {line}: {source}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Why.
        source: InvalidSetting,
    },
    /// The value of a variable cannot be read.
    #[error("{name}: {source}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// Why.
        source: InvalidSetting,
    },
}

/// A setting that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSetting {
    /// A line has no value.
    #[error("{0:?} has no value")]
    NoValue(String),
    /// There is no such setting.
    #[error("{0:?} is no setting: there are {LOCAL}, {CENTRAL}, {PLAN}, {XOR} and {LOG}")]
    Unknown(String),
    /// A plan cannot be chosen.
    #[error(transparent)]
    Plan(#[from] InvalidPlan),
    /// A number is none, or out of range.
    #[error("{0:?} is no number of nodes from 1 to {MAX_XOR}")]
    Number(String),
    /// A switch is neither on nor off.
    #[error("{0:?} is neither 0 nor 1")]
    Switch(String),
    /// A path is not absolute.
    #[error("{0:?} is no absolute path")]
    Path(String),
    /// Braces hold something else.
    #[error("{{{0}}} stands for no hosts: there are {{local}}, {{cluster}}, {{partner}} and {{shared}}")]
    Generic(String),
    /// There is no such redundancy.
    #[error("({0}) is no redundancy: there is (n+1)")]
    Redundancy(String),
    /// A host expression is wrong.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// The files of a node would lie on another one.
    #[error("files of tasks are on the node of the task: {LOCAL} needs {{local}}, or paths only")]
    NotLocal,
}

/// Hosts of a complex path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// `{local}`: the host itself.
    Local,
    /// `{cluster}`: the hosts of the run.
    Cluster,
    /// `{partner}`: any other host of the run.
    Partner,
    /// `{shared}`: the directory of the DAG file.
    Shared,
    /// These.
    List(Vec<String>),
}

/// Hosts, and paths on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComplexPath {
    /// The hosts.
    pub hosts: Hosts,
    /// Each has a partner: the first one the second, the third one the fourth.
    pub is_paired: bool,
    /// The paths; perhaps none.
    pub paths: Vec<PathBuf>,
}

impl FromStr for ComplexPath {
    type Err = InvalidSetting;

    fn from_str(text: &str) -> Result<Self, InvalidSetting> {
        let (hosts, paths) = match text.starts_with('/') {
            true => ("{local}", text),
            false => text.split_once(':').unwrap_or((text, "")),
        };
        let (hosts, redundancy) = match hosts.strip_suffix(')').and_then(|rest| rest.rsplit_once('(')) {
            Some((hosts, redundancy)) => (hosts, Some(redundancy)),
            None => (hosts, None),
        };
        if let Some(other) = redundancy.filter(|text| *text != "n+1") {
            return Err(InvalidSetting::Redundancy(other.to_owned()));
        }
        let generic = hosts.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        let hosts = match generic {
            Some("local") => Hosts::Local,
            Some("cluster") => Hosts::Cluster,
            Some("partner") => Hosts::Partner,
            Some("shared") => Hosts::Shared,
            Some(other) => return Err(InvalidSetting::Generic(other.to_owned())),
            None => Hosts::List(pmc_hosts::parse_hosts(hosts, MAX_HOSTS)?),
        };
        let path = |text: &str| match text.starts_with('/') {
            true => Ok(PathBuf::from(text)),
            false => Err(InvalidSetting::Path(text.to_owned())),
        };
        let paths = paths.split(',').filter(|path| !path.is_empty()).map(path);
        Ok(Self {
            hosts,
            is_paired: redundancy.is_some(),
            paths: paths.collect::<Result<_, _>>()?,
        })
    }
}

impl ComplexPath {
    /// Returns the listed hosts in the order in which a host takes them: itself if it is one of them, else
    /// the one at the place of its number; then the partner of that one; then the others. Empty without a
    /// list.
    #[must_use]
    pub fn order(&self, host: &str) -> Vec<&str> {
        let Hosts::List(list) = &self.hosts else {
            return Vec::new();
        };
        let own = list.iter().position(|listed| listed == host);
        let by_number = number_of(host).checked_rem(list.len() as u64);
        let Some(target) = own.or(by_number.and_then(|at| usize::try_from(at).ok())) else {
            return Vec::new();
        };
        let partner = Some(target ^ 1).filter(|at| self.is_paired && *at < list.len());
        let first = std::iter::once(target).chain(partner);
        let others = (0..list.len()).filter(|at| *at != target && Some(*at) != partner);
        let all = first.chain(others);
        all.filter_map(|at| list.get(at).map(String::as_str)).collect()
    }

    /// Returns the path on this host with the most free bytes, as `free` says. Of paths for which it says
    /// nothing, the first one.
    #[must_use]
    pub fn roomiest(&self, free: impl Fn(&Path) -> Option<u64>) -> Option<&Path> {
        let free = |path: &&PathBuf| free(path).map_or(0, |bytes| bytes.saturating_add(1));
        // The first one of several.
        self.paths.iter().rev().max_by_key(free).map(PathBuf::as_path)
    }
}

/// The number in the name of a host: its last digits.
fn number_of(host: &str) -> u64 {
    let name = host.split('.').next().unwrap_or_default();
    let before = name.trim_end_matches(|c: char| !c.is_ascii_digit());
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

impl Settings {
    /// Reads the first of these files that there is: the one that [`FILE_VARIABLE`] names, that of the user,
    /// that of the system; then the variables.
    ///
    /// # Errors
    /// One of them cannot be read or used.
    pub fn find(variable: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let named = variable(FILE_VARIABLE).filter(|path| !path.is_empty());
        let home = variable("HOME").map(|home| Path::new(&home).join(USER_FILE));
        let own = home.into_iter().chain([PathBuf::from(SYSTEM_FILE)]);
        let mut settings = match named {
            Some(path) => Self::read(Path::new(&path))?.ok_or_else(|| SettingsError::Read {
                path: path.into(),
                source: std::io::ErrorKind::NotFound.into(),
            })?,
            None => own
                .map(|path| Self::read(&path))
                .find_map(Result::transpose)
                .transpose()?
                .unwrap_or_default(),
        };
        for name in [LOCAL, CENTRAL, PLAN, XOR, LOG] {
            if let Some(value) = variable(name).filter(|value| !value.is_empty()) {
                let set = settings.set(name, &value);
                set.map_err(|source| SettingsError::Variable { name, source })?;
            }
        }
        Ok(settings)
    }

    /// Reads a file. `None` if there is none.
    fn read(path: &Path) -> Result<Option<Self>, SettingsError> {
        let failed = |source| SettingsError::Read {
            path: path.to_owned(),
            source,
        };
        let file = match pmc_files::open_with_owner(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Ok((_, Owner::Other)) => return Err(SettingsError::OtherUser(path.to_owned())),
            opened => opened.map_err(failed)?.0,
        };
        let text = pmc_files::read_rest(&file, MAX_SIZE).map_err(failed)?;
        let parsed = Self::parse(&String::from_utf8_lossy(&text));
        let parsed = parsed.map_err(|(line, source)| SettingsError::Line {
            path: path.to_owned(),
            line,
            source,
        });
        parsed.map(Some)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// A line cannot be read: its number, and why.
    pub fn parse(text: &str) -> Result<Self, (usize, InvalidSetting)> {
        let mut settings = Self::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            let set = match line.split_once(char::is_whitespace) {
                _ if line.is_empty() => Ok(()),
                None => Err(InvalidSetting::NoValue(line.to_owned())),
                Some((name, value)) => settings.set(name, value.trim()),
            };
            set.map_err(|source| (number + 1, source))?;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), InvalidSetting> {
        match name {
            LOCAL => {
                let local: ComplexPath = value.parse()?;
                if local.hosts != Hosts::Local || local.paths.is_empty() {
                    return Err(InvalidSetting::NotLocal);
                }
                self.local = Some(local);
            }
            CENTRAL => self.central = Some(value.parse()?),
            PLAN => self.plan = value.parse()?,
            XOR => {
                let number = value.parse().ok().filter(|number| (1..=MAX_XOR).contains(number));
                self.nodes_xor = number.ok_or_else(|| InvalidSetting::Number(value.to_owned()))?;
            }
            LOG => {
                self.logs = match value {
                    "0" => false,
                    "1" => true,
                    other => return Err(InvalidSetting::Switch(other.to_owned())),
                }
            }
            other => return Err(InvalidSetting::Unknown(other.to_owned())),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_file_of_the_paper_is_read() {
        let text = "# define complex path for local (primary) checkpoint files\n\
                    TCS_LOCALCHKDIR {local}:/local1/tcschk,/local2/tcschk\n\
                    # define complex path for central (duplicate) checkpoint files\n\
                    TCS_CENTRALCHKDIR lemieux[0-32](n+1):/usr/tcschk\n";
        let settings = Settings::parse(text).unwrap();
        let local = settings.local.unwrap();
        assert_eq!((local.hosts.clone(), local.paths.len()), (Hosts::Local, 2));
        let free = |bytes: [u64; 2]| {
            let of = move |path: &Path| Some(bytes[usize::from(path.starts_with("/local2"))]);
            local.roomiest(of).unwrap().to_owned()
        };
        assert_eq!(free([7, 8]), Path::new("/local2/tcschk"));
        assert_eq!(free([8, 8]), Path::new("/local1/tcschk"));
        let central = settings.central.unwrap();
        assert!(central.is_paired);
        assert_eq!(
            central.order("lemieux7")[..3],
            ["lemieux7", "lemieux6", "lemieux0"]
        );
        assert_eq!(central.order("other34.site")[..2], ["lemieux1", "lemieux0"]);
        // The last one has no partner.
        assert_eq!(central.order("lemieux32")[..2], ["lemieux32", "lemieux0"]);
        assert_eq!(
            (settings.nodes_xor, settings.plan, settings.logs),
            (8, Plan::C1, true)
        );
    }

    #[test]
    fn what_cannot_be_read_is_said_with_its_line() {
        let error = |text: &str| {
            let (line, error) = Settings::parse(text).unwrap_err();
            format!("{line}: {error}")
        };
        assert_eq!(error("\nTCS_PLAN"), "2: \"TCS_PLAN\" has no value");
        assert_eq!(
            error("TCS_PLAN A1"),
            "1: the checkpoint plan A1 has no description: choose B2 or C1"
        );
        for (line, part) in [
            ("TCS_PLAN D", "no checkpoint plan"),
            ("TCS_NODES_XOR 0", "no number of nodes"),
            ("TCS_IOLOG no", "neither 0 nor 1"),
            ("TCS_SPEED 1", "is no setting"),
            ("TCS_LOCALCHKDIR n1:/a", "needs {local}"),
            ("TCS_LOCALCHKDIR {local}:", "needs {local}"),
            ("TCS_LOCALCHKDIR {local}:a", "no absolute path"),
            ("TCS_CENTRALCHKDIR {moon}:/a", "{moon} stands for no hosts"),
            ("TCS_CENTRALCHKDIR n1(n+2):/a", "(n+2) is no redundancy"),
            ("TCS_CENTRALCHKDIR n[1:/a", "no list of hosts"),
            ("TCS_CENTRALCHKDIR n1,n1:/a", "twice"),
        ] {
            assert!(error(line).contains(part), "{line}: {}", error(line));
        }
    }

    #[test]
    fn variables_come_before_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("conf");
        let find = |own: &[(&str, &str)]| {
            Settings::find(|name| {
                let named = (name == FILE_VARIABLE).then(|| file.display().to_string());
                let own = own.iter().find(|(known, _)| *known == name);
                own.map(|(_, value)| (*value).to_owned()).or(named)
            })
        };
        assert!(find(&[]).unwrap_err().to_string().contains("entity not found"));
        std::fs::write(&file, "TCS_NODES_XOR 4 # nodes\nTCS_IOLOG 0\n").unwrap();
        let settings = find(&[("TCS_LOCALCHKDIR", "/a"), ("TCS_NODES_XOR", "5")]).unwrap();
        assert_eq!((settings.nodes_xor, settings.logs), (5, false));
        assert_eq!(settings.local.unwrap().paths, [Path::new("/a")]);
        let wrong = find(&[("TCS_PLAN", "C2")]).unwrap_err().to_string();
        assert!(wrong.starts_with("TCS_PLAN: the checkpoint plan C2"), "{wrong}");
        std::fs::write(&file, "x\n").unwrap();
        let wrong = find(&[]).unwrap_err().to_string();
        assert!(wrong.ends_with("conf, line 1: \"x\" has no value"), "{wrong}");
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(54321), None).unwrap();
            assert!(matches!(find(&[]), Err(SettingsError::OtherUser(_))));
        }
        // Without a file, the defaults hold.
        assert_eq!(Settings::find(|_| None).unwrap(), Settings::default());
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_no_panic(text in ".*", host in ".{0,20}") {
            let _ = Settings::parse(&text);
            if let Ok(path) = text.parse::<ComplexPath>() {
                let order = path.order(&host);
                prop_assert!(order.is_empty() != matches!(path.hosts, Hosts::List(_)));
            }
        }
    }
}
