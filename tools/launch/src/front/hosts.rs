//! The hosts of a launch: those of the task in which it runs, else this machine.

use std::ffi::OsString;
use std::path::Path;

use pmc_wire::command::VARIABLE;

use crate::error::LaunchError;
use crate::world::Host;

/// Most bytes of the file with the hosts of a task.
const MAX_FILE: u64 = 64 << 20;

/// Where ranks may run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AvailableHosts {
    pub(super) hosts: Vec<Host>,
    /// They are those of a task: proxies are started by `pmc-rsh`.
    pub(super) is_task: bool,
    /// The task has CPUs of its own.
    pub(super) has_cpus: bool,
}

/// Returns the hosts. `variable` are those of the environment.
///
/// # Errors
/// The file of the task cannot be read.
pub(super) fn available(
    variable: &mut dyn FnMut(&str) -> Option<OsString>,
) -> Result<AvailableHosts, LaunchError> {
    let (Some(_), Some(file)) = (variable(VARIABLE), variable("PMC_HOSTFILE")) else {
        let name = nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok());
        return Ok(AvailableHosts {
            hosts: vec![Host {
                name: name.unwrap_or_else(|| "localhost".to_owned()),
                slots: u32::MAX,
            }],
            is_task: false,
            has_cpus: false,
        });
    };
    let path = Path::new(&file);
    let failed = |why: String| LaunchError::File {
        path: path.to_owned(),
        why,
    };
    let text = pmc_files::read_to_string(path, MAX_FILE);
    let text = text.map_err(|error| failed(pmc_dag::reason(&error).to_string()))?;
    let host = |line: &str| {
        let (name, slots) = line.split_once(" slots=")?;
        Some(Host {
            name: name.to_owned(),
            slots: slots.trim().parse().ok()?,
        })
    };
    let hosts: Option<Vec<Host>> = text.lines().map(host).collect();
    let hosts = hosts.filter(|hosts| !hosts.is_empty());
    Ok(AvailableHosts {
        hosts: hosts.ok_or_else(|| failed("it has other lines than HOST slots=RANKS".to_owned()))?,
        is_task: true,
        has_cpus: variable("PMC_AFFINITY").is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<AvailableHosts, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let mut variable = |name: &str| match name {
            "PMC_GANG" => Some("0".into()),
            "PMC_HOSTFILE" => Some(file.path().into()),
            _ => None,
        };
        available(&mut variable).map_err(|error| error.to_string())
    }

    #[test]
    fn hosts_are_those_of_the_task() {
        let found = of("n1 slots=2\nn2 slots=1\n").unwrap();
        let hosts: Vec<(&str, u32)> = found.hosts.iter().map(|host| (&*host.name, host.slots)).collect();
        assert_eq!(hosts, [("n1", 2), ("n2", 1)]);
        assert!(found.is_task && !found.has_cpus);
        for text in ["", "n1\n", "n1 slots=x\n"] {
            assert!(of(text).unwrap_err().contains("other lines"), "{text}");
        }
        let alone = available(&mut |_| None).unwrap();
        assert_eq!((alone.hosts.len(), alone.is_task), (1, false));
    }

    #[test]
    fn a_list_of_hosts_that_never_ends_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut variable = |name: &str| match name {
            "PMC_HOSTFILE" => Some(path.clone().into_os_string()),
            _ => Some("token".into()),
        };
        let error = available(&mut variable).unwrap_err().to_string();
        assert!(error.contains("hosts: "), "{error}");
    }
}
