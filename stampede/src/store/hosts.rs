//! Numbers of the hosts that were seen, so that the database is asked once for each.

use rustc_hash::FxHashMap;

use crate::rows::HostRow;

/// Hosts by what makes them unique: site, name and address.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    numbers: FxHashMap<String, i64>,
    /// The host asked for last.
    key: String,
}

impl Hosts {
    /// Number of a host that was seen.
    pub fn get(&mut self, row: &HostRow) -> Option<i64> {
        self.key.clear();
        for part in [&row.site, &row.hostname, &row.ip] {
            self.key.push_str(part);
            // No name has it.
            self.key.push('\0');
        }
        self.numbers.get(&self.key).copied()
    }

    /// Notes the number of the host asked for last.
    pub fn note(&mut self, number: i64) -> i64 {
        self.numbers.insert(self.key.clone(), number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_counts() {
        let host = |site: &str, hostname: &str, ip: &str| HostRow {
            site: site.to_owned(),
            hostname: hostname.to_owned(),
            ip: ip.to_owned(),
            ..HostRow::default()
        };
        let mut hosts = Hosts::default();
        assert_eq!(hosts.get(&host("s", "h", "1")), None);
        hosts.note(7);
        assert_eq!(hosts.get(&host("s", "h1", "")), None);
        hosts.note(8);
        assert_eq!(hosts.get(&host("s", "h", "1")), Some(7));
        assert_eq!(hosts.get(&host("s", "h1", "")), Some(8));
    }
}
