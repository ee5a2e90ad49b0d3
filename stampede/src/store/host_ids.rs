//! Ids of the known hosts, so that the database is asked once per host.

use rustc_hash::FxHashMap;

use crate::rows::HostRow;

/// Ids of hosts by site, name and address, which make a host unique.
#[derive(Debug, Default)]
pub(super) struct HostIds {
    ids: FxHashMap<String, i64>,
    /// Key of the last [`HostIds::get`].
    key: String,
}

impl HostIds {
    /// Returns the id of a known host.
    pub fn get(&mut self, row: &HostRow) -> Option<i64> {
        self.key.clear();
        for part in [&row.site, &row.hostname, &row.ip] {
            self.key.push_str(part);
            // No name contains it.
            self.key.push('\0');
        }
        self.ids.get(&self.key).copied()
    }

    /// Stores and returns the id of the host of the last [`HostIds::get`].
    pub fn insert(&mut self, id: i64) -> i64 {
        self.ids.insert(self.key.clone(), id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_the_key_counts() {
        let host = |site: &str, hostname: &str, ip: &str| HostRow {
            site: site.to_owned(),
            hostname: hostname.to_owned(),
            ip: ip.to_owned(),
            ..HostRow::default()
        };
        let mut hosts = HostIds::default();
        assert_eq!(hosts.get(&host("s", "h", "1")), None);
        hosts.insert(7);
        assert_eq!(hosts.get(&host("s", "h1", "")), None);
        hosts.insert(8);
        assert_eq!(hosts.get(&host("s", "h", "1")), Some(7));
        assert_eq!(hosts.get(&host("s", "h1", "")), Some(8));
    }
}
