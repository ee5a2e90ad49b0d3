//! The lead of a gang: what its command finds in its environment, and in files, about hosts and ranks.
//!
//! Launchers of MPI programs read them, so that a plain `mpirun ./a.out` runs on exactly these hosts, with
//! all ranks. They start their processes on other hosts with `pmc-rsh`, as they would with `ssh`.

use std::ffi::{CString, OsString};
use std::fmt::Write as _;
use std::io;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

use super::environment::is_inherited;
use crate::channels::Channels;
use crate::host;
use crate::options::WorkerOptions;
use crate::protocol::{Assignment, GangHost, GangStart, GangToken};

/// Variables of batch jobs that say how many ranks their nodes have, and how many CPUs a rank. A gang has
/// others.
pub(super) const HIDDEN: [&[u8]; 4] = [
    b"SLURM_TASKS_PER_NODE",
    b"SLURM_NTASKS_PER_NODE",
    b"SLURM_CPUS_PER_TASK",
    b"SRUN_CPUS_PER_TASK",
];

/// An attempt that is the lead of a gang.
pub(super) struct Lead {
    /// Holds the files.
    _directory: TempDir,
    variables: Vec<(&'static str, Vec<u8>)>,
    token: GangToken,
    channels: Option<Arc<dyn Channels>>,
}

/// The files of a gang.
struct Files {
    /// A host a line.
    nodes: PathBuf,
    /// A rank a line: its host.
    ranks: PathBuf,
    /// `HOST slots=RANKS`.
    hosts: PathBuf,
    /// `HOST:RANKS`.
    machines: PathBuf,
}

impl Lead {
    /// Writes the files.
    ///
    /// # Errors
    /// They cannot be written.
    pub(super) fn new(gang: &GangStart, options: &WorkerOptions) -> io::Result<Self> {
        let environment = &options.environment;
        let variable = environment.iter().find(|(name, _)| name == "TMPDIR");
        let folder = variable.map_or_else(|| "/tmp".into(), |(_, value)| PathBuf::from(value));
        let directory = tempfile::Builder::new().prefix("pmc-gang-").tempdir_in(folder)?;
        let files = Files::write(&gang.hosts, directory.path())?;
        let rsh = host::rsh_program();
        let port = TcpListener::bind(("0.0.0.0", 0)).and_then(|listener| listener.local_addr())?;
        let facts = Facts {
            gang,
            files: &files,
            rsh: &rsh,
            port: port.port(),
            has_channels: options.channels.is_some(),
        };
        Ok(Self {
            variables: facts.variables(environment),
            _directory: directory,
            token: gang.token,
            channels: options.channels.clone(),
        })
    }

    /// The variables, as `NAME=VALUE`.
    pub(super) fn variables(&self) -> impl Iterator<Item = CString> {
        let text = |(name, value): &(&str, Vec<u8>)| [name.as_bytes(), b"=", value].concat();
        self.variables
            .iter()
            .filter_map(move |variable| CString::new(text(variable)).ok())
    }

    /// Lets processes of the gang run commands on its hosts.
    pub(super) fn open(&self, task: &Assignment, environment: Vec<Vec<u8>>, directory: &Path) {
        if let Some(channels) = &self.channels {
            channels.open(task, environment, directory);
        }
    }

    /// Lets them run no more commands. Returns whether the network has cut a connection.
    pub(super) fn close(self) -> bool {
        self.end()
    }

    fn end(&self) -> bool {
        self.channels
            .as_ref()
            .is_some_and(|channels| channels.close(self.token))
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.end();
    }
}

impl Files {
    fn write(hosts: &[GangHost], folder: &Path) -> io::Result<Self> {
        let [mut nodes, mut ranks, mut slots, mut machines] = [const { String::new() }; 4];
        for host in hosts {
            let name = &host.name;
            // Writing into a String cannot fail.
            let _ = writeln!(nodes, "{name}");
            let _ = writeln!(slots, "{name} slots={}", host.ranks);
            let _ = writeln!(machines, "{name}:{}", host.ranks);
            for _ in 0..host.ranks {
                let _ = writeln!(ranks, "{name}");
            }
        }
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).map(|()| path)
        };
        Ok(Self {
            nodes: write("nodes", &nodes)?,
            ranks: write("ranks", &ranks)?,
            hosts: write("hosts", &slots)?,
            machines: write("machines", &machines)?,
        })
    }
}

