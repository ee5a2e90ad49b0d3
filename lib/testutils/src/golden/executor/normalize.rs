//! Replaces what differs from run to run: times, process ids, hosts, directories.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use regex::{Captures, Regex};
use sha2::{Digest as _, Sha256};

use super::super::text::{host_name, regex};
use super::config::Resource;

/// Larger files are compared by their checksums.
const MAX_SHOWN_BYTES: usize = 64 * 1024;

pub struct Normalizer {
    directory: String,
    resource: Resource,
    host: String,
    on_host: Regex,
    /// The process ids of masters, from the summaries that they print.
    pids: BTreeSet<String>,
}

impl Normalizer {
    pub fn new(directory: &Path, resource: Resource) -> Self {
        let host = host_name();
        Self {
            directory: directory.display().to_string(),
            resource,
            on_host: Regex::new(&format!(r"( host: name=| on host ){}\b", regex::escape(&host)))
                .expect("a regular expression"),
            host,
            pids: BTreeSet::new(),
        }
    }

    fn paths(&self, text: &str) -> String {
        text.replace(&self.directory, "<WORK>")
    }

    /// Normalizes the records of tasks and the summaries.
    pub fn records(&mut self, text: &str) -> String {
        let text = self.paths(text);
        // Variables of tasks that the original does not have.
        let text = regex!(r"(?m)^PMC_(?:NODE|TOKENS)=.*\n").replace_all(&text, "");
        let text = regex!(r"\[cluster-task [^\n]*\]").replace_all(&text, |found: &Captures| {
            record_times(&found[0]).replace(&format!("hostname=\"{}\"", self.host), "hostname=\"<HOST>\"")
        });
        let pids = &mut self.pids;
        let text = regex!(r"\[cluster-summary [^\n]*\]").replace_all(&text, |found: &Captures| {
            let record = record_times(&found[0]);
            let record = regex!(r#" app="[^"]*""#).replace_all(&record, " app=\"<PMC>\"");
            if let Some(pid) = regex!(r" pid=(\d+),").captures(&record) {
                pids.insert(pid[1].to_owned());
            }
            regex!(r" pid=\d+,")
                .replace_all(&record, " pid=<PID>,")
                .into_owned()
        });
        text.into_owned()
    }

    pub fn stderr(&mut self, text: &str) -> String {
        let text = self.records(text);
        let lines = text.split('\n').map(|line| {
            let line = regex!(r"^Usage: \S+ \[options\]").replace(line, "Usage: <PMC> [options]");
            let line = regex!(r"^Version: \S+$").replace(&line, "Version: <V>");
            let position = regex!(r"^ABORT: (?:[\w./-]+\.(?:cpp|c|rs)[(:]\d+\)?: )?");
            let line = position.replace(&line, "ABORT: ").into_owned();
            if !is_log_line(&line) || line.contains("hit rate") || line.contains("max walltime") {
                return line;
            }
            let line = regex!(r"(?:-?\d+\.\d{6}|-?inf|-?nan)\b").replace_all(&line, "<F>");
            let bytes = regex!(r"^(\[info\] Bytes (?:sent to|received from) workers): \d+$");
            let line = bytes.replace(&line, "$1: <N>");
            let open_files = regex!(r"^(\[error\] Number of open files): \d+,");
            let line = open_files.replace(&line, "$1: <N>,");
            self.on_host.replace_all(&line, "$1<HOST>").into_owned()
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Normalizes the content of a file of the working directory.
    pub fn file(&mut self, path: &str, content: &[u8]) -> String {
        if content.len() > MAX_SHOWN_BYTES {
            let sum = Sha256::digest(content)
                .iter()
                .fold(String::new(), |mut sum, byte| {
                    let _ = write!(sum, "{byte:02x}");
                    sum
                });
            return format!("<{} bytes, sha256 {sum}>\n", content.len());
        }
        let text = String::from_utf8_lossy(content);
        let name = path.rsplit('/').next().unwrap_or(path);
        if name.ends_with(".dagman.out") {
            self.dagman_out(&text)
        } else if name == "jobstate.log" {
            let time = regex!(r"(?m)^\d{9,11}\.\d{6} ");
            time.replace_all(&self.paths(&text), "<TS> ").into_owned()
        } else if name.ends_with(".resource") {
            self.resource_log(&text)
        } else {
            self.records(&text)
        }
    }

    fn dagman_out(&self, text: &str) -> String {
        let text = self.paths(text);
        let pid = |found: &Captures| {
            let known = self.pids.is_empty() || self.pids.contains(&found[2]);
            let pid = if known {
                "<PID>"
            } else {
                "<PID that is in no summary>"
            };
            format!("{}{pid}{}", &found[1], found.get(3).map_or("", |m| m.as_str()))
        };
        let lines = text.split('\n').map(|line| {
            let line = regex!(r"^\d\d/\d\d/\d\d \d\d:\d\d:\d\d ").replace(line, "<TS> ");
            let line = regex!(r"(\*\* PID = )(\d+)$").replace(&line, pid);
            regex!(r"( pid )(\d+)( EXITING)")
                .replace_all(&line, pid)
                .into_owned()
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Shows each line of the resource log as the difference from the first one of the host.
    fn resource_log(&self, text: &str) -> String {
        let mut first: BTreeMap<String, [i64; 3]> = BTreeMap::new();
        let mut latest = 0.0;
        let mut result = Vec::new();
        for line in text.split('\n') {
            let Some(fields) = regex!(r"^(\d{9,11}\.\d{6}),(\d+),(\d+),(\d+),(.*)$").captures(line) else {
                result.push(line.to_owned());
                continue;
            };
            let time: f64 = fields[1].parse().expect("a time");
            if time < latest {
                result.push("<timestamp goes backwards>".to_owned());
            }
            latest = time;
            let values = [2, 3, 4].map(|i| fields[i].parse::<i64>().expect("a number"));
            let shown = if fields[5] == self.host {
                "<HOST>"
            } else {
                &fields[5]
            };
            let [slots, cpus, memory] = values;
            if let Some(start) = first.get(&fields[5]) {
                let [a, b, c] = [0, 1, 2].map(|i| values[i] - start[i]);
                result.push(format!("<TS>,{a:+},{b:+},{c:+},{shown}"));
            } else {
                first.insert(fields[5].to_owned(), values);
                result.push(match self.resource {
                    Resource::Absolute => format!("<TS>,slots={slots},cpus={cpus},mem={memory},{shown}"),
                    Resource::Relative => format!("<TS>,slots={slots},cpus=ALL,mem=ALL,{shown}"),
                });
            }
        }
        result.join("\n")
    }
}

/// Returns whether a line comes from the executor's log.
pub fn is_log_line(line: &str) -> bool {
    regex!(r"^\[(fatal|error|warn|info|debug|trace)\] ").is_match(line)
}

fn record_times(record: &str) -> String {
    let start = regex!(r#" start="\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}([+-]\d\d:\d\d)""#);
    let record = start.replace_all(record, " start=\"<ISO$1>\"");
    let duration = regex!(r" (duration|runtime)=\d+\.\d{3},");
    duration.replace_all(&record, " $1=<DUR>,").into_owned()
}

/// Removes the remarks of MPI launchers from standard error.
pub fn remove_launcher_remarks(text: &str) -> String {
    let is_border = |line: &str| regex!(r"^-{60,}$").is_match(line);
    let version = regex!(r"^(Compiled|Compiler|MPI|OpenMPI|MPICH2?|MVAPICH2|Build|Rustc|Target): ");
    let lines: Vec<&str> = text.split('\n').collect();
    let mut kept = Vec::new();
    let mut i = 0;
    while i < lines.len() {
        if is_border(lines[i])
            && let Some(length) = lines[i + 1..].iter().position(|line| is_border(line))
        {
            let boxed = &lines[i + 1..i + 1 + length];
            let of_launcher = boxed.iter().any(|line| {
                is_launcher_remark(line)
                    || ["mpirun", "MPI", "exit code"]
                        .iter()
                        .any(|word| line.contains(word))
            });
            if of_launcher {
                let own = boxed
                    .iter()
                    .filter(|line| is_log_line(line) || line.starts_with("ABORT: "));
                kept.extend(own);
                i += length + 2;
                continue;
            }
        }
        if !is_launcher_remark(lines[i]) && !version.is_match(lines[i]) {
            kept.push(lines[i]);
        }
        i += 1;
    }
    kept.join("\n")
}

fn is_launcher_remark(line: &str) -> bool {
    regex!(concat!(
        r"^(\[[^\]\s]+:\d+\] ", // [host:pid]
        r"|(mpirun|mpiexec|prterun|hydra|prte)\b",
        r"|Primary job  terminated normally",
        r"|a non-zero exit code\. Per user-direction",
        r"|MPI_ABORT was invoked on rank",
        r"|with errorcode ",
        r"|NOTE: invoking MPI_ABORT",
        r"|You may or may not see output from other processes",
        r"|exactly when Open MPI kills them",
        r"|In: PMI_Abort",
        r"|application called MPI_Abort",
        r"|=+ +BAD TERMINATION",
        r"|=+$",
        r"|=   (PID|RANK|KILLED|EXIT|CLEANING|YOUR)",
        r"|WARNING: .*(btl|openib|ibv|OpenFabrics))",
    ))
    .is_match(line)
}
