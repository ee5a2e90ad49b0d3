//! How the remote hosts of a run are doing: one that fails again and again is left alone for a while.

use std::collections::HashMap;

use crate::error::{Retry, TransferError};

/// Failures in a row after which a host gets no more work in a round.
const LIMIT: u32 = 5;

/// Failures in a row, by protocol and host.
#[derive(Debug, Default)]
pub(super) struct Hosts(HashMap<String, u32>);

impl Hosts {
    /// The failure of an entry that is not attempted because one of its hosts is given up.
    pub(super) fn given_up(&self, hosts: &[String]) -> Option<TransferError> {
        hosts.iter().find_map(|host| {
            let failures = *self.0.get(host)?;
            (failures >= LIMIT).then(|| TransferError::HostGivenUp {
                host: host.clone(),
                failures,
            })
        })
    }

    /// Takes note of an attempt. Only failures of the service itself count, not missing files.
    pub(super) fn note(&mut self, hosts: &[String], result: Result<(), &TransferError>) {
        for host in hosts {
            match result {
                Err(error) if error.retry() == Retry::Later => {
                    let failures = self.0.entry(host.clone()).or_insert(0);
                    *failures = failures.saturating_add(1);
                }
                _ => {
                    self.0.remove(host);
                }
            }
        }
    }

    /// After a wait every host gets another chance: one more failure, and it is given up again.
    pub(super) fn forgive(&mut self) {
        for failures in self.0.values_mut() {
            *failures = (*failures).min(LIMIT - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_given_up_after_failures_in_a_row_and_gets_another_chance() {
        let host = ["https://h".to_owned()];
        let down = TransferError::remote("no", Retry::Later);
        let missing = TransferError::remote("404", Retry::Never);
        let mut hosts = Hosts::default();
        for _ in 0..4 {
            hosts.note(&host, Err(&down));
        }
        hosts.note(&host, Err(&missing));
        for _ in 0..LIMIT {
            assert!(hosts.given_up(&host).is_none());
            hosts.note(&host, Err(&down));
        }
        assert_eq!(
            hosts.given_up(&host).map(|error| error.to_string()),
            Some("not attempted: https://h failed 5 times in a row".to_owned())
        );
        assert!(hosts.given_up(&["https://other".to_owned()]).is_none());
        hosts.forgive();
        assert!(hosts.given_up(&host).is_none());
        hosts.note(&host, Err(&down));
        assert!(hosts.given_up(&host).is_some());
        hosts.note(&host, Ok(()));
        hosts.note(&host, Err(&down));
        assert!(hosts.given_up(&host).is_none());
    }
}
