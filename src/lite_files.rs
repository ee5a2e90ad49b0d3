//! Files beside the DAG file that a job with a directory of its own reads and writes, as its description for
//! `pegasus-lite` names them.
//!
//! On a host that does not see the directory of the DAG file, the master sends what is read, and the worker
//! puts other paths into the description.

use serde_json::{Map, Value};

/// Key of a file with checksums: of one that is read beside the name of an input, else of one that is
/// written.
const CHECKSUMS: &str = "checksum_file";

/// Key of a script that sets variables.
const SCRIPT: &str = "env_source";

/// Key of the arguments of kickstart.
const KICKSTART: &str = "kickstart";

/// Options with lists of files, and how the names of the planner's lists end.
const LISTS: [(&str, &str); 2] = [("-S", ".in.lof"), ("-s", ".out.lof")];

/// Key of the name of an input.
const INPUT: &str = "lfn";

/// What becomes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileUse {
    /// Lists of files for kickstart, and checksums of inputs, which other jobs have written.
    Read,
    /// A script on the host of the master that sets variables.
    Script,
    /// Checksums of outputs, which the job writes.
    Written,
}

/// Calls `take` with all files of a description. It may change their paths.
pub(crate) fn each_file(description: &mut Value, take: &mut dyn FnMut(FileUse, &mut String)) {
    match description {
        Value::Object(entries) => each_in(entries, take),
        Value::Array(values) => values.iter_mut().for_each(|value| each_file(value, take)),
        _ => {}
    }
}

fn each_in(entries: &mut Map<String, Value>, take: &mut dyn FnMut(FileUse, &mut String)) {
    let is_input = entries.contains_key(INPUT);
    for (key, value) in entries {
        match (key.as_str(), value) {
            (CHECKSUMS, Value::String(path)) if !is_input => take(FileUse::Written, path),
            (CHECKSUMS, Value::String(path)) => take(FileUse::Read, path),
            (SCRIPT, Value::String(path)) => take(FileUse::Script, path),
            (KICKSTART, Value::Array(words)) => each_list(words, take),
            (_, value) => each_file(value, take),
        }
    }
}

/// Calls `take` with the lists of files among the arguments of kickstart, which come before the program.
fn each_list(words: &mut [Value], take: &mut dyn FnMut(FileUse, &mut String)) {
    for (option, suffix) in LISTS {
        let at = words.iter().position(|word| word == option);
        let Some(Value::String(word)) = at.and_then(|at| words.get_mut(at + 1)) else {
            continue;
        };
        let list = word.strip_prefix('@').filter(|list| list.ends_with(suffix));
        if let Some(mut path) = list.map(str::to_owned) {
            take(FileUse::Read, &mut path);
            *word = format!("@{path}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_at_every_depth() {
        let text = r#"{"job": "a", "env_source": "/s/env", "checksum_file": "/s/a.meta",
            "verify": [{"lfn": "x", "checksum_file": "/s/b.meta"}, {"lfn": "y", "sha256": "00"}],
            "jobs": [{"checksum_file": "/s/c.meta"}], "n": 1, "run": {"kickstart":
            ["-S", "@/s/x.in.lof", "-s", "a=a", "./a", "-s", "@/s/y.out.lof"], "program": ["checksum_file"]}}"#;
        let mut description: Value = serde_json::from_str(text).unwrap();
        let mut found = Vec::new();
        each_file(&mut description, &mut |what, path| {
            found.push((what, path.clone()));
            path.insert_str(0, "/new");
        });
        found.sort_by(|a, b| a.1.cmp(&b.1));
        let found: Vec<_> = found.iter().map(|(what, path)| (*what, path.as_str())).collect();
        let expected = [
            (FileUse::Written, "/s/a.meta"),
            (FileUse::Read, "/s/b.meta"),
            (FileUse::Written, "/s/c.meta"),
            (FileUse::Script, "/s/env"),
            (FileUse::Read, "/s/x.in.lof"),
        ];
        assert_eq!(found, expected);
        assert_eq!(description["verify"][0]["checksum_file"], "/new/s/b.meta");
        assert_eq!(description["run"]["kickstart"][1], "@/new/s/x.in.lof");
    }
}
