//! Batch schedulers: names, script suffixes, and commands that submit and cancel.

use std::fmt;
use std::path::PathBuf;

/// A batch scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheduler {
    /// Torque, and PBS in its old resource syntax (`nodes=…:ppn=…`).
    Torque,
    /// Slurm.
    Slurm,
    /// PBS Professional and OpenPBS (`select=…`).
    PbsPro,
    /// IBM Spectrum LSF.
    Lsf,
    /// Flux.
    Flux,
    /// Cobalt.
    Cobalt,
}

/// A batch script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Its scheduler.
    pub scheduler: Scheduler,
    /// Its path.
    pub path: PathBuf,
}

impl Scheduler {
    /// All of them.
    pub const ALL: [Scheduler; 6] = [
        Scheduler::Torque,
        Scheduler::Slurm,
        Scheduler::PbsPro,
        Scheduler::Lsf,
        Scheduler::Flux,
        Scheduler::Cobalt,
    ];

    /// Returns the name in options and properties.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scheduler::Torque => "torque",
            Scheduler::Slurm => "slurm",
            Scheduler::PbsPro => "pbspro",
            Scheduler::Lsf => "lsf",
            Scheduler::Flux => "flux",
            Scheduler::Cobalt => "cobalt",
        }
    }

    /// The scheduler with a name, in any case. `pbs` and `openpbs` stand for PBS Professional.
    #[must_use]
    pub fn parse(name: &str) -> Option<Scheduler> {
        let name = name.trim().to_ascii_lowercase();
        match name.as_str() {
            "pbs" | "openpbs" => Some(Scheduler::PbsPro),
            _ => Scheduler::ALL.into_iter().find(|s| s.name() == name),
        }
    }

    /// Returns the message about an unknown scheduler.
    #[must_use]
    pub fn unknown(name: &str) -> String {
        let names = Scheduler::ALL.map(Scheduler::name).join(", ");
        format!("there is no scheduler {}; known are {names}", name.trim())
    }

    /// Suffix of its script. Torque and PBS Professional share one: a plan has one of the two.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        match self {
            Scheduler::Torque | Scheduler::PbsPro => "pbs",
            Scheduler::Slurm => "sbatch",
            Scheduler::Lsf => "lsf",
            Scheduler::Flux => "flux",
            Scheduler::Cobalt => "cobalt",
        }
    }

    /// The words before the name of the script in the command that submits it.
    #[must_use]
    pub fn submit_words(self) -> &'static [&'static str] {
        match self {
            Scheduler::Torque | Scheduler::PbsPro => &["qsub"],
            Scheduler::Slurm => &["sbatch"],
            Scheduler::Lsf => &["bsub", "<"],
            Scheduler::Flux => &["flux", "batch"],
            Scheduler::Cobalt => &["qsub", "--mode", "script"],
        }
    }

    /// Returns the words before the name of the script in the command that submits it as a job that begins
    /// when the job `id` has ended, however.
    #[must_use]
    pub fn submit_after_words(self, id: &str) -> Vec<String> {
        let words: &[&str] = match self {
            Scheduler::Torque | Scheduler::PbsPro => &["qsub", "-W", &format!("depend=afterany:{id}")],
            Scheduler::Slurm => &[
                "sbatch",
                "--parsable",
                "--no-requeue",
                &format!("--dependency=afterany:{id}"),
            ],
            Scheduler::Lsf => &["bsub", "-w", &format!("ended({id})"), "<"],
            Scheduler::Flux => &[
                "flux",
                "--parent",
                "batch",
                &format!("--dependency=afterany:{id}"),
            ],
            Scheduler::Cobalt => &["qsub", "--mode", "script", "--dependencies", id],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// Returns the words before the number of a job in the command that cancels it.
    #[must_use]
    pub fn cancel_words(self) -> &'static [&'static str] {
        match self {
            Scheduler::Torque | Scheduler::PbsPro | Scheduler::Cobalt => &["qdel"],
            Scheduler::Slurm => &["scancel"],
            Scheduler::Lsf => &["bkill"],
            Scheduler::Flux => &["flux", "cancel"],
        }
    }

    /// Returns the value of the executor's option `--launch` by which it starts agents in a job.
    #[must_use]
    pub fn agent_launcher(self) -> &'static str {
        match self {
            Scheduler::Slurm => "srun",
            Scheduler::Torque | Scheduler::PbsPro => "pbsdsh",
            Scheduler::Lsf => "blaunch",
            Scheduler::Flux => "flux",
            Scheduler::Cobalt => "mpiexec",
        }
    }

    /// The command that submits a script, for people; `script` is quoted for a shell.
    #[must_use]
    pub fn submit_command(self, script: &str) -> String {
        format!("{} {script}", self.submit_words().join(" "))
    }

    /// The job's identifier in what the submit command has printed.
    #[must_use]
    pub fn job_id(self, printed: &str) -> Option<&str> {
        let last = printed.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        match self {
            // `Submitted batch job 12 on cluster c`, or `12;c` with --parsable.
            Scheduler::Slurm => last
                .strip_prefix("Submitted batch job ")
                .unwrap_or(last)
                .split([' ', ';'])
                .next(),
            // `Job <12> is submitted to queue <q>.`, after which there may be other lines.
            Scheduler::Lsf => printed
                .split_once("Job <")
                .and_then(|(_, rest)| rest.split('>').next()),
            _ => last.split_whitespace().next_back(),
        }
        .filter(|id| !id.is_empty())
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for scheduler in Scheduler::ALL {
            assert_eq!(
                Scheduler::parse(&scheduler.name().to_uppercase()),
                Some(scheduler)
            );
        }
        assert_eq!(Scheduler::parse(" OpenPBS"), Some(Scheduler::PbsPro));
        assert_eq!(Scheduler::parse("sge"), None);
    }

    #[test]
    fn the_next_job_waits_for_the_end_of_this_one() {
        let line = |scheduler: Scheduler| scheduler.submit_after_words("17").join(" ");
        assert_eq!(
            line(Scheduler::Slurm),
            "sbatch --parsable --no-requeue --dependency=afterany:17"
        );
        assert_eq!(line(Scheduler::PbsPro), "qsub -W depend=afterany:17");
        assert_eq!(line(Scheduler::Lsf), "bsub -w ended(17) <");
        assert_eq!(
            line(Scheduler::Flux),
            "flux --parent batch --dependency=afterany:17"
        );
        for scheduler in Scheduler::ALL {
            let words = scheduler.submit_after_words("17");
            assert_eq!(words[0], scheduler.submit_words()[0]);
        }
    }

    #[test]
    fn job_ids() {
        for (scheduler, printed, id) in [
            (Scheduler::Slurm, "42\n", Some("42")),
            (Scheduler::Slurm, "42;west\n", Some("42")),
            (
                Scheduler::Slurm,
                "Submitted batch job 42 on cluster w\n",
                Some("42"),
            ),
            (
                Scheduler::Torque,
                "17.server.example\n",
                Some("17.server.example"),
            ),
            (
                Scheduler::Lsf,
                "Group set\nJob <9> is submitted to default queue <normal>.\n",
                Some("9"),
            ),
            (Scheduler::Lsf, "Request aborted by esub.\n", None),
            (Scheduler::Flux, "ƒ3ETxsR9H\n", Some("ƒ3ETxsR9H")),
            (
                Scheduler::Cobalt,
                "Job routed to queue \"q\".\n\n311\n",
                Some("311"),
            ),
            (Scheduler::PbsPro, "\n", None),
        ] {
            assert_eq!(scheduler.job_id(printed), id, "{scheduler}: {printed}");
        }
    }
}
