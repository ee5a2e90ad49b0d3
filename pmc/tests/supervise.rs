//! `pmc supervise` with a batch system of scripts, and the job script of the TCS checkpoint system.

#![expect(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use monitord_compat::batch_jobs::{self, Event};

/// The job script of the paper's Appendix C. Its last line started the program.
const APPENDIX_C: &str = r#"#!/bin/sh
#
# Define your PBS directives here...
#
#PBS -l walltime=10:00
#
# Run the recovery for successive, restarted runs
# (On the first invocation, it will just return a zero...)
#
# !! Do this first !!
# Do not continue your job in the case of a non-zero return value!
#
tcsrecover
if [ $? -ne 0 ]; then
echo "Recovery Failed!"
exit 1
fi
#
# Check if this job is running under restart.
# If so, then avoid redundant setup operations.
#
tcsisrestart
if [ $? -ne 1 ]; then
far rget input_files/ $STAGEDIR
fi
#
# Uncomment one of these to select a specific checkpoint plan
# (A1, A2, B1, B2, C1, C2 -- default is C1)
#
#TCS_PLAN=B2
#TCS_PLAN=C1
#export TCS_PLAN
#
# run the job
#
pmc supervise . -- pegasus-mpi-cluster --workers 1 --jobstate-log --monitord-hack --per-task-stdio w.dag
"#;

/// A directory with a DAG, and with programs that stand in for others.
struct Scene(tempfile::TempDir);

