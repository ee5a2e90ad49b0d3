//! Files and catalogs of the two workflows.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

/// Levels of the large workflow.
const LEVELS: usize = 3;
/// Number of jobs that read the same input of the replica catalog.
const JOBS_PER_INPUT: usize = 10;

/// Transformations and the system programs behind them. They start as quickly as `/bin/true`.
const PROGRAMS: [(&str, &str); 3] = [
    ("copy", "/bin/dd"),
    ("split", "/usr/bin/tee"),
    ("join", "/bin/cat"),
];

/// A job.
struct Job<'a> {
    program: &'a str,
    arguments: Vec<String>,
    stdin: Option<&'a str>,
    stdout: Option<&'a str>,
    inputs: Vec<String>,
    outputs: Vec<String>,
    kept: bool,
}

fn copy(input: &str, output: &str) -> Vec<String> {
    vec![
        format!("if={input}"),
        format!("of={output}"),
        "status=none".to_owned(),
    ]
}

/// Writes a diamond: one job splits a file, two copy the halves, one joins the copies. All outputs are kept.
pub fn diamond(directory: &Path) -> io::Result<()> {
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let job = |program, arguments: Vec<String>, inputs: &[&str], outputs: &[&str]| Job {
        program,
        arguments,
        stdin: None,
        stdout: None,
        inputs: owned(inputs),
        outputs: owned(outputs),
        kept: true,
    };
    let jobs = [
        Job {
            stdin: Some("f.a"),
            ..job("split", owned(&["f.b1", "f.b2"]), &["f.a"], &["f.b1", "f.b2"])
        },
        job("copy", copy("f.b1", "f.c1"), &["f.b1"], &["f.c1"]),
        job("copy", copy("f.b2", "f.c2"), &["f.b2"], &["f.c2"]),
        Job {
            stdout: Some("f.d"),
            ..job("join", owned(&["f.c1", "f.c2"]), &["f.c1", "f.c2"], &["f.d"])
        },
    ];
    write(directory, &jobs, &["f.a".to_owned()])
}

/// Writes a workflow of three levels. Each job reads a file of the level above; the first level reads files
/// of the replica catalog. Outputs of the last level are kept.
pub fn levels(directory: &Path, count: usize) -> io::Result<()> {
    let width = |level: usize| count / LEVELS + usize::from(level < count % LEVELS);
    let mut jobs = Vec::new();
    for level in 0..LEVELS {
        for number in 0..width(level) {
            let input = match level {
                0 => format!("raw.{}", number / JOBS_PER_INPUT),
                _ => format!("f.{}.{number}", level - 1),
            };
            let output = format!("f.{level}.{number}");
            jobs.push(Job {
                program: "copy",
                arguments: copy(&input, &output),
                stdin: None,
                stdout: None,
                inputs: vec![input],
                outputs: vec![output],
                kept: level == LEVELS - 1,
            });
        }
    }
    let raw: Vec<String> = (0..width(0).div_ceil(JOBS_PER_INPUT))
        .map(|n| format!("raw.{n}"))
        .collect();
    write(directory, &jobs, &raw)
}

/// Checks that every kept output has the content of the input.
pub fn check(directory: &Path) {
    let kept = fs::read_to_string(directory.join("kept")).expect("written with the workflow");
    for name in kept.lines() {
        let text = fs::read_to_string(directory.join("outputs").join(name)).expect(name);
        assert!(text.starts_with("some bytes of input"), "{name}");
    }
}

fn write(directory: &Path, jobs: &[Job<'_>], raw: &[String]) -> io::Result<()> {
    fs::create_dir_all(directory.join("raw"))?;
    let here = directory.display();
    for name in raw {
        fs::write(
            directory.join("raw").join(name),
            "some bytes of input\n".repeat(50),
        )?;
    }
    let kept: String = jobs
        .iter()
        .filter(|job| job.kept)
        .flat_map(|job| &job.outputs)
        .map(|name| format!("{name}\n"))
        .collect();
    fs::write(directory.join("kept"), kept)?;
    fs::write(directory.join("workflow.yml"), workflow(jobs))?;
    fs::write(
        directory.join("pegasus.properties"),
        "pegasus.catalog.site.file=sites.yml\npegasus.catalog.transformation.file=transformations.yml\n\
         pegasus.catalog.replica=YAML\npegasus.catalog.replica.file=replicas.yml\n\
         pegasus.data.configuration=sharedfs\n",
    )?;
    fs::write(
        directory.join("sites.yml"),
        format!(
            "pegasus: \"5.0\"\nsites:\n- name: local\n  directories:\n  \
             - type: sharedScratch\n    path: {here}/scratch\n    fileServers:\n    \
             - {{url: 'file://{here}/scratch', operation: all}}\n  \
             - type: localStorage\n    path: {here}/outputs\n    fileServers:\n    \
             - {{url: 'file://{here}/outputs', operation: all}}\n"
        ),
    )?;
    let mut text = String::from("pegasus: \"5.0\"\ntransformations:\n");
    for (name, path) in PROGRAMS {
        let _ = write!(
            text,
            "- name: {name}\n  sites:\n  - {{name: local, pfn: {path}, type: installed}}\n"
        );
    }
    fs::write(directory.join("transformations.yml"), text)?;
    let mut text = String::from("pegasus: \"5.0\"\nreplicas:\n");
    for name in raw {
        let _ = write!(
            text,
            "- lfn: {name}\n  pfns:\n  - {{site: local, pfn: '{here}/raw/{name}'}}\n"
        );
    }
    fs::write(directory.join("replicas.yml"), text)
}

fn workflow(jobs: &[Job<'_>]) -> String {
    let mut text = String::from("pegasus: \"5.0\"\nname: bench\njobs:\n");
    for (number, job) in jobs.iter().enumerate() {
        let _ = write!(
            text,
            "- type: job\n  id: ID{:07}\n  name: {}\n  arguments: [{}]\n",
            number + 1,
            job.program,
            job.arguments.join(", ")
        );
        for (key, file) in [("stdin", job.stdin), ("stdout", job.stdout)] {
            if let Some(file) = file {
                let _ = writeln!(text, "  {key}: {file}");
            }
        }
        text.push_str("  uses:\n");
        for name in &job.inputs {
            let _ = writeln!(text, "  - {{lfn: {name}, type: input}}");
        }
        for name in &job.outputs {
            let _ = writeln!(
                text,
                "  - {{lfn: {name}, type: output, stageOut: {0}, registerReplica: {0}}}",
                job.kept
            );
        }
    }
    text
}
