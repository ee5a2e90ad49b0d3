//! Environment variables of a job.

use crate::profiles::Namespace;

use super::plan::PlannedJob;

/// Variables that jobs in containers set for their programs only.
const INSIDE: [&str; 4] = ["HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH"];

/// Environment variables of a job. They are set for kickstart, too, which reads some of them itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    /// Variables that are removed.
    pub(crate) unset: &'static [&'static str],
    /// Names and values.
    pub(crate) set: Vec<(String, String)>,
    /// Path of a script that sets the secrets among the variables and runs its arguments.
    pub(crate) script: Option<String>,
}

impl Environment {
    /// Returns the variables of a job. What is meant for the program in a container stays away from the
    /// programs outside.
    pub(super) fn of(job: PlannedJob<'_>) -> Self {
        let (secrets, container) = (&job.plan.secrets, job.setup.container.as_ref());
        let is_inside = |key: &str| {
            container.is_some_and(|container| {
                INSIDE.contains(&key) || container.profiles.get(Namespace::Env, key).is_some()
            })
        };
        let variables = job.profiles().of(Namespace::Env);
        let variables = variables.filter(|(key, _)| !secrets.has(key) && !is_inside(key));
        Environment {
            unset: &[],
            set: variables
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            script: secrets.path(job.setup_id()),
        }
    }
}
