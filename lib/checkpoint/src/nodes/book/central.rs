//! Where copies of files go: `TCS_CENTRALCHKDIR`.

use std::collections::BTreeMap;

use super::NodeId;
use crate::{ComplexPath, Hosts};

/// The choice of the user or the site, and the names of nodes.
#[derive(Debug, Default)]
pub(super) struct Central {
    chosen: Option<ComplexPath>,
    hosts: BTreeMap<NodeId, String>,
}

impl Central {
    /// Returns whether copies lie only in the store beside the DAG file.
    pub(super) fn is_store(&self) -> bool {
        let chosen = self.chosen.as_ref();
        chosen.is_some_and(|chosen| chosen.hosts == Hosts::Shared)
    }

    /// Returns how late a node comes among those to which copies of the files of another one go. All are the
    /// same if there is no list; those that are not on it come last.
    pub(super) fn lateness(&self, of: NodeId) -> impl Fn(NodeId) -> usize {
        let listed = self.chosen.as_ref().zip(self.hosts.get(&of));
        let order = listed.map_or_else(Vec::new, |(chosen, host)| chosen.order(host));
        move |node| {
            let host = self.hosts.get(&node).map(String::as_str);
            let place = order.iter().position(|listed| Some(*listed) == host);
            place.unwrap_or(order.len())
        }
    }
}

impl super::Book {
    /// Notes where copies go.
    pub fn set_central(&mut self, central: Option<ComplexPath>) {
        self.central.chosen = central;
    }

    /// Notes the name of a node.
    pub fn note_host(&mut self, node: NodeId, host: String) {
        self.central.hosts.insert(node, host);
    }
}
