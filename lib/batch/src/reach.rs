//! Commands that run something on a host of a running job, given on a login node.

use pmc_calls::shell::always_quoted;

use crate::job::BatchJob;
use crate::launch::srun;
use crate::scheduler::Scheduler;

/// Returns the words before the line that a shell of another host runs. It asks for no password, and a host
/// that is off does not hold up its message for minutes.
#[must_use]
pub fn ssh_words(host: &str) -> Vec<String> {
    let words = [
        "ssh",
        "-o",
        "BatchMode=yes",
        "-o",
        "ConnectTimeout=30",
        "--",
        host,
    ];
    words.map(str::to_owned).into()
}

/// Returns the words that run a command on a host: inside its batch job, if the batch system starts processes
/// there for somebody outside of the job (Slurm), else by ssh, which batch systems allow the owner of a job
/// on its nodes. Standard streams and the exit status are those of the command. Its paths must be absolute,
/// since ssh begins in the home directory.
///
/// Variables that are options of `srun` should be unset, see [`srun::is_option`].
#[must_use]
pub fn command_on_host(job: Option<&BatchJob>, host: &str, command: &[String]) -> Vec<String> {
    let in_slurm = job.filter(|job| job.scheduler == Scheduler::Slurm && is_one_node(host));
    match in_slurm {
        Some(job) => {
            let mut words = srun::words(1, &[host.to_owned()]);
            words.push(format!("--jobid={}", job.id));
            // Bytes arrive as they are written, and nothing but those of the command.
            words.extend(["--unbuffered", "--quiet", "--"].map(str::to_owned));
            words.extend_from_slice(command);
            words
        }
        None => {
            let mut words = ssh_words(host);
            // No agent, display or ticket of this user goes to the host, which root has from another user.
            words.insert(1, "-akx".to_owned());
            let line: Vec<String> = command.iter().map(|word| always_quoted(word)).collect();
            words.push(format!("exec {}", line.join(" ")));
            words
        }
    }
}

/// Slurm takes a word with a slash for a file of names, and one with commas or brackets for several nodes.
fn is_one_node(host: &str) -> bool {
    pmc_hosts::is_name(host) && !host.contains(['/', ',', '[', ']'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(job: Option<&BatchJob>, host: &str) -> String {
        let command = ["/opt/pmc", "why", "it's"].map(str::to_owned);
        command_on_host(job, host, &command).join(" ")
    }

    #[test]
    fn a_host_of_a_slurm_job_is_reached_inside_the_job() {
        let job = BatchJob::new(Scheduler::Slurm, "17").unwrap();
        let line = line(Some(&job), "n1");
        assert!(line.starts_with("srun --overlap "), "{line}");
        let end = " --nodes=1 --ntasks=1 --nodelist=n1 --jobid=17 --unbuffered --quiet -- /opt/pmc why it's";
        assert!(line.ends_with(end), "{line}");
    }

    #[test]
    fn other_hosts_are_reached_by_ssh() {
        let end = "ConnectTimeout=30 -- n1 exec '/opt/pmc' 'why' 'it'\\''s'";
        for scheduler in Scheduler::ALL
            .into_iter()
            .filter(|other| *other != Scheduler::Slurm)
        {
            let job = BatchJob::new(scheduler, "17").unwrap();
            let line = line(Some(&job), "n1");
            assert!(
                line.starts_with("ssh -akx ") && line.ends_with(end),
                "{scheduler}: {line}"
            );
        }
        assert!(line(None, "n1").ends_with(end));
    }

    #[test]
    fn a_host_that_srun_would_take_for_a_file_goes_to_ssh() {
        let job = BatchJob::new(Scheduler::Slurm, "17").unwrap();
        for odd in ["/etc/passwd", "n[1-9]", "n1,n2", ""] {
            assert!(line(Some(&job), odd).starts_with("ssh "), "{odd}");
        }
    }
}