/// What the variables are made of.
struct Facts<'a> {
    gang: &'a GangStart,
    files: &'a Files,
    /// The program that launchers start.
    rsh: &'a Path,
    /// A port that was free a moment ago.
    port: u16,
    /// Processes of the gang can run commands on other hosts.
    has_channels: bool,
}

impl Facts<'_> {
    /// Returns the variables. What the environment sets for a launcher stays.
    fn variables(&self, environment: &[(OsString, OsString)]) -> Vec<(&'static str, Vec<u8>)> {
        let is_set =
            |name: &str| is_inherited(name.as_bytes()) && environment.iter().any(|(set, _)| set == name);
        let launchers = self.launchers().into_iter().filter(|(name, _)| !is_set(name));
        let mut all = self.own();
        if is_set("SLURM_JOB_ID") {
            all.extend(self.of_slurm());
        }
        all.extend(launchers);
        all
    }

    fn own(&self) -> Vec<(&'static str, Vec<u8>)> {
        let hosts = &self.gang.hosts;
        let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        let ranks = hosts.iter().map(|host| host.ranks);
        let number = |number: usize| number.to_string().into_bytes();
        let mut all = vec![
            ("PMC_NODES", number(hosts.len())),
            ("PMC_RANKS", self.ranks()),
            (
                "PMC_RANKS_PER_NODE",
                ranks.max().unwrap_or(0).to_string().into_bytes(),
            ),
            ("PMC_NODELIST", pmc_hosts::compress(&names).into_bytes()),
            ("PMC_NODEFILE", bytes(&self.files.nodes)),
            ("PMC_RANKFILE", bytes(&self.files.ranks)),
            ("PMC_HOSTFILE", bytes(&self.files.hosts)),
            ("PMC_MACHINEFILE", bytes(&self.files.machines)),
            ("MASTER_ADDR", names.first().unwrap_or(&"").as_bytes().to_vec()),
            ("MASTER_PORT", number(self.port.into())),
        ];
        if self.has_channels {
            all.push((
                pmc_wire::command::VARIABLE,
                self.gang.token.to_string().into_bytes(),
            ));
        }
        all
    }

    /// Number of all ranks.
    fn ranks(&self) -> Vec<u8> {
        let ranks = self.gang.hosts.iter().map(|host| u64::from(host.ranks));
        ranks.sum::<u64>().to_string().into_bytes()
    }

    /// For `srun` in a job of Slurm: a step with these ranks, which shares the hosts with other steps.
    fn of_slurm(&self) -> Vec<(&'static str, Vec<u8>)> {
        let nodes = self.gang.hosts.len().to_string().into_bytes();
        vec![
            ("SLURM_HOSTFILE", bytes(&self.files.ranks)),
            ("SLURM_DISTRIBUTION", b"arbitrary".to_vec()),
            ("SLURM_NTASKS", self.ranks()),
            ("SLURM_NPROCS", self.ranks()),
            ("SLURM_NNODES", nodes.clone()),
            ("SLURM_JOB_NUM_NODES", nodes),
            ("SLURM_OVERLAP", b"1".to_vec()),
        ]
    }

    /// For launchers that start processes on other hosts themselves, whatever batch system they see.
    fn launchers(&self) -> Vec<(&'static str, Vec<u8>)> {
        let (rsh, hosts, machines) = (
            bytes(self.rsh),
            bytes(&self.files.hosts),
            bytes(&self.files.machines),
        );
        let mut all = vec![
            // Open MPI 4.
            ("OMPI_MCA_plm", b"rsh".to_vec()),
            ("OMPI_MCA_plm_rsh_agent", rsh.clone()),
            ("OMPI_MCA_orte_default_hostfile", hosts.clone()),
            ("OMPI_MCA_ras", b"^slurm,tm,lsf,gridengine,loadleveler".to_vec()),
            // Open MPI 5 and PRRTE.
            ("PRTE_MCA_plm", b"ssh".to_vec()),
            ("PRTE_MCA_plm_ssh_agent", rsh.clone()),
            ("PRTE_MCA_prte_default_hostfile", hosts),
            ("PRTE_MCA_ras", b"^slurm,pbs,lsf,gridengine,flux".to_vec()),
            // MPICH.
            ("HYDRA_LAUNCHER", b"ssh".to_vec()),
            ("HYDRA_LAUNCHER_EXEC", rsh.clone()),
            ("HYDRA_HOST_FILE", machines.clone()),
            ("HYDRA_RMK", b"user".to_vec()),
            // Intel MPI.
            ("I_MPI_HYDRA_BOOTSTRAP", b"ssh".to_vec()),
            ("I_MPI_HYDRA_BOOTSTRAP_EXEC", rsh),
            ("I_MPI_HYDRA_HOST_FILE", machines),
            ("I_MPI_HYDRA_RMK", b"user".to_vec()),
        ];
        if !self.gang.exclusive {
            // Open MPI would bind the ranks of each gang of a host to its first CPUs. Without binding, they
            // keep the CPUs of their part.
            all.push(("OMPI_MCA_hwloc_base_binding_policy", b"none".to_vec()));
            all.push(("PRTE_MCA_hwloc_default_binding_policy", b"none".to_vec()));
        }
        all
    }
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn gang(exclusive: bool) -> GangStart {
        let host = |(name, ranks): (&str, u32)| GangHost {
            name: name.to_owned(),
            ranks,
            addresses: Vec::new(),
        };
        GangStart {
            token: GangToken(0xab),
            hosts: [("n1", 2), ("n2", 2), ("n4", 1)].map(host).into(),
            exclusive,
        }
    }

    fn variables(gang: &GangStart, environment: &[(&str, &str)]) -> BTreeMap<&'static str, String> {
        let files = Files {
            nodes: "/d/nodes".into(),
            ranks: "/d/ranks".into(),
            hosts: "/d/hosts".into(),
            machines: "/d/machines".into(),
        };
        let facts = Facts {
            gang,
            files: &files,
            rsh: Path::new("/bin/pmc-rsh"),
            port: 4711,
            has_channels: true,
        };
        let set = environment
            .iter()
            .map(|(name, value)| (name.into(), value.into()));
        let all = facts.variables(&set.collect::<Vec<_>>());
        let text = |value| String::from_utf8(value).unwrap();
        all.into_iter().map(|(name, value)| (name, text(value))).collect()
    }

    #[test]
    fn files_name_hosts_and_ranks_as_launchers_read_them() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::write(&gang(false).hosts, folder.path()).unwrap();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!(read(&files.nodes), "n1\nn2\nn4\n");
        assert_eq!(read(&files.ranks), "n1\nn1\nn2\nn2\nn4\n");
        assert_eq!(read(&files.hosts), "n1 slots=2\nn2 slots=2\nn4 slots=1\n");
        assert_eq!(read(&files.machines), "n1:2\nn2:2\nn4:1\n");
    }

    #[test]
    fn a_command_finds_its_hosts_and_ranks() {
        let found = variables(&gang(false), &[]);
        for (name, value) in [
            ("PMC_NODES", "3"),
            ("PMC_RANKS", "5"),
            ("PMC_RANKS_PER_NODE", "2"),
            ("PMC_NODELIST", "n[1-2,4]"),
            ("PMC_RANKFILE", "/d/ranks"),
            ("MASTER_ADDR", "n1"),
            ("MASTER_PORT", "4711"),
            ("PMC_GANG", "000000000000000000000000000000ab"),
            ("OMPI_MCA_plm_rsh_agent", "/bin/pmc-rsh"),
            ("OMPI_MCA_hwloc_base_binding_policy", "none"),
            ("PRTE_MCA_prte_default_hostfile", "/d/hosts"),
            ("HYDRA_HOST_FILE", "/d/machines"),
        ] {
            assert_eq!(found.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert!(!found.contains_key("SLURM_HOSTFILE"), "there is no job of Slurm");
        assert!(!variables(&gang(true), &[]).contains_key("OMPI_MCA_hwloc_base_binding_policy"));
    }

    #[test]
    fn what_the_user_has_set_for_a_launcher_stays_and_what_slurm_has_set_does_not() {
        let environment = [
            ("HYDRA_LAUNCHER", "fork"),
            ("SLURM_JOB_ID", "7"),
            ("SLURM_NTASKS", "12"),
        ];
        let found = variables(&gang(false), &environment);
        assert!(!found.contains_key("HYDRA_LAUNCHER"));
        assert!(found.contains_key("HYDRA_LAUNCHER_EXEC"));
        assert_eq!(found["SLURM_NTASKS"], "5");
        assert_eq!(found["SLURM_NNODES"], "3");
        assert_eq!(found["SLURM_HOSTFILE"], "/d/ranks");
    }
}
