//! `pmc-plan --submit` submits a plan to Slurm. The signal that its batch script requests drains the run. A
//! second job completes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pmc_batch::reach::command_on_host;
use pmc_batch::status::{JobEnd, JobState, JobStatus, parse, query};
use pmc_batch::{BatchJob, Scheduler};

use crate::support::command::{Program, wait_until};
use crate::support::pegasus::only_file;
use crate::support::programs::{Build, PLAN_IN_SUBMIT_RUN};
use crate::support::slurm::Cluster;

/// More jobs than the three nodes have slots.
const JOBS: usize = 12;

const SITES: &str = r#"pegasus: "5.0"
sites:
- name: local
  directories:
  - {type: sharedScratch, path: @DIR@/scratch, fileServers: [{url: "file://@DIR@/scratch", operation: all}]}
"#;

/// Scripts of slow jobs that record their numbers.
fn slow_jobs() -> Vec<String> {
    (0..JOBS)
        .map(|n| format!("sleep 3; echo {n} >>@DIR@/ran"))
        .collect()
}

/// Writes a workflow with a job for each script.
fn write_inputs(top: &Path, scripts: &[String]) {
    let mut workflow = String::from("pegasus: \"5.0\"\nname: waits\njobs:\n");
    for (n, script) in scripts.iter().enumerate() {
        workflow.push_str(&format!(
            "- {{type: job, id: W{n}, name: wait, arguments: [-c, '{script}'], uses: []}}\n"
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

/// Returns the numbers of the jobs that have run, sorted.
fn completed_jobs(top: &Path) -> Vec<usize> {
    let text = fs::read_to_string(top.join("ran")).unwrap_or_default();
    let mut numbers: Vec<usize> = text.lines().filter_map(|line| line.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// A plan for three nodes of two tasks that was submitted to Slurm.
struct Submitted {
    /// Where the workflow and the submit directory are.
    directory: tempfile::TempDir,
    submit: PathBuf,
    /// Number of the batch job.
    job: String,
}

impl Submitted {
    /// Plans the workflow with the programs of a build, and submits it.
    fn new(cluster: &Cluster, build: Build, options: &[&str]) -> Self {
        Self::with_jobs(cluster, build, options, &slow_jobs())
    }

    /// The same, with a job for each script instead of the slow jobs.
    fn with_jobs(cluster: &Cluster, build: Build, options: &[&str], scripts: &[String]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let top = directory.path();
        write_inputs(top, scripts);
        let result = cluster
            .job_command(build.program("pmc-plan"))
            .in_directory(top)
            .args(PLAN_IN_SUBMIT_RUN)
            .args(["--cleanup", "none", "--ntasks-per-node", "2"])
            .args(["--nodes", "3"].iter().filter(|_| !options.contains(&"--nodes")))
            // The script of a job is one word.
            .args(["--walltime", "10", "-Dpegasus.parser.arguments.split=false"])
            .args(options)
            .args(["-Dpegasus.memory=1", "--submit", "--json", "workflow.yml"])
            .run()
            .ok();
        let object: serde_json::Value = serde_json::from_str(&result.stdout).expect("JSON");
        assert_eq!(object["scheduler"], "slurm", "{object}");
        let text = |key: &str| object[key].as_str().expect("a text").to_owned();
        Self {
            submit: PathBuf::from(text("submit_dir")),
            job: text("job_id"),
            directory,
        }
    }
}

#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn submitted_run_drains_on_the_signal_of_slurm_and_resumes() {
    let cluster = Cluster::start();
    let plan = Submitted::new(&cluster, Build::OpenMpi, &["--drain", "4"]);
    let (top, submit) = (plan.directory.path(), &plan.submit);
    let script = fs::read_to_string(only_file(submit, ".sbatch")).expect("a script");
    assert!(script.contains("#SBATCH --signal=B:USR1@"), "{script}");
    let job = cluster.job(&plan.job);

    let started = Instant::now();
    while completed_jobs(top).is_empty() {
        assert!(started.elapsed() < Duration::from_secs(120), "no job has run");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Slurm sends this signal for `--signal=B:USR1@…`.
    job.signal("USR1");
    job.assert_ends_as("FAILED");
    let first = completed_jobs(top);
    assert!(!first.is_empty() && first.len() < JOBS, "{first:?} have run");
    let rescue = fs::read_to_string(only_file(submit, ".dag.rescue")).expect("a rescue file");
    let done = rescue.lines().filter(|line| line.contains("wait_W")).count();
    assert_eq!(
        done,
        first.len(),
        "running tasks end and are in the rescue file: {rescue}"
    );

    let script = only_file(submit, ".sbatch");
    let result = cluster
        .job_command("sbatch")
        .arg("--parsable")
        .arg(script)
        .in_directory(submit)
        .run()
        .ok();
    cluster.job(result.stdout.trim()).assert_ends_as("COMPLETED");
    assert_eq!(
        completed_jobs(top),
        (0..JOBS).collect::<Vec<_>>(),
        "each job has run once"
    );
}

/// Returns what Slurm says of a job.
fn status(cluster: &Cluster, number: &str) -> JobStatus {
    let job = BatchJob::new(Scheduler::Slurm, number).expect("a number");
    let words = query(&job);
    let result = cluster.job_command(&words[0]).args(&words[1..]).run().ok();
    parse(job.scheduler, &result.stdout).unwrap_or_else(|| panic!("no job: {}", result.details()))
}

/// While a job of ten minutes runs on three nodes, commands of the login node reach each of them.
fn assert_hosts_are_reached(cluster: &Cluster, number: &str) {
    let started = Instant::now();
    let running = loop {
        let status = status(cluster, number);
        if status.state == JobState::Running {
            break status;
        }
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "it does not start: {status:?}"
        );
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(running.nodes.len(), 3, "{running:?}");
    let left = running.time_left.expect("a limit").as_secs();
    assert!((1..=600).contains(&left), "{running:?}");
    let job = BatchJob::new(Scheduler::Slurm, number).expect("a number");
    for node in &running.nodes {
        let script = "echo $SLURMD_NODENAME; exit 3";
        let words = command_on_host(Some(&job), node, &["/bin/sh", "-c", script].map(str::to_owned));
        let result = cluster.job_command(&words[0]).args(&words[1..]).run();
        assert_eq!(
            (result.stdout.trim(), result.code()),
            (node.as_str(), 3),
            "{}",
            result.details()
        );
    }
}

/// The executor has no MPI, so the script for several nodes starts agents.
#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn agents_run_a_submitted_plan() {
    let cluster = Cluster::start();
    let plan = Submitted::new(&cluster, Build::Local, &[]);
    let (top, submit) = (plan.directory.path(), &plan.submit);
    let script = fs::read_to_string(only_file(submit, ".sbatch")).expect("a script");
    assert!(
        script.contains(" --agents \"${SLURM_JOB_NUM_NODES:-3}\" --launch srun --slots 2 "),
        "{script}"
    );
    let job = cluster.job(&plan.job);
    assert_hosts_are_reached(&cluster, &plan.job);
    job.assert_ends_as("COMPLETED");
    assert_eq!(
        completed_jobs(top),
        (0..JOBS).collect::<Vec<_>>(),
        "each job has run once"
    );
    let ended = status(&cluster, &plan.job);
    assert_eq!(ended.state, JobState::Ended(JobEnd::Success), "{ended:?}");
    let log = fs::read_to_string(only_file(submit, ".dag.dagman.out")).expect("a log");
    assert!(log.contains("EXITING WITH STATUS 0"), "{log}");
}

/// Processes whose command lines have this word, and that work in this directory.
fn processes(word: &str, directory: &Path) -> Vec<i32> {
    let all = fs::read_dir("/proc").expect("a list").flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_meant = |pid: &i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0);
        let is_executor = words
            .next()
            .is_some_and(|name| name.ends_with(b"/pegasus-mpi-cluster"));
        let place = fs::read_link(format!("/proc/{pid}/cwd"));
        is_executor
            && words.any(|other| other == word.as_bytes())
            && place.is_ok_and(|place| place == directory)
    };
    numbers.filter(is_meant).collect()
}

/// The executor of a batch job is killed twice. What its agents ran counts, and no host gets a second one.
#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn a_killed_executor_starts_again_in_its_job() {
    let cluster = Cluster::start();
    let plan = Submitted::new(&cluster, Build::Local, &[]);
    let (top, submit) = (plan.directory.path(), &plan.submit);
    let job = cluster.job(&plan.job);
    for done in [1, 5] {
        wait_until("too few jobs have run", 120, || completed_jobs(top).len() >= done);
        let masters = processes("--launch", submit);
        let [master] = masters[..] else {
            panic!("{masters:?} run")
        };
        assert_eq!(
            processes("--agent", submit).len(),
            6,
            "guards and agents of three nodes"
        );
        let master = nix::unistd::Pid::from_raw(master);
        nix::sys::signal::kill(master, nix::sys::signal::Signal::SIGKILL).expect("it is there");
        wait_until("it does not start again", 60, || {
            processes("--launch", submit)
                .iter()
                .any(|pid| *pid != master.as_raw())
        });
    }
    while completed_jobs(top).len() < JOBS {
        assert!(
            processes("--agent", submit).len() <= 6,
            "a node has a second agent"
        );
        if job.value("JobState") != "RUNNING" {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    job.assert_ends_as("COMPLETED");
    assert_eq!(
        completed_jobs(top),
        (0..JOBS).collect::<Vec<_>>(),
        "each job has run once"
    );
}

/// The master runs on another host than the commands: they reach it through its batch job.
#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn a_run_is_controlled_from_the_login_node() {
    let cluster = Cluster::start();
    let plan = Submitted::new(&cluster, Build::Local, &[]);
    let (top, submit) = (plan.directory.path(), &plan.submit);
    let dag = only_file(submit, ".dag");
    let place = dag.with_extension("dag.place");
    wait_until("it does not start", 120, || place.exists());
    let pmc = |words: &[&str]| {
        // Variables of a step in which the user may be do not count.
        cluster
            .job_command(Build::Local.program("pmc"))
            .env("SLURM_NTASKS", "7")
            .args(words)
            .in_directory(submit)
            .run()
    };
    let nodes = || {
        let nodes = pmc(&["nodes", ".", "--json"]).ok();
        serde_json::from_str::<serde_json::Value>(&nodes.stdout).expect("JSON")
    };
    let nodes = nodes();
    let hosts: Vec<&str> = nodes
        .as_array()
        .expect("hosts")
        .iter()
        .filter_map(|node| node["host"].as_str())
        .collect();
    let known = cluster.node_names();
    assert!(
        hosts.iter().all(|host| known.contains(&(*host).to_owned())),
        "{nodes}"
    );
    let tasks = fs::read_to_string(&dag).expect("a DAG");
    let waiting = tasks.lines().rev().find_map(|line| line.strip_prefix("TASK "));
    let waiting = waiting.and_then(|line| line.split(' ').next()).expect("a task");
    let why = pmc(&["why", waiting, "."]).ok();
    assert!(why.stdout.contains(waiting), "{}", why.details());
    let wrong = pmc(&["why", "no-such-task", "."]);
    assert_eq!(wrong.code(), 4, "{}", wrong.details());
    assert!(
        wrong.stderr.contains("the DAG has no task no-such-task"),
        "{}",
        wrong.details()
    );
    let drained = pmc(&["drain", ".", "--in", "1h"]).ok();
    assert!(
        drained.stdout.contains("no more tasks start in 3600 seconds"),
        "{}",
        drained.details()
    );
    cluster.job(&plan.job).assert_ends_as("COMPLETED");
    assert_eq!(completed_jobs(top).len(), JOBS);

    // What others could have written there is no command.
    assert!(!place.exists(), "the run has ended");
    for (text, said) in [
        ("-oProxyCommand=touch${IFS}stolen\n", "no run of"),
        (
            "nowhere.invalid\n",
            "the run goes on on the host nowhere.invalid, which cannot be reached from here",
        ),
    ] {
        fs::write(&place, text).expect("a file");
        let result = pmc(&["nodes", "."]);
        assert_eq!(result.code(), 4, "{}", result.details());
        assert!(result.stderr.contains(said), "{}", result.details());
    }
    // A run that was killed with its batch job leaves the file.
    fs::write(&place, format!("n1\nslurm {}\n", plan.job)).expect("a file");
    let result = pmc(&["nodes", "."]);
    assert_eq!(result.code(), 4, "{}", result.details());
    let said = format!("the run does not go on: the batch job {} has ended", plan.job);
    assert!(result.stderr.contains(&said), "{}", result.details());
    fs::write(&place, "nowhere.invalid\n").expect("a file");
    let result = pmc(&["nodes", "."]);
    assert!(
        result.stderr.contains("hint: call it there: pmc nodes ."),
        "{}",
        result.details()
    );
    assert!(!submit.join("stolen").exists());
}

/// Prints, also what would clear a terminal, until there is a file.
const PRINTS: &str = r#"echo begun; printf "\033[2J"; while [ ! -e @DIR@/go ]; do sleep 0.1; done; echo end"#;

/// What kickstart captures of a running task is shown on the login node, and a task is killed from there.
#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn tasks_are_watched_and_killed_from_the_login_node() {
    let cluster = Cluster::start();
    let scripts = [PRINTS, "exec sleep 1000"].map(str::to_owned);
    let plan = Submitted::with_jobs(&cluster, Build::Local, &["--nodes", "2"], &scripts);
    let (top, submit) = (plan.directory.path(), &plan.submit);
    let pmc = |words: &[&str]| {
        let program = cluster.job_command(Build::Local.program("pmc"));
        program.args(words).in_directory(submit)
    };
    wait_until("the tasks do not run", 120, || {
        let status = pmc(&["status", "--json", "."]).run().stdout;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_default();
        status["running"]
            .as_array()
            .is_some_and(|running| running.len() == 2)
    });
    wait_until("no live output", 60, || {
        pmc(&["log", "wait_W0", "."]).run().stdout.contains("begun")
    });
    // A terminal gets no control characters, although there is none on the other host.
    let line = format!("{} log wait_W0 .", Build::Local.program("pmc").display());
    let terminal = cluster.job_command("script").in_directory(submit);
    let shown = terminal.args(["-qec", &line, "/dev/null"]).run().ok();
    assert!(shown.stdout.contains("begun"), "{}", shown.details());
    assert!(!shown.stdout.contains("\u{1b}[2J"), "{}", shown.details());

    let followed = pmc(&["log", "-f", "wait_W0", "."]).start();
    let attached = pmc(&["attach", "--tag", "wait_W0", "."]).start();
    let refused = pmc(&["kill", "no-such-task", "."]).run();
    assert_eq!(refused.code(), 4, "{}", refused.details());
    assert!(!refused.stderr.contains("exit code"), "{}", refused.details());
    pmc(&["kill", "wait_W1", "."]).run().ok();
    wait_until("the other task goes on", 60, || {
        let analyzed = pmc(&["analyzer", "."]).run();
        analyzed.stdout.contains("wait_W1")
    });
    fs::write(top.join("go"), "").expect("a file");
    let followed = followed.wait().ok();
    assert_eq!(followed.stdout, "begun\n\u{1b}[2Jend\n", "{}", followed.details());
    let attached = attached.wait().ok();
    let lines: Vec<&str> = attached.stdout.lines().collect();
    assert!(lines[0].ends_with(",stdout] begun"), "{}", attached.details());
    assert!(lines[1].ends_with("end"), "{}", attached.details());
    cluster.job(&plan.job).assert_ends_as("FAILED");
}

/// The user asks for fewer nodes than the plan does.
#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn the_number_of_agents_is_that_of_the_nodes_of_the_job() {
    let cluster = Cluster::start();
    let plan = Submitted::new(&cluster, Build::Local, &[]);
    let (top, submit) = (plan.directory.path(), &plan.submit);
    cluster.job(&plan.job).cancel();
    let script = only_file(submit, ".sbatch");
    let result = cluster
        .job_command("sbatch")
        .args(["--parsable", "--nodes=2"])
        .arg(script)
        .in_directory(submit);
    let result = result.run().ok();
    let started = Instant::now();
    cluster.job(result.stdout.trim()).assert_ends_as("COMPLETED");
    assert_eq!(
        completed_jobs(top),
        (0..JOBS).collect::<Vec<_>>(),
        "each job has run once"
    );
    let said = fs::read_to_string(only_file(submit, ".err")).unwrap_or_default();
    assert!(!said.contains("did not come"), "{said}");
    assert!(
        started.elapsed() < Duration::from_secs(120),
        "it has waited for a third agent"
    );
}

/// `srun` ends all its processes some time after the first one has ended, unless it is told not to.
#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn a_drained_agent_takes_no_others_with_it() {
    let cluster = Cluster::configured("WaitTime=5\n");
    let plan = Submitted::new(&cluster, Build::Local, &[]);
    let (top, submit) = (plan.directory.path(), &plan.submit);
    let pmc = |words: &[&str]| {
        cluster
            .job_command(Build::Local.program("pmc"))
            .args(words)
            .in_directory(submit)
            .run()
    };
    let hosts = || {
        let nodes = pmc(&["nodes", ".", "--json"]).stdout;
        let nodes: serde_json::Value = serde_json::from_str(&nodes).unwrap_or_default();
        let nodes = nodes.as_array().cloned().unwrap_or_default();
        let names = nodes
            .iter()
            .filter_map(|node| node["host"].as_str().map(str::to_owned));
        names.collect::<Vec<_>>()
    };
    wait_until("not all agents come", 120, || {
        hosts().len() == cluster.node_names().len()
    });
    let last = hosts().pop().expect("a host");
    pmc(&["nodes", ".", "--drain", &last]).ok();
    cluster.job(&plan.job).assert_ends_as("COMPLETED");
    assert_eq!(
        completed_jobs(top),
        (0..JOBS).collect::<Vec<_>>(),
        "each job has run once"
    );
}

