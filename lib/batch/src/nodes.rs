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

/// Returns the number of processes that the job has room for, as the batch system says it in the environment
/// and in its file of nodes.
pub fn slots_of_environment(
    variable: impl Fn(&str) -> Option<String>,
    read: impl Fn(&str) -> Option<String>,
) -> Option<u32> {
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    let per_node = || {
        let nodes = number("SLURM_JOB_NUM_NODES").or_else(|| number("SLURM_NNODES"))?;
        nodes.checked_mul(number("SLURM_NTASKS_PER_NODE")?)
    };
    let of_slurm = number("SLURM_NTASKS").or_else(per_node);
    if variable("SLURM_JOB_NODELIST").is_some() || of_slurm.is_some() {
        return of_slurm;
    }
    let lines = |text: String| text.split_whitespace().count();
    let pairs = |text: String| {
        let numbers = text.split_whitespace().skip(1).step_by(2);
        numbers.filter_map(|number| number.parse::<usize>().ok()).sum()
    };
    let file = FILES.iter().find_map(|name| read(&variable(name)?)).map(lines);
    let count: usize = file
        .or_else(|| variable("LSB_MCPU_HOSTS").map(pairs))
        .or_else(|| variable("LSB_HOSTS").map(lines))?;
    u32::try_from(count).ok().filter(|count| *count > 0)
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

    fn value(variables: &[(&str, &str)], name: &str) -> Option<String> {
        let found = variables.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| (*value).to_owned())
    }

    fn read(path: &str) -> Option<String> {
        (path == "/spool/nodes").then(|| "n1\nn1\nn2\n".to_owned())
    }

    fn nodes(variables: &[(&str, &str)]) -> Option<String> {
        let found = of_environment(|name| value(variables, name), read);
        found.map(|nodes| nodes.join(" "))
    }

    fn slots(variables: &[(&str, &str)]) -> Option<u32> {
        slots_of_environment(|name| value(variables, name), read)
    }

    #[test]
    fn a_process_knows_the_slots_of_its_batch_job() {
        let nodes = ("SLURM_JOB_NODELIST", "n[1-2]");
        assert_eq!(slots(&[]), None);
        assert_eq!(slots(&[nodes]), None);
        assert_eq!(slots(&[nodes, ("SLURM_NTASKS", "6")]), Some(6));
        let per_node = [
            nodes,
            ("SLURM_JOB_NUM_NODES", "3"),
            ("SLURM_NTASKS_PER_NODE", "4"),
        ];
        assert_eq!(slots(&per_node), Some(12));
        assert_eq!(slots(&[nodes, ("SLURM_NTASKS", "many")]), None);
        assert_eq!(slots(&[("PBS_NODEFILE", "/spool/nodes")]), Some(3));
        assert_eq!(slots(&[("LSB_MCPU_HOSTS", "n1 4 n2 6 ")]), Some(10));
        assert_eq!(slots(&[("LSB_HOSTS", "n1 n1 n2")]), Some(3));
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
