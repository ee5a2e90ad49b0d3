//! Writes workflows of any size as the Python API (YAML) and the older generators (DAX) do.
//!
//! Three levels: each job of the first reads two files of the replica catalog and writes one, each job of the
//! other two reads two files of the level above. Each job has three file uses and, below the first level, two
//! dependencies. The outputs of the last level are staged out and registered.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Levels of the workflow.
const LEVELS: usize = 3;
/// Number of jobs that read the same input file.
const JOBS_PER_INPUT: usize = 100;
/// Transformations of the levels.
const PROGRAMS: [&str; LEVELS] = ["preprocess", "analyze", "summarize"];

/// Syntax of the workflow file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// Pegasus YAML 5.0.
    Yaml,
    /// DAX XML 3.6.
    Dax,
}

impl Syntax {
    /// Returns the name of the workflow file.
    pub fn file(self) -> &'static str {
        match self {
            Syntax::Yaml => "workflow.yml",
            Syntax::Dax => "workflow.dax",
        }
    }
}

/// A job of the workflow.
struct Job {
    level: usize,
    number: usize,
    inputs: [String; 2],
    output: String,
}

/// Returns the number of jobs of a level. The first level has the remainder.
fn width(jobs: usize, level: usize) -> usize {
    jobs / LEVELS + if level == 0 { jobs % LEVELS } else { 0 }
}

fn id(level: usize, number: usize) -> String {
    format!("ID{}{number:07}", level + 1)
}

fn output_name(level: usize, number: usize) -> String {
    format!("f.{}.{number:07}.dat", PROGRAMS[level])
}

/// Returns the numbers of the two parents of a job.
fn parents(jobs: usize, job: &Job) -> Option<[usize; 2]> {
    let above = width(jobs, job.level.checked_sub(1)?);
    Some([job.number % above, (job.number + 1) % above])
}

fn jobs(jobs: usize) -> impl Iterator<Item = Job> {
    (0..LEVELS)
        .flat_map(move |level| (0..width(jobs, level)).map(move |number| (level, number)))
        .map(move |(level, number)| {
            let mut job = Job {
                level,
                number,
                inputs: [
                    "settings.xml".to_owned(),
                    format!("raw.{}.dat", number / JOBS_PER_INPUT),
                ],
                output: output_name(level, number),
            };
            if let Some(parents) = parents(jobs, &job) {
                job.inputs = parents.map(|parent| output_name(level - 1, parent));
            }
            job
        })
}

/// Writes a workflow and its catalogs into a directory.
pub fn write(directory: &Path, syntax: Syntax, jobs: usize) -> io::Result<()> {
    catalogs(directory, jobs)?;
    let mut out = BufWriter::with_capacity(1 << 20, File::create(directory.join(syntax.file()))?);
    match syntax {
        Syntax::Yaml => yaml(&mut out, jobs)?,
        Syntax::Dax => dax(&mut out, jobs)?,
    }
    out.flush()
}

fn yaml(out: &mut impl Write, count: usize) -> io::Result<()> {
    out.write_all(
        b"x-pegasus:\n  apiLang: python\n  createdBy: user\n  createdOn: 11-21-26T10:00:00Z\npegasus: 5.0.4\n\
          name: bench\njobs:\n",
    )?;
    for job in jobs(count) {
        let program = PROGRAMS[job.level];
        let [first, second] = &job.inputs;
        write!(
            out,
            "- type: job\n  name: {program}\n  id: {}\n  arguments:\n  - -a\n  - {program}\n  - -T\n  - '60'\n  - -i\n  \
             - {first}\n  - {second}\n  - -o\n  - {}\n  uses:\n",
            id(job.level, job.number),
            job.output
        )?;
        for input in &job.inputs {
            write!(out, "  - lfn: {input}\n    type: input\n")?;
        }
        let kept = job.level == LEVELS - 1;
        write!(
            out,
            "  - lfn: {}\n    type: output\n    stageOut: {kept}\n    registerReplica: {kept}\n",
            job.output
        )?;
    }
    out.write_all(b"jobDependencies:\n")?;
    // Grouped by parent: the children of number n are n and the one before it.
    for level in 0..LEVELS - 1 {
        let below = width(count, level + 1);
        for number in 0..width(count, level) {
            let children = [number, (number + width(count, level) - 1) % width(count, level)];
            writeln!(out, "- id: {}\n  children:", id(level, number))?;
            for child in children.into_iter().filter(|&child| child < below) {
                writeln!(out, "  - {}", id(level + 1, child))?;
            }
        }
    }
    Ok(())
}

