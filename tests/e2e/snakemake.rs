//! Snakemake, and programs in Python, hand their jobs to one run of `pmc serve`.

use std::fs;
use std::path::Path;

use pmc_dag::Dag;

use crate::support::command::{CommandResult, Program, wait_until};
use crate::support::programs::{Build, project, snakemake_bin};
use crate::support::slurm::Cluster;

/// Lets programs find Snakemake's environment, our packages for Python and our programs.
fn python_environment(directory: &Path) -> [(String, String); 4] {
    let own = Build::Local.program("pmc");
    let own = own.parent().expect("a program is in a directory");
    let path = format!("{}:{}:/usr/bin:/bin", own.display(), snakemake_bin().display());
    let packages = project().join("packaging");
    let packages = format!("{0}/python:{0}/snakemake/src", packages.display());
    [
        ("PATH", path),
        ("PYTHONPATH", packages),
        ("HOME", directory.display().to_string()),
        ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
}

/// A program of that environment.
fn python_program(name: &str, directory: &Path) -> Program {
    Program::new(snakemake_bin().join(name))
        .in_directory(directory)
        .envs(&python_environment(directory))
}

fn snakemake(directory: &Path, target: &str) -> CommandResult {
    python_program("snakemake", directory)
        .args([
            "--executor",
            "pmc",
            "--jobs",
            "20",
            "--latency-wait",
            "20",
            "--snakefile",
        ])
        .arg(project().join("tests/e2e/snakemake/Snakefile"))
        .arg(target)
        .run()
}

#[test]
#[ignore = "needs Snakemake from PyPI: tests/run e2e"]
fn jobs_of_snakemake_are_tasks_of_one_run() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let work = directory.path();
    let finished = snakemake(work, "all").ok();
    let plot = fs::read_to_string(work.join("out/plot.txt")).expect("the result");
    assert_eq!(
        plot,
        "A THREADS 2\nB THREADS 2\nC THREADS 2\n",
        "{}",
        finished.details()
    );
    assert!(!work.join("out/A.sorted").exists(), "it is temporary");
    let runs = || fs::read_dir(work.join(".snakemake/pmc")).expect("runs").flatten();
    let run = runs().next().expect("a run").path();
    let dag = Dag::open(&run.join("tasks.dag")).expect("the DAG");
    // The rule `all` has no job of its own.
    assert_eq!((runs().count(), dag.len()), (1, 8));
    let mapped = dag.ids().find(|task| dag.transformation(*task) == Some(b"map"));
    let request = dag.request(mapped.expect("a job of the rule"));
    // `mem_mb: 100` are 95.4 MiB.
    assert_eq!((request.cpus, request.memory_mb), (2, 96));
    // Packs and their indexes, logs, and no file a job.
    let files = fs::read_dir(&run).expect("the run").count();
    assert!(files < 12, "{files} files");

    let failed = snakemake(work, "out/broken");
    assert_eq!(failed.code(), 1, "{}", failed.details());
    assert!(failed.stderr.contains("pmc log 1 "), "{}", failed.details());
}

/// Jobs of the workflow that is killed. `PMC_TEST_SNAKEMAKE_JOBS=1000` makes it a large one.
fn many_jobs() -> usize {
    let given = std::env::var("PMC_TEST_SNAKEMAKE_JOBS").ok();
    given.and_then(|number| number.parse().ok()).unwrap_or(9)
}

/// Snakemake and all of its jobs are in one batch job, which is killed. A second one goes on.
#[test]
#[ignore = "needs Snakemake from PyPI, and Slurm: tests/run e2e"]
fn a_workflow_of_snakemake_goes_on_after_its_batch_job_was_killed() {
    let cluster = Cluster::start();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (work, jobs) = (directory.path(), many_jobs());
    let seconds = 180 + 10 * jobs as u64;
    let snakefile = project().join("tests/e2e/snakemake/many");
    let script = format!(
        "exec snakemake --snakefile {0} --config jobs={jobs} --executor pmc \
         --jobs {1} --pmc-options '--agents 3 -w 2' --latency-wait 20 --rerun-incomplete",
        snakefile.display(),
        jobs.div_ceil(3)
    );
    let ran = || {
        fs::read_to_string(work.join("ran"))
            .unwrap_or_default()
            .lines()
            .count()
    };
    let sbatch = || {
        Program::new("sbatch")
            .in_directory(work)
            .envs(&python_environment(work))
    };
    let first = cluster.sbatch_script(sbatch(), &script);
    wait_until("no job has run", seconds, || ran() > jobs / 3);
    first.kill();
    wait_until("the batch job goes on", 60, || cluster.queue().is_empty());
    let before = ran();
    let runs = || {
        let runs = fs::read_dir(work.join(".snakemake/pmc")).expect("runs").flatten();
        runs.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let [killed] = &runs()[..] else {
        panic!("{:?}", runs())
    };

    // It has left the lock of the directory.
    let unlock = format!("snakemake --snakefile {} --unlock && ", snakefile.display());
    let second = cluster.sbatch_script(sbatch(), &(unlock + &script));
    wait_until("the second batch job goes on", seconds, || {
        cluster.queue().is_empty()
    });
    second.assert_ends_as("COMPLETED");
    assert!((0..jobs).all(|number| work.join(format!("out/{number}")).exists()));
    assert!(ran() < before + jobs, "all have run again");
    assert_eq!(runs().len(), 2);

    // The run that was killed has what it had accepted.
    let resumed = cluster
        .job_command(Build::Local.program("pmc"))
        .in_directory(work);
    let resumed = resumed
        .envs(&python_environment(work))
        .args(["resume", "--quiet"])
        .arg(killed)
        .limit(seconds);
    resumed.run().ok();
}

#[test]
#[ignore = "needs a Python environment: tests/run e2e"]
fn the_executor_for_python_runs_commands_and_functions() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tried = python_program("python", directory.path())
        .arg(project().join("packaging/python/try"))
        .arg("served")
        .run()
        .ok();
    assert!(
        tried.stdout.contains("the executor for Python works"),
        "{}",
        tried.details()
    );
}
