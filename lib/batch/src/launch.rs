//! Commands that start a process on each node of a batch job, or on hosts that are named.

pub mod srun;

/// The program that runs commands on other hosts of a gang.
pub const RSH: &str = "pmc-rsh";

/// How agents are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// As processes of this machine.
    Local {
        /// Number of agents.
        agents: u32,
    },
    /// By ssh, one on each host.
    Ssh {
        /// The hosts.
        hosts: Vec<String>,
    },
    /// By `pmc-rsh`, one on each host of the gang in which this process runs, or on some of them.
    Rsh {
        /// The hosts.
        hosts: Vec<String>,
    },
    /// By a command for each host. The word `{host}` stands for its name; the command of the agent follows.
    Each {
        /// The words.
        words: Vec<String>,
        /// The hosts.
        hosts: Vec<String>,
    },
    /// By one command, which the command of the agent follows.
    Once {
        /// The words.
        words: Vec<String>,
    },
}

/// A launcher needs names of hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--launch {0} needs names of hosts: --agents HOST,HOST")]
pub struct NeedsHosts(String);

impl Launch {
    /// Reads the value of `--launch`, with the number of agents and their hosts, if they are named.
    ///
    /// # Errors
    /// The launcher needs names of hosts.
    pub fn parse(how: &str, agents: u32, hosts: &[String]) -> Result<Self, NeedsHosts> {
        let words = |text: &[&str]| Self::Once {
            words: text.iter().map(|word| (*word).to_owned()).collect(),
        };
        let count = agents.to_string();
        Ok(match how {
            "local" => Self::Local { agents },
            "ssh" if hosts.is_empty() => return Err(NeedsHosts(how.to_owned())),
            "ssh" => Self::Ssh {
                hosts: hosts.to_vec(),
            },
            RSH if hosts.is_empty() => return Err(NeedsHosts(how.to_owned())),
            RSH => Self::Rsh {
                hosts: hosts.to_vec(),
            },
            srun::PROGRAM => Self::Once {
                words: srun::words(agents, hosts),
            },
            "mpiexec" if hosts.is_empty() => words(&["mpiexec", "-n", &count]),
            "mpiexec" => words(&["mpiexec", "-n", &count, "-host", &hosts.join(",")]),
            "flux" => words(&["flux", "run", "-N", &count, "-n", &count]),
            "pbsdsh" => words(&["pbsdsh", "-u", "--"]),
            "blaunch" if hosts.is_empty() => words(&["blaunch"]),
            "blaunch" => words(&["blaunch", "-z", &hosts.join(" ")]),
            command => {
                let words = command.split_whitespace();
                let words: Vec<String> = words.map(|word| word.replace("{agents}", &count)).collect();
                let for_each = words.iter().any(|word| word.contains("{host}"));
                if for_each && hosts.is_empty() {
                    return Err(NeedsHosts(how.to_owned()));
                }
                match for_each {
                    true => Self::Each {
                        words,
                        hosts: hosts.to_vec(),
                    },
                    false => Self::Once { words },
                }
            }
        })
    }

    /// The hosts, in the order of the agents' numbers. Empty if the launcher has no list of hosts.
    #[must_use]
    pub fn hosts(&self) -> &[String] {
        match self {
            Self::Ssh { hosts } | Self::Rsh { hosts } | Self::Each { hosts, .. } => hosts,
            Self::Local { .. } | Self::Once { .. } => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_get_number_and_hosts() {
        let hosts = ["n1", "n2"].map(str::to_owned);
        let once = |how, hosts: &[String]| match Launch::parse(how, 2, hosts).unwrap() {
            Launch::Once { words } => words.join(" "),
            other => panic!("{other:?}"),
        };
        assert!(once("srun", &[]).ends_with(" --ntasks-per-node=1 --nodes=2 --ntasks=2"));
        assert!(once("srun", &hosts).ends_with(" --ntasks=2 --nodelist=n[1-2]"));
        assert_eq!(once("mpiexec", &hosts), "mpiexec -n 2 -host n1,n2");
        assert_eq!(once("flux", &[]), "flux run -N 2 -n 2");
        assert_eq!(once("pbsdsh", &[]), "pbsdsh -u --");
        assert_eq!(once("blaunch", &[]), "blaunch");
        assert_eq!(once("blaunch", &hosts), "blaunch -z n1 n2");
        assert_eq!(once("aprun -n {agents} -N 1", &[]), "aprun -n 2 -N 1");
        let each = Launch::parse("rsh {host}", 2, &hosts).unwrap();
        assert_eq!(each.hosts(), hosts);
        assert_eq!(Launch::parse(RSH, 2, &hosts).unwrap().hosts(), hosts);
        for how in ["ssh", RSH, "rsh {host}"] {
            let error = Launch::parse(how, 2, &[]).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("--launch {how} needs names of hosts: --agents HOST,HOST")
            );
        }
    }

    /// The system takes no word of 128 KiB.
    #[test]
    fn ten_thousand_hosts_fit_into_a_word_of_srun() {
        let hosts: Vec<String> = (1..=10_000)
            .map(|n| format!("a-long-name-of-a-node-{n:05}"))
            .collect();
        let words = srun::words(10_000, &hosts);
        assert_eq!(
            words.last().unwrap(),
            "--nodelist=a-long-name-of-a-node-[00001-10000]"
        );
    }
}