fn dax(out: &mut impl Write, count: usize) -> io::Result<()> {
    out.write_all(
        b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<adag xmlns=\"http://pegasus.isi.edu/schema/DAX\" \
          xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" \
          xsi:schemaLocation=\"http://pegasus.isi.edu/schema/DAX http://pegasus.isi.edu/schema/dax-3.6.xsd\" \
          version=\"3.6\" name=\"bench\">\n",
    )?;
    for job in jobs(count) {
        let program = PROGRAMS[job.level];
        let [first, second] = &job.inputs;
        write!(
            out,
            "\t<job id=\"{}\" name=\"{program}\">\n\t\t<argument>-a {program} -T 60 -i <file name=\"{first}\"/> \
             <file name=\"{second}\"/> -o <file name=\"{}\"/></argument>\n",
            id(job.level, job.number),
            job.output
        )?;
        for input in &job.inputs {
            writeln!(out, "\t\t<uses name=\"{input}\" link=\"input\"/>")?;
        }
        let kept = job.level == LEVELS - 1;
        write!(
            out,
            "\t\t<uses name=\"{}\" link=\"output\" register=\"{kept}\" transfer=\"{kept}\"/>\n\t</job>\n",
            job.output
        )?;
    }
    for job in jobs(count) {
        let Some(parents) = parents(count, &job) else {
            continue;
        };
        writeln!(out, "\t<child ref=\"{}\">", id(job.level, job.number))?;
        for parent in parents {
            writeln!(out, "\t\t<parent ref=\"{}\"/>", id(job.level - 1, parent))?;
        }
        writeln!(out, "\t</child>")?;
    }
    out.write_all(b"</adag>\n")
}

fn catalogs(directory: &Path, jobs: usize) -> io::Result<()> {
    let here = directory.display();
    fs::write(
        directory.join("sites.yml"),
        format!(
            "pegasus: \"5.0\"\nsites:\n- name: local\n  arch: x86_64\n  os.type: linux\n  directories:\n  \
             - type: sharedScratch\n    path: {here}/scratch\n    fileServers:\n    \
             - url: file://{here}/scratch\n      operation: all\n  \
             - type: localStorage\n    path: {here}/outputs\n    fileServers:\n    \
             - url: file://{here}/outputs\n      operation: all\n"
        ),
    )?;
    let mut text = String::from("pegasus: \"5.0\"\ntransformations:\n");
    for program in PROGRAMS {
        text.push_str(&format!(
            "- name: {program}\n  sites:\n  - name: local\n    pfn: /usr/bin/{program}\n    type: installed\n"
        ));
    }
    fs::write(directory.join("transformations.yml"), text)?;
    let mut text = format!(
        "pegasus: \"5.0\"\nreplicas:\n- lfn: settings.xml\n  pfns:\n  - site: local\n    pfn: {here}/settings.xml\n"
    );
    for raw in 0..width(jobs, 0).div_ceil(JOBS_PER_INPUT) {
        text.push_str(&format!(
            "- lfn: raw.{raw}.dat\n  pfns:\n  - site: local\n    pfn: {here}/raw/raw.{raw}.dat\n"
        ));
    }
    fs::write(directory.join("replicas.yml"), text)
}
