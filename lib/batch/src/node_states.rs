//! What Slurm says of nodes: which it is about to take out of service, so that it lets what runs there end,
//! and starts nothing more; and which it cannot reach.

/// Words in the states of nodes that drain.
const DRAINING: [&str; 2] = ["drain", "drng"];

/// Beginning of the states of nodes that are lost.
const LOST: &str = "down";

/// Mark at the end of the state of a node that does not answer. Slurm takes it out of its jobs if it is
/// silent for `SlurmdTimeout`.
const SILENT: char = '*';

/// Returns the command that asks Slurm for the states of nodes, which are not empty.
#[must_use]
pub fn query(nodes: &[String]) -> Vec<String> {
    let nodes = format!("--nodes={}", nodes.join(","));
    ["sinfo", "--noheader", "--Node", &nodes, "--format=%N|%T"]
        .map(str::to_owned)
        .into()
}

/// Returns the nodes that drain, from what the command of [`query`] has printed. A node of
/// several partitions is named once.
#[must_use]
pub fn draining(printed: &str) -> Vec<String> {
    let mut nodes: Vec<String> = Vec::new();
    for (node, state) in states(printed) {
        let drains = DRAINING.iter().any(|word| state.contains(word));
        if drains && !nodes.iter().any(|known| known == node) {
            nodes.push(node.to_owned());
        }
    }
    nodes
}

/// Returns whether Slurm cannot reach a node, or counts it as lost.
#[must_use]
pub fn is_unreachable(printed: &str, node: &str) -> bool {
    states(printed).any(|(name, state)| name == node && (state.ends_with(SILENT) || state.starts_with(LOST)))
}

/// Returns nodes and their states in small letters.
fn states(printed: &str) -> impl Iterator<Item = (&str, String)> {
    let lines = printed.lines().filter_map(|line| line.trim().split_once('|'));
    lines.map(|(node, state)| (node, state.to_ascii_lowercase()))
}

/// Returns whether two names are those of one host: Slurm may name it without its domain.
#[must_use]
pub fn is_same_host(a: &str, b: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    a == b || (short(a) == short(b) && !(a.contains('.') && b.contains('.')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_drain_are_found() {
        let printed =
            "n1|allocated\nn2|draining\nn2|draining\nn3|drained*\nn4|DRAINING@\nn5|mixed\nnonsense\n";
        assert_eq!(draining(printed), ["n2", "n3", "n4"]);
        assert!(draining("").is_empty());
        let nodes = ["n1".to_owned(), "n2".to_owned()];
        let words = query(&nodes).join(" ");
        assert_eq!(words, "sinfo --noheader --Node --nodes=n1,n2 --format=%N|%T");
    }

    #[test]
    fn nodes_that_do_not_answer_are_known() {
        let printed = "n1|allocated*\nn2|mixed\nn3|down\nn4|IDLE*\nn5|draining\nn6|failing\nnonsense*\n";
        let lost = ["n1", "n2", "n3", "n4", "n5", "n6", "n7", "nonsense"];
        let lost = lost.map(|node| is_unreachable(printed, node));
        assert_eq!(lost, [true, false, true, true, false, false, false, false]);
    }

    #[test]
    fn hosts_may_have_domains() {
        assert!(is_same_host("n1", "n1") && is_same_host("n1.site", "n1") && is_same_host("n1", "n1.site"));
        assert!(!is_same_host("n1", "n10") && !is_same_host("n1.a", "n1.b"));
    }
}
