//! Failures of remote hosts. A host that fails several times in a row gets no work for the rest of the round.

use std::collections::HashMap;

use crate::error::{Retry, TransferError};

/// Failures in a row after which a host gets no more work in a round.
const MAX_FAILURES: u32 = 5;

/// Failures in a row, by protocol and host.
#[derive(Debug, Default)]
pub(super) struct Hosts(HashMap<String, u32>);

impl Hosts {
    /// Returns an error if one of the hosts has failed too often.
    pub(super) fn given_up(&self, hosts: &[String]) -> Option<TransferError> {
        hosts.iter().find_map(|host| {
            let failures = *self.0.get(host)?;
            (failures >= MAX_FAILURES).then(|| TransferError::HostGivenUp {
                host: host.clone(),
                failures,
            })
        })
    }

    /// Records an attempt. Only failures of the service count, not missing files.
    pub(super) fn record(&mut self, hosts: &[String], result: Result<(), &TransferError>) {
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

    /// Gives every host another chance after a wait. One more failure, and it is given up again.
    pub(super) fn forgive(&mut self) {
        for failures in self.0.values_mut() {
            *failures = (*failures).min(MAX_FAILURES - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_given_up_after_failures_in_a_row_and_gets_another_chance() {
        let host = ["https://h".to_owned()];
        let down = TransferError::remote("no", Retry::Later);
        let missing = TransferError::remote("404", Retry::Never);
        let mut hosts = Hosts::default();
        for _ in 0..4 {
            hosts.record(&host, Err(&down));
        }
        hosts.record(&host, Err(&missing));
        for _ in 0..MAX_FAILURES {
            assert!(hosts.given_up(&host).is_none());
            hosts.record(&host, Err(&down));
        }
        assert_eq!(
            hosts.given_up(&host).map(|error| error.to_string()),
            Some("not attempted: https://h failed 5 times in a row".to_owned())
        );
        assert!(hosts.given_up(&["https://other".to_owned()]).is_none());
        hosts.forgive();
        assert!(hosts.given_up(&host).is_none());
        hosts.record(&host, Err(&down));
        assert!(hosts.given_up(&host).is_some());
        hosts.record(&host, Ok(()));
        hosts.record(&host, Err(&down));
        assert!(hosts.given_up(&host).is_none());
    }
}
