//! Time per job of each refinement step, for workflows of 10⁴, 10⁵ and 10⁶ jobs. It should not grow.
//!
//! `cargo bench -p pmc-plan --bench refine` writes DAX files into a temporary directory and plans each in
//! memory; `PMC_BENCH_JOBS` sets another largest size, `PMC_BENCH_SHAPE` and `PMC_BENCH_CLEANUP` choose one
//! workflow and one cleanup strategy. All times are CPU time of the thread. The workflows:
//! *wide* is three levels, each job with a file of the level above and one that all read; *chains* are ten
//! jobs deep; *mixed* has jobs that read three files from anywhere in the level above; *join* has levels of a
//! thousand jobs with one job between them that reads all their outputs. Each is planned with cleanup
//! `inplace` and with `constraint`, a limit on space that delays jobs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use nix::time::{ClockId, clock_gettime};
use pmc_plan::cli::{self, Invocation};
use pmc_plan::plan::measure;
use pmc_plan::request::{Environment, Request};

/// Adds the numbers of the files that a job reads. Job n writes file n.
type Shape = fn(usize, usize, &mut Vec<usize>);

const SHAPES: &[(&str, Shape)] = &[
    ("wide", |job, jobs, reads| {
        let level = jobs.div_ceil(3);
        reads.extend(job.checked_sub(level));
    }),
    ("chains", |job, _, reads| {
        if job % 10 > 0 {
            reads.push(job - 1);
        }
    }),
    ("mixed", |job, jobs, reads| {
        let level = (jobs / 20).max(1);
        if let Some(above) = (job / level).checked_sub(1) {
            let mut number = job as u64;
            for _ in 0..3 {
                number = number
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                reads.push(above * level + (number >> 33) as usize % level);
            }
            reads.sort_unstable();
            reads.dedup();
        }
    }),
    ("join", |job, _, reads| match job % 1001 {
        1000 => reads.extend(job - 1000..job),
        _ if job > 1000 => reads.push(job / 1001 * 1001 - 1),
        _ => {}
    }),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let largest = std::env::var("PMC_BENCH_JOBS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1_000_000);
    let sizes: Vec<usize> = [10_000, 100_000, 1_000_000]
        .into_iter()
        .filter(|&n| n <= largest)
        .collect();
    let directory = tempfile::tempdir()?;
    catalogs(directory.path())?;
    for &(shape, reads) in SHAPES
        .iter()
        .filter(|(shape, _)| is_chosen("PMC_BENCH_SHAPE", shape))
    {
        for &jobs in &sizes {
            write_dax(&directory.path().join(format!("{shape}-{jobs}.dax")), jobs, reads)?;
        }
        for cleanup in ["inplace", "constraint"] {
            if !is_chosen("PMC_BENCH_CLEANUP", cleanup) {
                continue;
            }
            let mut table: Vec<(&str, Vec<f64>)> = Vec::new();
            for (at, &jobs) in sizes.iter().enumerate() {
                let request = request(directory.path(), &format!("{shape}-{jobs}.dax"), cleanup, jobs)?;
                let mut last = cpu_time();
                measure(&request, &mut |step| {
                    let now = cpu_time();
                    if !table.iter().any(|(name, _)| *name == step) {
                        table.push((step, Vec::new()));
                    }
                    if let Some((_, times)) = table.iter_mut().find(|(name, _)| *name == step) {
                        times.resize(at, 0.0);
                        times.push((now - last) * 1e9 / jobs as f64);
                    }
                    last = now;
                })?;
            }
            print(shape, cleanup, &sizes, &table);
        }
        for &jobs in &sizes {
            fs::remove_file(directory.path().join(format!("{shape}-{jobs}.dax")))?;
        }
    }
    Ok(())
}

/// Returns whether the variable names this, or is not set.
fn is_chosen(variable: &str, name: &str) -> bool {
    std::env::var(variable).map_or(true, |chosen| chosen == name)
}

fn print(shape: &str, cleanup: &str, sizes: &[usize], table: &[(&str, Vec<f64>)]) {
    print!("{:<28}", format!("{shape}, {cleanup}: ns per job"));
    for size in sizes {
        print!("{:>12}", format!("{size} jobs"));
    }
    println!("{:>14}", "last/first");
    for (name, times) in table {
        print!("  {name:<26}");
        for time in times {
            print!("{time:>12.0}");
        }
        match (times.first(), times.last()) {
            (Some(first), Some(last)) if *first > 0.0 => println!("{:>14.2}", last / first),
            _ => println!(),
        }
    }
    println!();
}

/// CPU time of this thread in seconds.
fn cpu_time() -> f64 {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(0.0, |time| time.tv_sec() as f64 + time.tv_nsec() as f64 * 1e-9)
}

fn write_dax(path: &Path, jobs: usize, reads: Shape) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    writeln!(out, "<adag version=\"3.6\" name=\"bench\">")?;
    let mut files = Vec::new();
    for job in 0..jobs {
        files.clear();
        reads(job, jobs, &mut files);
        write!(
            out,
            "<job id=\"J{job}\" name=\"work\"><uses name=\"common\" link=\"input\" size=\"100\"/>"
        )?;
        for file in &files {
            write!(out, "<uses name=\"f{file}\" link=\"input\"/>")?;
        }
        let kept = job * 4 / jobs == 3;
        writeln!(
            out,
            "<uses name=\"f{job}\" link=\"output\" transfer=\"{kept}\" register=\"{kept}\" size=\"1000\"/></job>"
        )?;
    }
    writeln!(out, "</adag>")?;
    out.flush()
}

fn catalogs(directory: &Path) -> io::Result<()> {
    let dir = directory.display();
    fs::write(
        directory.join("sites.yml"),
        format!(
            "pegasus: \"5.0\"\nsites:\n- name: local\n  directories:\n  - {{type: sharedScratch, path: {dir}/scratch, \
             fileServers: [{{url: \"file://{dir}/scratch\", operation: all}}]}}\n  - {{type: localStorage, path: \
             {dir}/out, fileServers: [{{url: \"file://{dir}/out\", operation: all}}]}}\n"
        ),
    )?;
    fs::write(
        directory.join("transformations.yml"),
        "pegasus: \"5.0\"\ntransformations:\n- name: work\n  sites: [{name: local, type: installed, pfn: /bin/work}]\n",
    )?;
    fs::write(
        directory.join("replicas.yml"),
        "pegasus: \"5.0\"\nreplicas:\n- lfn: common\n  pfns: [{site: local, pfn: /data/common}]\n",
    )
}

fn request(directory: &Path, dax: &str, cleanup: &str, jobs: usize) -> Result<Request, String> {
    let environment = Environment {
        is_of_other: false,
        variables: BTreeMap::new(),
        working_dir: directory.to_owned(),
        user: "bench".into(),
        host: "here".into(),
        own_bin: Some("/opt/bin".into()),
        now: chrono::DateTime::UNIX_EPOCH.fixed_offset(),
        uuid: "01234567-89ab-cdef-0123-456789abcdef".into(),
    };
    // Space for three quarters of all files.
    let room = format!("-Dpegasus.file.cleanup.constraint.maxspace={}", jobs * 750);
    let line = [
        "pmc-plan",
        "--sites",
        "local",
        "-o",
        "local",
        "--dir",
        "submit",
        "--cleanup",
        cleanup,
        &room,
        dax,
    ];
    match cli::parse(&line.map(str::to_owned), environment).map_err(|e| e.to_string())? {
        Invocation::Plan(request, _) => Ok(*request),
        _ => Err("not a plan".into()),
    }
}
