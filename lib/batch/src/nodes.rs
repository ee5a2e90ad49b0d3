//! The nodes of the batch job in which a process runs.

/// Maximum nodes of a job.
pub(crate) const MAX_NODES: usize = 100_000;

/// Variables with the path of a file that has a node in each line: LSF, PBS and Torque, Cobalt. A node may be
/// there once for each of its processors.
const FILES: [&str; 3] = ["LSB_DJOB_HOSTFILE", "PBS_NODEFILE", "COBALT_NODEFILE"];

/// Returns the nodes of the job of a process with this environment, the first one first. `read` reads a file
/// with the list of nodes. Flux says nothing in the environment.
pub fn of_environment(
    variable: impl Fn(&str) -> Option<String>,
    read: impl Fn(&str) -> Option<String>,
) -> Option<Vec<String>> {
    if let Some(list) = variable("SLURM_JOB_NODELIST").or_else(|| variable("SLURM_NODELIST")) {
        return pmc_hosts::expand(&list, MAX_NODES).ok();
    }
    let file = FILES.iter().find_map(|name| read(&variable(name)?));
    let nodes = match (file, variable("LSB_MCPU_HOSTS")) {
        (Some(text), _) => different(text.split_whitespace()),
        // Each name comes with a number of slots.
        (None, Some(pairs)) => different(pairs.split_whitespace().step_by(2)),
        (None, None) => different(variable("LSB_HOSTS")?.split_whitespace()),
    };
    Some(nodes).filter(|nodes| !nodes.is_empty())
}

/// Returns different names in their order.
pub(crate) fn different<'t>(names: impl Iterator<Item = &'t str>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    names
        .filter(|name| pmc_hosts::is_name(name) && seen.insert(*name))
        .take(MAX_NODES)
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(variables: &[(&str, &str)]) -> Option<String> {
        let value = |name: &str| variables.iter().find(|(other, _)| *other == name);
        let variable = |name: &str| value(name).map(|(_, value)| (*value).to_owned());
        let read = |path: &str| (path == "/spool/nodes").then(|| "n1\nn1\nn2\n".to_owned());
        of_environment(variable, read).map(|nodes| nodes.join(" "))
    }

    #[test]
    fn a_process_knows_the_nodes_of_its_batch_job() {
        assert_eq!(nodes(&[]), None);
        let slurm = [
            ("SLURM_JOB_NODELIST", "n[1-2],x"),
            ("PBS_NODEFILE", "/spool/nodes"),
        ];
        assert_eq!(nodes(&slurm).as_deref(), Some("n1 n2 x"));
        assert_eq!(
            nodes(&[("PBS_NODEFILE", "/spool/nodes")]).as_deref(),
            Some("n1 n2")
        );
        assert_eq!(
            nodes(&[("COBALT_NODEFILE", "/spool/nodes")]).as_deref(),
            Some("n1 n2")
        );
        let lsf = [("LSB_DJOB_HOSTFILE", "/gone"), ("LSB_MCPU_HOSTS", "n1 4 n2 6 ")];
        assert_eq!(nodes(&lsf).as_deref(), Some("n1 n2"));
        assert_eq!(nodes(&[("LSB_HOSTS", "n1 n1 n2")]).as_deref(), Some("n1 n2"));
        assert_eq!(nodes(&[("SLURM_JOB_NODELIST", "n[1-")]), None);
    }
}
