//! A run inside a gang: its agents are on the hosts of the task in which it runs.

use std::ffi::OsString;
use std::path::PathBuf;

use pmc_batch::launch::RSH;
use pmc_wire::command::VARIABLE as TOKEN;

use crate::cli::{Agents, RawArgs};

/// Variable with the path of the file that names the hosts, one a line.
const HOSTS: &str = "PMC_NODEFILE";

/// Why a run cannot have the hosts of a gang.
#[derive(Debug, thiserror::Error)]
pub(super) enum GangError {
    #[error(
        "--agents gang is for a task over several hosts, and this is none ({HOSTS} is not set): such a task \
         has the option --nodes or --ranks"
    )]
    NoTask,
    #[error("Unable to read the hosts of the task from {path}: {reason}")]
    Hosts { path: String, reason: String },
    #[error(
        "--agents gang: processes of this task cannot run commands on its other hosts ({TOKEN} is not set): \
         its run needs agents, too"
    )]
    NoCommands,
    #[error("--agents gang starts its agents by {RSH}: leave --launch out")]
    Launch,
}

/// Puts the hosts of the task in the place of `--agents gang`. One host whose run has no agents needs none
/// here, either: then the tasks run in this process, with what the task has.
///
/// # Errors
/// There is no such task, or it has no way to its hosts.
pub(super) fn resolve(
    args: &mut RawArgs,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<(), GangError> {
    if args.agents != Some(Agents::Gang) {
        return Ok(());
    }
    if args.launch.as_ref().is_some_and(|how| how != RSH) {
        return Err(GangError::Launch);
    }
    let path = PathBuf::from(variable(HOSTS).ok_or(GangError::NoTask)?);
    let failed = |reason: String| GangError::Hosts {
        path: path.display().to_string(),
        reason,
    };
    let text = std::fs::read_to_string(&path).map_err(|error| failed(pmc_dag::reason(&error)))?;
    let hosts: Vec<String> = text.lines().map(str::to_owned).collect();
    if hosts.is_empty() || !hosts.iter().all(|host| pmc_hosts::is_name(host)) {
        return Err(failed("it must have a name of a host in each line".to_owned()));
    }
    let number = |name| variable(name)?.to_str()?.parse::<u32>().ok();
    let cpus = number("PMC_CPUS").unwrap_or(0);
    // The first host has most ranks.
    args.slots = args.slots.or(Some(cpus.max(1)));
    if variable(TOKEN).is_some() {
        args.agents = Some(Agents::Hosts(hosts));
        args.launch = Some(RSH.into());
        return Ok(());
    }
    if hosts.len() > 1 {
        return Err(GangError::NoCommands);
    }
    args.agents = None;
    args.launch = None;
    args.workers = args.slots.take();
    if args.host_cpus == 0 && !args.set_affinity {
        args.host_cpus = cpus;
    }
    if args.host_memory == 0 {
        args.host_memory = number("PMC_MEMORY").unwrap_or(0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn resolved(file: &Path, more: &[(&str, &str)]) -> Result<RawArgs, String> {
        let mut args = RawArgs {
            agents: Some(Agents::Gang),
            ..RawArgs::default()
        };
        let variable = |name: &str| {
            if name == HOSTS {
                return Some(file.into());
            }
            let found = more.iter().find(|(known, _)| *known == name)?;
            Some(OsString::from(found.1))
        };
        resolve(&mut args, variable).map_err(|error| error.to_string())?;
        Ok(args)
    }

    #[test]
    fn a_run_has_the_hosts_of_its_task() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nodes");
        std::fs::write(&file, "n1\nn2\n").unwrap();
        let args = resolved(&file, &[(TOKEN, "0a"), ("PMC_CPUS", "4")]).unwrap();
        let hosts = ["n1", "n2"].map(str::to_owned).into();
        assert_eq!(args.agents, Some(Agents::Hosts(hosts)));
        assert_eq!((args.launch, args.slots), (Some(RSH.into()), Some(4)));
        assert!(resolved(&file, &[]).unwrap_err().contains("needs agents, too"));
    }

    #[test]
    fn on_one_host_without_agents_tasks_run_in_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nodes");
        std::fs::write(&file, "n1\n").unwrap();
        let args = resolved(&file, &[("PMC_CPUS", "4"), ("PMC_MEMORY", "100")]).unwrap();
        assert_eq!((args.agents, args.workers), (None, Some(4)));
        assert_eq!((args.host_cpus, args.host_memory), (4, 100));
    }

    #[test]
    fn elsewhere_it_is_refused() {
        let mut args = RawArgs {
            agents: Some(Agents::Gang),
            ..RawArgs::default()
        };
        let error = resolve(&mut args, |_| None).unwrap_err();
        assert!(error.to_string().contains("PMC_NODEFILE is not set"), "{error}");
        args.launch = Some("ssh".into());
        let error = resolve(&mut args, |_| None).unwrap_err();
        assert!(error.to_string().contains("leave --launch out"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nodes");
        assert!(resolved(&file, &[]).unwrap_err().contains("Unable to read"));
        for text in ["", "n1\n\n", "n1 n2\n"] {
            std::fs::write(&file, text).unwrap();
            let error = resolved(&file, &[(TOKEN, "0a")]).unwrap_err();
            assert!(error.contains("a name of a host in each line"), "{error}");
        }
    }
}