impl Scene {
    fn new(dag: &str) -> Self {
        let scene = Self(tempfile::tempdir().unwrap());
        fs::write(scene.path("w.dag"), dag).unwrap();
        fs::create_dir(scene.path("bin")).unwrap();
        // The machine may have a batch system.
        for name in ["sbatch", "squeue", "scancel", "sinfo", "qstat", "qsub", "qdel"] {
            scene.script(&format!("bin/{name}"), "exit 1");
        }
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn dag(&self) -> PathBuf {
        self.path("w.dag")
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A command that finds the programs of this project, those of the scene, and the tools of `share/tcs`.
    fn command(&self, words: &[&str]) -> Command {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../share/tcs/bin");
        let programs = testutils::programs::directory();
        let path = format!(
            "{}:{}:{}:/usr/bin:/bin",
            self.path("bin").display(),
            tools.display(),
            programs.display()
        );
        let mut command = Command::new("/usr/bin/env");
        command
            .args(words)
            .env_clear()
            .env("PATH", path)
            .current_dir(self.0.path());
        command
    }

    /// Runs a command of the shell as the job 17 of Slurm, with one that may follow.
    fn supervise(&self, script: &str) -> Output {
        let words = [
            "pmc",
            "supervise",
            "--resubmit",
            "1",
            ".",
            "--",
            "/bin/sh",
            "-c",
            script,
        ];
        self.command(&words).env("SLURM_JOB_ID", "17").output().unwrap()
    }

    fn events(&self) -> Vec<Event> {
        let entries = batch_jobs::read(&self.dag()).into_iter();
        entries.map(|entry| entry.event).collect()
    }

    /// The jobs that were handed in, and those that were cancelled.
    fn chain(&self) -> Vec<String> {
        let changes = self.events().into_iter().filter_map(|event| match event {
            Event::Next { next } => Some(format!("next {next}")),
            Event::Cancel { next } => Some(format!("cancel {next}")),
            _ => None,
        });
        changes.collect()
    }

    /// How the command ended, and what was done.
    fn end(&self) -> String {
        let end = self.events().into_iter().rev().find_map(|event| match event {
            Event::End { end, action, .. } => Some(format!("{end} {action}")),
            _ => None,
        });
        end.unwrap()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The first job ends with its executor; the second one stages nothing in, and goes on.
#[test]
fn the_job_script_of_the_paper_runs() {
    let scene = Scene::new("TASK a ./task.sh a\nTASK b ./task.sh b\nEDGE a b\n");
    scene.script("bin/far", "echo far $* >> staged");
    // The first attempt of b saves its work, and ends with its job.
    scene.script(
        "task.sh",
        "tcsisrestart; echo \"$1 $?\" >> restarts; [ $1 = b ] || exit 0\n\
         if pmc checkpoint get s s; then cat s >> goes_on; exit 0; fi\n\
         echo saved > s; pmc checkpoint put s s; kill -9 $(cat executor)",
    );
    let script = APPENDIX_C.replace(
        "-- pegasus",
        "-- /bin/sh -c 'echo $$ > executor; exec \"$@\"' sh pegasus",
    );
    fs::write(scene.path("job.sh"), script).unwrap();
    let run = |job: &str| {
        let mut command = scene.command(&["/bin/sh", "job.sh"]);
        command
            .env("PBS_JOBID", job)
            .env("STAGEDIR", "/stage")
            .output()
            .unwrap()
    };
    let first = run("1.server");
    assert_eq!(first.status.code(), Some(137), "{}", stderr(&first));
    assert_eq!(scene.end(), "killed again", "{}", stderr(&first));
    let second = run("2.server");
    assert_eq!(second.status.code(), Some(0), "{}", stderr(&second));
    // A run outside of a submit directory says it by its exit code.
    assert_eq!(scene.end(), "not-begun stop", "{}", stderr(&second));
    assert_eq!(scene.read("staged"), "far rget input_files/ /stage\n");
    assert_eq!(scene.read("goes_on"), "saved\n");
    assert_eq!(scene.read("restarts"), "a 0\nb 0\nb 1\n");
    let costs = scene.command(&["tcscalctime"]).output().unwrap();
    let text = String::from_utf8_lossy(&costs.stdout).into_owned();
    assert!(
        costs.status.success() && text.contains("1.server") && text.contains("2.server"),
        "{text}"
    );
    let clear = scene.command(&["tcsrmjob", "."]).output().unwrap();
    assert!(clear.status.success(), "{}", stderr(&clear));
}

/// The workflow does not wait for a batch system that is slow, and its answer counts when it comes.
#[test]
fn a_workflow_begins_before_the_next_job_is_handed_in() {
    let scene = Scene::new("TASK a x\n");
    scene.script(
        "bin/sbatch",
        "until [ -e begun ]; do sleep 0.05; done; echo Submitted batch job 18",
    );
    let output = scene.supervise("touch begun; exit 75");
    assert_eq!(output.status.code(), Some(75), "{}", stderr(&output));
    assert_eq!(scene.chain(), ["next slurm 18"], "{}", stderr(&output));
    assert_eq!(scene.end(), "not-begun again");
}

#[test]
fn a_batch_system_that_was_away_is_asked_again_at_the_end() {
    let scene = Scene::new("TASK a x\n");
    let away = "echo 'sbatch: error: Unable to contact the controller' >&2; exit 1";
    scene.script(
        "bin/sbatch",
        &format!("[ -e once ] && {{ echo Submitted batch job 18; exit 0; }}; touch once; {away}"),
    );
    let output = scene.supervise("until [ -e once ]; do sleep 0.05; done; sleep 0.5; exit 75");
    let said = stderr(&output);
    assert_eq!(said.matches("No job follows this one: ").count(), 1, "{said}");
    assert!(
        said.contains("Unable to contact the controller") && said.contains("The job 18 follows"),
        "{said}"
    );
    assert_eq!(scene.chain(), ["next slurm 18"], "{said}");
    // One for which nothing is left is not handed in any more.
    fs::remove_file(scene.path("once")).unwrap();
    fs::remove_file(scene.path("w.dag.jobs")).unwrap();
    scene.supervise("until [ -e once ]; do sleep 0.05; done; sleep 0.5; exit 0");
    assert_eq!((scene.end().as_str(), scene.chain().len()), ("not-begun stop", 0));
}

/// Compute nodes may not submit: the user gets the command, once, and the workflow runs.
#[test]
fn a_node_that_may_not_submit_says_what_to_do() {
    let scene = Scene::new("TASK a x\n");
    scene.script("bin/sbatch", "echo 'sbatch: error: Access denied' >&2; exit 1");
    let output = scene.supervise("exit 75");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(75), "{said}");
    assert_eq!(said.matches("Access denied").count(), 1, "{said}");
    assert!(
        said.contains("submit it by hand: sbatch ") && said.contains("w.sbatch"),
        "{said}"
    );
    assert!(scene.chain().is_empty(), "{said}");
}

#[test]
fn the_next_job_is_cancelled_if_nothing_is_left_for_it() {
    let scene = Scene::new("TASK a x\n");
    scene.script("bin/sbatch", "echo Submitted batch job 18");
    scene.script("bin/scancel", "echo $* >> cancelled");
    let output = scene.supervise("sleep 0.3; exit 1");
    assert_eq!(
        scene.chain(),
        ["next slurm 18", "cancel slurm 18"],
        "{}",
        stderr(&output)
    );
    assert_eq!(scene.read("cancelled"), "18\n");
    assert_eq!(scene.end(), "not-begun give-up");
}

/// A file of another version counts as none: what the command says by its exit code is done.
#[test]
fn an_end_that_nobody_knows_is_none() {
    let scene = Scene::new("TASK a x\n");
    let unknown = r#"echo '{"end":"exploded","done":1,"left":2,"lost_nodes":[],"seconds":3}' > w.dag.end"#;
    let output = scene.supervise(&format!("{unknown}; exit 3"));
    let said = stderr(&output);
    assert_eq!(
        (output.status.code(), scene.end().as_str()),
        (Some(3), "not-begun give-up"),
        "{said}"
    );
    assert!(
        said.contains("No job follows, since the command ended with 3 before the run began"),
        "{said}"
    );
}

/// What a run has written: its files, and what the logs say but times, numbers of processes and names of
/// attempts' files.
fn logs(scene: &Scene) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(scene.0.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        // The ledger is new.
        .filter(|name| name != "bin" && name != "w.dag.jobs")
        .collect();
    names.sort();
    let mut lines = Vec::new();
    for name in names {
        let text = scene.read(&name);
        let parts = |line: &str| match name.as_str() {
            // Seconds, free slots, CPUs, memory, host.
            "w.dag.resource" => line.split(',').skip(1).collect::<Vec<_>>().join(","),
            // Seconds, task, state, number.
            "jobstate.log" => line.split(' ').skip(1).take(3).collect::<Vec<_>>().join(" "),
            "w.dag.rescue" => line.to_owned(),
            _ => String::new(),
        };
        let own = text.lines().map(|line| format!("{name}: {}", parts(line)));
        lines.extend(own);
    }
    lines.sort();
    lines
}

/// A run in which nothing goes wrong, or a task fails, is the same whether or not it has a supervisor.
#[test]
fn an_undisturbed_run_has_the_slots_logs_and_exit_codes_of_one_without_supervisor() {
    for (last, code) in [("exit 0", 0), ("exit 3", 1)] {
        let dag = "TASK a ./task.sh\nTASK b ./task.sh\nTASK c ./last.sh\nEDGE a b\nEDGE b c\n";
        let run = |words: &[&str]| {
            let scene = Scene::new(dag);
            scene.script("task.sh", "exit 0");
            scene.script("last.sh", last);
            let executor = [
                "pegasus-mpi-cluster",
                "--workers",
                "2",
                "--host-cpus",
                "2",
                "--host-memory",
                "100",
                "--jobstate-log",
                "--monitord-hack",
                "--per-task-stdio",
                "--tries",
                "1",
                "w.dag",
            ];
            let output = scene.command(&[words, &executor].concat()).output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
            (logs(&scene), output.status.code())
        };
        let (bare, supervised) = (run(&[]), run(&["pmc", "supervise", "--minutes", "9", ".", "--"]));
        assert_eq!(bare, supervised);
        assert!(
            bare.0.iter().any(|line| line.starts_with("w.dag.resource: 1,")),
            "{bare:?}"
        );
    }
}

/// The ledger has what the batch system and the script say of the job.
#[test]
fn the_ledger_has_slots_and_limit_of_a_job() {
    let scene = Scene::new("TASK a x\n");
    let words = ["pmc", "supervise", "--minutes", "90", ".", "--", "/bin/true"];
    let job = [
        ("SLURM_JOB_ID", "17"),
        ("SLURM_JOB_NODELIST", "n[1-2]"),
        ("SLURM_NTASKS", "8"),
    ];
    let output = scene.command(&words).envs(job).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let known = scene.events().into_iter().find_map(|event| match event {
        Event::Begin {
            nodes, slots, limit, ..
        } => Some((nodes.len(), slots, limit)),
        _ => None,
    });
    assert_eq!(known, Some((2, Some(8), Some(90))));
}
