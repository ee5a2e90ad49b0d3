//! Nodes that Slurm is about to take out of service: it lets what runs there end, and starts nothing more.

/// Words in the states of such nodes.
const DRAINING: [&str; 2] = ["drain", "drng"];

/// Returns the command that asks Slurm for the states of nodes, which are not empty.
#[must_use]
pub fn node_states_query(nodes: &[String]) -> Vec<String> {
    let nodes = format!("--nodes={}", nodes.join(","));
    ["sinfo", "--noheader", "--Node", &nodes, "--format=%N|%T"]
        .map(str::to_owned)
        .into()
}

/// Returns the nodes that drain, from what the command of [`node_states_query`] has printed. A node of
/// several partitions is named once.
#[must_use]
pub fn draining(printed: &str) -> Vec<String> {
    let mut nodes: Vec<String> = Vec::new();
    for line in printed.lines() {
        let Some((node, state)) = line.trim().split_once('|') else {
            continue;
        };
        let state = state.to_ascii_lowercase();
        let drains = DRAINING.iter().any(|word| state.contains(word));
        if drains && !nodes.iter().any(|known| known == node) {
            nodes.push(node.to_owned());
        }
    }
    nodes
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
        let words = node_states_query(&nodes).join(" ");
        assert_eq!(words, "sinfo --noheader --Node --nodes=n1,n2 --format=%N|%T");
    }

    #[test]
    fn hosts_may_have_domains() {
        assert!(is_same_host("n1", "n1") && is_same_host("n1.site", "n1") && is_same_host("n1", "n1.site"));
        assert!(!is_same_host("n1", "n10") && !is_same_host("n1.a", "n1.b"));
    }
}
