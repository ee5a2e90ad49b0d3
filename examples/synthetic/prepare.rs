//! Writes the other inputs of a planner, and checks the outputs of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::content::Digest;
use crate::{TABLE_VARIABLE, dax, table};

/// Name of the table of jobs in the prepared directory.
const TABLE: &str = "jobs.txt";
/// List of the outputs that the workflow keeps: size in bytes, name.
const OUTPUTS: &str = "outputs.txt";

/// Scale factors.
#[derive(Clone, Copy)]
pub struct Factors {
    /// Factor for sizes.
    pub size: f64,
    /// Factor for run times.
    pub time: f64,
}

/// Returns `size` times the factor. A non-empty file stays non-empty.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes of files are far below 2^52, the factor is checked to be positive"
)]
fn scaled(size: u64, factor: f64) -> u64 {
    if size == 0 {
        0
    } else {
        ((size as f64 * factor).round() as u64).max(1)
    }
}

/// Writes catalogs, properties, the table of jobs and the input files to `out`.
pub fn prepare(dax: &Path, out: &Path, factors: Factors) -> Result<()> {
    if !(factors.size.is_finite() && factors.size > 0.0 && factors.time.is_finite() && factors.time >= 0.0) {
        bail!("a scale must be a positive number");
    }
    let jobs = dax::read(dax)?;
    for directory in ["inputs", "scratch", "outputs"] {
        let path = out.join(directory);
        std::fs::create_dir_all(&path).with_context(|| format!("{}", path.display()))?;
    }
    let out = out.canonicalize().with_context(|| format!("{}", out.display()))?;
    let out_text = out.to_str().context("the output directory's name is not UTF-8")?;
    let program = std::env::current_exe().context("where this program is")?;
    let program = program.to_str().context("this program's path is not UTF-8")?;

    let sizes = table::sizes(&jobs);
    let size = |name: &str| scaled(sizes.get(name).copied().unwrap_or(0), factors.size);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, and negative times are 0"
    )]
    let milliseconds = |job: &dax::Job| (job.runtime * factors.time * 1000.0) as u64;
    write(&out.join(TABLE), &table::write(&jobs, size, milliseconds))?;

    let produced: BTreeSet<&str> = jobs
        .iter()
        .flat_map(|job| &job.outputs)
        .map(|(name, _)| name.as_str())
        .collect();
    let used: BTreeSet<&str> = jobs
        .iter()
        .flat_map(|job| &job.inputs)
        .map(|(name, _)| name.as_str())
        .collect();
    let kept: BTreeSet<&str> = jobs
        .iter()
        .flat_map(|job| &job.kept)
        .map(String::as_str)
        .collect();
    let kept: String = kept
        .iter()
        .map(|name| format!("{} {name}\n", size(name)))
        .collect();
    write(&out.join(OUTPUTS), &kept)?;

    let mut replicas = String::from("pegasus: \"5.0.4\"\nreplicas:");
    let raw: Vec<&str> = used.difference(&produced).copied().collect();
    for name in &raw {
        let path = out.join("inputs").join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).with_context(|| format!("{}", parent.display()))?;
        }
        let mut digest = Digest::new();
        digest.add(name.as_bytes());
        digest
            .write_file(&path, size(name))
            .with_context(|| format!("{}", path.display()))?;
        let pfn = quoted(&format!("{out_text}/inputs/{name}"));
        let _ = write!(
            replicas,
            "\n- {{lfn: {}, pfns: [{{site: local, pfn: {pfn}}}]}}",
            quoted(name)
        );
    }
    if raw.is_empty() {
        replicas.push_str(" []");
    }
    replicas.push('\n');
    write(&out.join("replicas.yml"), &replicas)?;
    write(
        &out.join("transformations.yml"),
        &transformations(&jobs, program, &format!("{out_text}/{TABLE}")),
    )?;
    write(&out.join("sites.yml"), &sites(out_text))?;
    write(&out.join("pegasus.properties"), &properties(out_text))?;
    println!(
        "{} jobs, {} input files, {} files in all",
        jobs.len(),
        raw.len(),
        sizes.len()
    );
    Ok(())
}

/// Compares the outputs of a run with those that the workflow keeps.
pub fn check(prepared: &Path, outputs: Option<&Path>) -> Result<()> {
    let list = prepared.join(OUTPUTS);
    let text = std::fs::read_to_string(&list).with_context(|| format!("{}", list.display()))?;
    let default = prepared.join("outputs");
    let outputs = outputs.unwrap_or(&default);
    let mut wrong = Vec::new();
    for line in text.lines() {
        let (size, name) = line
            .split_once(' ')
            .with_context(|| format!("{}: \"{line}\"", list.display()))?;
        match std::fs::metadata(outputs.join(name)) {
            Ok(metadata) if metadata.len().to_string() == size => {}
            Ok(metadata) => wrong.push(format!("{name}: {} bytes, expected {size}", metadata.len())),
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    if !wrong.is_empty() {
        bail!(
            "{} of {} outputs are wrong:\n{}",
            wrong.len(),
            text.lines().count(),
            wrong.join("\n")
        );
    }
    println!("{} outputs, all with the expected sizes", text.lines().count());
    Ok(())
}

fn transformations(jobs: &[dax::Job], program: &str, table: &str) -> String {
    let mut names: BTreeMap<(Option<&str>, &str, Option<&str>), ()> = BTreeMap::new();
    for job in jobs {
        names.insert((job.namespace.as_deref(), &job.name, job.version.as_deref()), ());
    }
    let mut text = String::from("pegasus: \"5.0.4\"\ntransformations:\n");
    for (namespace, name, version) in names.into_keys() {
        let _ = writeln!(text, "- name: {}", quoted(name));
        if let Some(namespace) = namespace {
            let _ = writeln!(text, "  namespace: {}", quoted(namespace));
        }
        if let Some(version) = version {
            let _ = writeln!(text, "  version: {}", quoted(version));
        }
        let _ = writeln!(
            text,
            "  profiles: {{env: {{{TABLE_VARIABLE}: {}}}}}",
            quoted(table)
        );
        let _ = writeln!(
            text,
            "  sites: [{{name: local, type: installed, pfn: {}}}]",
            quoted(program)
        );
    }
    text
}

fn sites(out: &str) -> String {
    let directory = |kind: &str, name: &str| {
        let path = quoted(&format!("{out}/{name}"));
        let url = quoted(&format!("file://{out}/{name}"));
        format!("  - {{type: {kind}, path: {path}, fileServers: [{{url: {url}, operation: all}}]}}\n")
    };
    format!(
        "pegasus: \"5.0.4\"\nsites:\n- name: local\n  directories:\n{}{}",
        directory("sharedScratch", "scratch"),
        directory("localStorage", "outputs")
    )
}

fn properties(out: &str) -> String {
    let out = out.replace('\\', "\\\\");
    format!(
        "pegasus.code.generator = PMC\n\
         pegasus.data.configuration = sharedfs\n\
         pegasus.catalog.site.file = {out}/sites.yml\n\
         pegasus.catalog.transformation.file = {out}/transformations.yml\n\
         pegasus.catalog.replica.file = {out}/replicas.yml\n"
    )
}

/// Quotes a YAML scalar: JSON strings are a subset of YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("{}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_empty_files_stay_non_empty() {
        assert_eq!(scaled(0, 0.5), 0);
        assert_eq!(scaled(3, 0.0001), 1);
        assert_eq!(scaled(20_000_000_000, 0.0001), 2_000_000);
    }
}
