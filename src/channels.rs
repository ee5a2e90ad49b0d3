//! What a worker needs to let processes of a gang run commands on its other hosts. Agents do that.

use std::fmt::Debug;
use std::path::Path;

use crate::protocol::{Assignment, GangToken};

/// What lets processes of a gang run commands on all of its hosts.
pub trait Channels: Debug + Send + Sync {
    /// From now on, processes with the token of the gang may do so. Their commands have this environment,
    /// each variable as `NAME=VALUE`, and this directory.
    fn open(&self, lead: &Assignment, environment: Vec<Vec<u8>>, directory: &Path);

    /// From now on, they may not. Their commands on this host are ended. Returns whether the network has cut
    /// a connection between hosts of the gang.
    fn close(&self, token: GangToken) -> bool;
}
