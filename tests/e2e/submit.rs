//! `pmc-plan --submit` submits a plan to a real Slurm. The signal that its batch script requests drains the run, and a
//! second job does the rest.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::command::Run;
use crate::support::pegasus::only_file;
use crate::support::programs::Flavour;
use crate::support::slurm::Cluster;

/// More jobs than the three nodes have places for.
const JOBS: usize = 12;

const SITES: &str = r#"pegasus: "5.0"
sites:
- name: local
  directories:
  - {type: sharedScratch, path: @DIR@/scratch, fileServers: [{url: "file://@DIR@/scratch", operation: all}]}
"#;

/// Jobs that note that they have run, and take a while.
fn inputs(top: &Path) {
    let mut workflow = String::from("pegasus: \"5.0\"\nname: waits\njobs:\n");
    for n in 0..JOBS {
        workflow.push_str(&format!(
            "- {{type: job, id: W{n}, name: wait, arguments: [-c, 'sleep 3; echo {n} >>{}/ran'], uses: []}}\n",
            top.display()
        ));
    }
    let put = |name: &str, text: &str| {
        let text = text.replace("@DIR@", &top.display().to_string());
        fs::write(top.join(name), text).expect("an input");
    };
    put("workflow.yml", &workflow);
    put("sites.yml", SITES);
    put(
        "transformations.yml",
        "pegasus: \"5.0\"\ntransformations:\n- {name: wait, sites: [{name: local, type: installed, pfn: /bin/sh}]}\n",
    );
}

/// Numbers of the jobs that have run, in order.
fn ran(top: &Path) -> Vec<usize> {
    let text = fs::read_to_string(top.join("ran")).unwrap_or_default();
    let mut numbers: Vec<usize> = text.lines().filter_map(|line| line.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn a_submitted_run_drains_when_slurm_says_so_and_goes_on_later() {
    let cluster = Cluster::start();
    let folder = tempfile::Builder::new()
        .prefix("pmc-submit.")
        .tempdir()
        .expect("a temporary folder");
    let top = folder.path();
    inputs(top);
    let said = cluster
        .job_command(Flavour::OpenMpi.program("pmc-plan"))
        .within(top)
        .args([
            "--sites",
            "local",
            "--dir",
            "submit",
            "--relative-submit-dir",
            "run",
            "--cleanup",
            "none",
        ])
        .args([
            "--nodes",
            "3",
            "--ntasks-per-node",
            "2",
            "--walltime",
            "10",
            "--drain",
            "4",
        ])
        .args(["-Dpegasus.memory=1", "--submit", "--json", "workflow.yml"])
        .go()
        .ok();
    let object: serde_json::Value = serde_json::from_str(&said.stdout).expect("JSON");
    assert_eq!(object["scheduler"], "slurm", "{object}");
    let submit = PathBuf::from(object["submit_dir"].as_str().expect("a directory"));
    let script = fs::read_to_string(only_file(&submit, ".sbatch")).expect("a script");
    assert!(script.contains("#SBATCH --signal=B:USR1@"), "{script}");
    let job = cluster.job(object["job_id"].as_str().expect("a number"));

    let begin = Instant::now();
    while ran(top).is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(120), "no job has run");
        std::thread::sleep(Duration::from_millis(50));
    }
    // What `--signal=B:USR1@…` makes Slurm send, to the same processes.
    job.signal("USR1");
    job.ends_as("FAILED");
    let first = ran(top);
    assert!(!first.is_empty() && first.len() < JOBS, "{first:?} have run");
    let rescue = fs::read_to_string(only_file(&submit, ".dag.rescue")).expect("a rescue file");
    let done = rescue.lines().filter(|line| line.contains("wait_W")).count();
    assert_eq!(
        done,
        first.len(),
        "what was running has ended and is noted: {rescue}"
    );

    let script = only_file(&submit, ".sbatch");
    let said = cluster
        .job_command("sbatch")
        .arg("--parsable")
        .arg(script)
        .within(&submit)
        .go()
        .ok();
    cluster.job(said.stdout.trim()).ends_as("COMPLETED");
    assert_eq!(ran(top), (0..JOBS).collect::<Vec<_>>(), "each job has run once");
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn without_a_scheduler_nothing_is_planned() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    inputs(folder.path());
    let said = Run::new(Flavour::Local.program("pmc-plan"))
        .within(folder.path())
        .env("PATH", "/nowhere")
        .args(["--sites", "local", "--dir", "submit", "--submit", "workflow.yml"])
        .go();
    assert_eq!(said.code(), 1, "{}", said.account());
    assert!(
        said.stderr
            .contains("none of sbatch, bsub, flux and qsub is on PATH"),
        "{}",
        said.stderr
    );
    assert!(!folder.path().join("submit").exists());
}