/// The variables of the step say that it has two tasks. The batch job inherits them.
#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn a_step_of_two_tasks_submits_a_run() {
    let cluster = Cluster::start();
    let plan = Submitted::new(&cluster, Build::Local, &[]);
    let (top, submit) = (plan.directory.path(), &plan.submit);
    cluster.job(&plan.job).cancel();
    let run = |line: &str| {
        let step = format!("[ $SLURM_PROCID = 1 ] || {line}");
        let result = cluster
            .job_command("srun")
            .args(["-N1", "-n2", "--mpi=none", "sh", "-c", &step])
            .in_directory(submit);
        let number = result.run().ok().stdout.trim().to_owned();
        cluster.job(&number).assert_ends_as("COMPLETED");
    };
    let script = only_file(submit, ".sbatch");
    run(&format!("sbatch --parsable {}", script.display()));
    assert_eq!(
        completed_jobs(top),
        (0..JOBS).collect::<Vec<_>>(),
        "each job has run once"
    );
    // Without agents, too.
    fs::write(
        submit.join("one.dag"),
        "TASK a /bin/sh -c 'echo 99 >>../../ran'\n",
    )
    .expect("a file");
    let executor = Build::Local.program("pegasus-mpi-cluster");
    run(&format!(
        "sbatch --parsable -N1 --wrap '{} one.dag'",
        executor.display()
    ));
    assert!(completed_jobs(top).contains(&99));
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn submission_without_a_scheduler_writes_no_plan() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    write_inputs(directory.path(), &slow_jobs());
    let result = Program::new(Build::Local.program("pmc-plan"))
        .in_directory(directory.path())
        .env("PATH", "/nowhere")
        .args(["--sites", "local", "--dir", "submit", "--submit", "workflow.yml"])
        .run();
    assert_eq!(result.code(), 1, "{}", result.details());
    assert!(
        result
            .stderr
            .contains("none of sbatch, bsub, flux and qsub is on PATH"),
        "{}",
        result.stderr
    );
    assert!(!directory.path().join("submit").exists());
}
