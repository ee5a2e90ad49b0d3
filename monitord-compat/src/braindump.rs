//! `braindump.yml`, by which the monitoring tools find all other files of a run.
//!
//! It is a YAML mapping: one double-quoted text per line, `null` for an absent value. The reader of Pegasus
//! is a Python class with a fixed set of fields, which fails on any other key.

use std::fmt::Write as _;

/// Keys that the reader of Pegasus 5.1 accepts, in their order.
pub const KEYS: &[&str] = &[
    "user",
    "grid_dn",
    "submit_hostname",
    "root_wf_uuid",
    "wf_uuid",
    "dax",
    "dax_label",
    "dax_index",
    "dax_version",
    "pegasus_wf_name",
    "timestamp",
    "basedir",
    "submit_dir",
    "planner",
    "planner_version",
    "pegasus_build",
    "planner_arguments",
    "jsd",
    "rundir",
    "bindir",
    "vogroup",
    "uses_pmc",
    "properties",
    "condor_log",
    "notify",
    "dag",
    "type",
    "script",
    "app",
];

/// Returns the text for entries, in their order. Keys outside [`KEYS`] are left out.
pub fn write(entries: &[(String, Option<String>)]) -> String {
    let mut out = String::new();
    for (key, value) in entries.iter().filter(|(key, _)| KEYS.contains(&key.as_str())) {
        // Writing into a String cannot fail.
        match value {
            None => {
                let _ = writeln!(out, "{key}: null");
            }
            Some(value) => {
                let _ = write!(out, "{key}: \"");
                for c in value.chars() {
                    match c {
                        '"' => out.push_str("\\\""),
                        '\\' => out.push_str("\\\\"),
                        '\n' => out.push_str("\\n"),
                        '\t' => out.push_str("\\t"),
                        c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                            let _ = write!(out, "\\u{:04x}", u32::from(c));
                        }
                        c => out.push(c),
                    }
                }
                out.push_str("\"\n");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn unknown_keys_are_left_out() {
        let entries = [
            ("user".to_owned(), Some("tester".to_owned())),
            ("grid_dn".to_owned(), None),
            (
                "planner_arguments".to_owned(),
                Some("\"--conf p w.yml \"".to_owned()),
            ),
            ("unknown".to_owned(), Some("x".to_owned())),
        ];
        assert_eq!(
            write(&entries),
            "user: \"tester\"\ngrid_dn: null\nplanner_arguments: \"\\\"--conf p w.yml \\\"\"\n"
        );
    }

    proptest! {
        #[test]
        fn any_value_reads_back(value in any::<String>()) {
            let text = write(&[("dax".to_owned(), Some(value.clone()))]);
            let read: BTreeMap<String, String> =
                serde_saphyr::from_str(&text).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(read.get("dax"), Some(&value));
        }
    }
}
