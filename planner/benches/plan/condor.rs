//! Plans for HTCondor: `cargo bench -p pmc-plan --bench plan -- condor`.
//!
//! Three figures: a plan of 10,000 jobs whose files HTCondor moves, `pegasus-exitcode` for a record of 64
//! KiB, and plans for PMC and Shell. `PMC_BENCH_REFERENCE` names the `pegasus-plan` of Pegasus, and
//! `PMC_BENCH_OLD` an older `pmc-plan`, to be measured in the same run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::inputs::{self, Syntax};
use super::{Cost, measure_command};

const JOBS: usize = 10_000;
/// Rounds of which the best counts, and those of the reference, which takes longer.
const ROUNDS: usize = 5;
const REFERENCE_ROUNDS: usize = 2;
/// Records that are judged.
const RECORDS: usize = 200;
const RECORD_SIZE: usize = 64 * 1024;
/// Rounds in which an older planner and this one take turns.
const TURNS: usize = 9;

/// Measures all, and prints the figures.
pub fn run() {
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let directory = temporary.path();
    plans_for_htcondor(&directory.join("condorio"));
    exit_codes(&directory.join("records"));
    other_plans(&directory.join("others"));
}

fn ours() -> String {
    testutils::programs::path("pmc-plan").to_owned()
}

/// Arguments of a planner for a plan of the workflow that is written here.
fn arguments(more: &[&str]) -> Vec<String> {
    let all = ["-q", "--dir", "submit", "-o", "local"].iter().chain(more);
    all.chain(&["workflow.yml"])
        .map(|word| (*word).to_owned())
        .collect()
}

/// Plans in a directory, with the best cost of several rounds.
fn best(planner: &str, more: &[&str], directory: &Path, rounds: usize) -> Cost {
    let mut all: Option<Cost> = None;
    for _ in 0..rounds {
        let _ = fs::remove_dir_all(directory.join("submit"));
        all = Some(measure_command(planner, &arguments(more), directory).min(all));
    }
    all.expect("there are rounds")
}

fn plans_for_htcondor(directory: &Path) {
    const OPTIONS: [&str; 6] = [
        "-D",
        "pegasus.code.generator=Condor",
        "-D",
        "pegasus.data.configuration=condorio",
        "-s",
        "pool",
    ];
    fs::create_dir(directory).expect("the temporary directory can be written");
    inputs::write(directory, Syntax::Yaml, JOBS).expect("the temporary directory can be written");
    move_to_pool(directory);
    let native = [&OPTIONS[..], &["-D", "pegasus.lite.form=native"]].concat();
    let cost = best(&ours(), &native, directory, ROUNDS);
    println!(
        "{JOBS} jobs, condorio: {:.3} s, {:.0} MB",
        cost.wall, cost.peak_mb
    );
    let Ok(reference) = std::env::var("PMC_BENCH_REFERENCE") else {
        println!("  (PMC_BENCH_REFERENCE names no pegasus-plan of Pegasus)");
        return;
    };
    let other = best(&reference, &OPTIONS, directory, REFERENCE_ROUNDS);
    println!(
        "  {reference}: {:.1} s, {:.0} MB: 1/{:.0} of its time, 1/{:.0} of its memory",
        other.wall,
        other.peak_mb,
        other.wall / cost.wall,
        other.peak_mb / cost.peak_mb
    );
}

/// Gives the jobs a site of their own, whose pool HTCondor knows.
fn move_to_pool(directory: &Path) {
    let change = |file: &str, change: &dyn Fn(String) -> String| {
        let path = directory.join(file);
        let text = fs::read_to_string(&path).expect("a catalog");
        fs::write(path, change(text)).expect("the temporary directory can be written");
    };
    let home = std::env::var("PMC_BENCH_PEGASUS_HOME").map_or_else(
        |_| String::new(),
        |home| format!("  profiles: {{env: {{PEGASUS_HOME: {home}}}}}\n"),
    );
    change("sites.yml", &|text| {
        format!(
            "{text}{home}- name: pool\n  arch: x86_64\n  os.type: linux\n  profiles: {{pegasus: {{style: condor}}}}\n"
        )
    });
    change("transformations.yml", &|text| {
        text.replace("name: local", "name: pool")
    });
}

/// Judges many outputs of jobs, and prints the time of one.
fn exit_codes(directory: &Path) {
    fs::create_dir(directory).expect("the temporary directory can be written");
    let program = testutils::programs::path("pegasus-exitcode");
    let head = "- invocation: True\n  version: 3.0\n  mainjob:\n    status:\n      raw: 0\n      regular_exitcode: 0\n  files:\n    \
                stdout:\n      data_truncated: false\n      data: |\n";
    let mut record = head.to_owned();
    while record.len() < RECORD_SIZE {
        record.push_str("        what a program prints, line after line of it\n");
    }
    let mut times: Vec<Duration> = (0..RECORDS)
        .map(|n| {
            let output = directory.join(format!("{n}.out"));
            fs::write(&output, &record).expect("the temporary directory can be written");
            let start = Instant::now();
            let status = Command::new(program)
                .args(["-r", "0", "-R", "0", "-l", "log", "-M", "cache.meta"])
                .arg(&output)
                .current_dir(directory)
                .status();
            assert!(status.expect("pegasus-exitcode starts").success());
            start.elapsed()
        })
        .collect();
    times.sort();
    let ms = |at: usize| times[at].as_secs_f64() * 1e3;
    println!(
        "pegasus-exitcode, record of {} KiB: {:.2} ms, 95 of 100 in {:.2} ms",
        RECORD_SIZE / 1024,
        ms(RECORDS / 2),
        ms(RECORDS * 95 / 100)
    );
}

/// Compares plans for other generators with those of an older planner.
fn other_plans(directory: &Path) {
    fs::create_dir(directory).expect("the temporary directory can be written");
    inputs::write(directory, Syntax::Yaml, JOBS).expect("the temporary directory can be written");
    let old = std::env::var("PMC_BENCH_OLD").ok().map(PathBuf::from);
    for generator in ["PMC", "Shell"] {
        let property = format!("pegasus.code.generator={generator}");
        let options = ["-D", property.as_str()];
        let mut costs: [Option<Cost>; 2] = [None, None];
        for _ in 0..TURNS {
            for (planner, cost) in [Some(ours()), old.as_ref().map(|path| path.display().to_string())]
                .into_iter()
                .zip(&mut costs)
            {
                if let Some(planner) = planner {
                    *cost = Some(best(&planner, &options, directory, 1).min(*cost));
                }
            }
        }
        let [Some(new), before] = costs else { continue };
        print!(
            "{JOBS} jobs, {generator}: {:.3} s, CPU {:.3} s",
            new.wall, new.cpu
        );
        match before {
            Some(old) => println!(
                ", older planner {:.3} s, CPU {:.3} s: {:+.1} %, CPU {:+.1} %",
                old.wall,
                old.cpu,
                (new.wall / old.wall - 1.0) * 100.0,
                (new.cpu / old.cpu - 1.0) * 100.0
            ),
            None => println!(" (PMC_BENCH_OLD names no older planner)"),
        }
    }
}
