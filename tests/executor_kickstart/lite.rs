//! Jobs with directories of their own end, print and leave the same, run by a task server or by a
//! `pegasus-lite` process each.

use regex::Regex;
use serde_json::{Value, json};
use testutils::Random;
use testutils::processes::family;

use super::*;

/// SHA-256 of the input.
const HELLO: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

/// Reads the input and writes the output.
const COPY: &str = "tr a-z A-Z <in >out";

/// A run with a staging directory and a directory of the node.
struct Site {
    run: Run,
}

impl Site {
    fn new<T: AsRef<[u8]>>(tasks: &[T]) -> Self {
        let site = Self { run: Run::new(tasks) };
        for name in ["staging", "node"] {
            fs::create_dir(site.run.path(name)).unwrap();
        }
        fs::write(site.run.path("staging/in"), "hello\n").unwrap();
        fs::write(site.run.path("env.sh"), "export GREETING=hello\n").unwrap();
        site
    }

    fn transfer(&self, lfn: &str, from: &Path, to: &Path) -> Value {
        json!({
            "type": "transfer", "linkage": "input", "lfn": lfn, "id": 1,
            "src_urls": [{"site_label": "local", "url": format!("file://{}", from.join(lfn).display())}],
            "dest_urls": [{"site_label": "local", "url": format!("file://{}", to.join(lfn).display())}],
        })
    }

    fn fetched(&self, lfn: &str) -> Value {
        self.transfer(lfn, &self.run.path("staging"), Path::new("$PWD"))
    }

    fn delivered(&self, lfn: &str) -> Value {
        self.transfer(lfn, Path::new("$PWD"), &self.run.path("staging"))
    }

    /// Describes a job that runs a shell script through kickstart, and delivers `out` as `output`.
    fn job(&self, script: &str, output: &str) -> Value {
        let mut delivered = self.delivered("out");
        let url = format!("file://{}", self.run.path("staging").join(output).display());
        delivered["dest_urls"][0]["url"] = url.into();
        // Only the shell must expand variables, not kickstart.
        let script = script.replace('$', "\\$");
        json!({
            "format": 1, "job": "copy", "scratch": self.run.path("node"),
            "transfer_arguments": ["--threads", "1"],
            "stage_in": [self.fetched("in")],
            "verify": [{"lfn": "in", "sha256": HELLO}],
            "run": {"kickstart": ["-n", "copy", "-s", "out=out", "/bin/sh", "-c", script]},
            "stage_out": [delivered],
            "checksum_file": self.run.path(format!("{output}.meta")),
        })
    }

    fn write(&self, name: &str, description: &Value) {
        fs::write(self.run.path(name), description.to_string()).unwrap();
    }

    fn executor(&self, arguments: &[&str]) -> Command {
        let mut command = self.run.executor(arguments);
        command.env("PEGASUS_WN_TMP_MIN_SPACE", "1");
        command
    }

    /// What is left on the node.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.run.path("node")).unwrap().flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }
}

/// Does what [`masked`] does, and masks times, names of directories and what depends on them.
fn masked_lite(text: &[u8]) -> Vec<String> {
    let masks = [
        (r"^20\d\d-[-0-9]+ [:0-9]+(,\d+)?", "TIME"),
        (r"pegasus\.[A-Za-z0-9]{9}\b", "pegasus.*"),
        (r" transferred in .*", ""),
        (r"\d+\.\d\d\d\b", "SECONDS"),
        (r"^PegasusLite: runtime \d+", "PegasusLite: runtime"),
        (
            r"^(\s*(start|duration|ts_start|ts_end|transfer_duration|date_\w+)): .*",
            "$1: *",
        ),
        (r"^(\s*\w*(size|ctime|atime|mtime)): .*", "$1: *"),
    ];
    let masks = masks.map(|(what, by)| (Regex::new(what).unwrap(), by));
    let mask = |line: String| {
        let replace = |line: String, (what, by): &(Regex, &str)| what.replace_all(&line, *by).into_owned();
        masks.iter().fold(line, replace)
    };
    masked(text).into_iter().map(mask).collect()
}

/// Writes the descriptions of all jobs of the comparison. Returns their calls.
fn descriptions(site: &Site) -> Vec<String> {
    let environment = "env | grep -v -e KICKSTART -e PMC_TOKENS -e PMC_NODE= | sort; umask; ulimit -a; ls /proc/self/fd; \
                       grep -e Sig[BIC] -e Cpus /proc/self/status; echo $GREETING >out";
    let mut jobs = vec![
        site.job(COPY, "plain"),
        site.job("echo x >out; echo error >&2; exit 3", "failed"),
        site.job("ls -a >out; pwd; pwd -P; mkdir shut; chmod 0 shut", "directory"),
        site.job(environment, "environment"),
        site.job("kill -SEGV $$", "signal"),
        site.job("true", "none"),
    ];
    let mut changed = |change: &dyn Fn(&mut Value), script: &str, output: &str| {
        let mut job = site.job(script, output);
        change(&mut job);
        jobs.push(job);
    };
    changed(
        &|job| job["stage_in"] = json!([site.fetched("missing")]),
        COPY,
        "missing",
    );
    changed(&|job| job["verify"][0]["sha256"] = "00".into(), COPY, "wrong");
    changed(
        &|job| job["env_source"] = json!(site.run.path("env.sh")),
        "echo $GREETING >out",
        "sourced",
    );
    changed(
        &|job| job["env_source"] = "/no/such/script".into(),
        COPY,
        "unsourced",
    );
    changed(&|job| job["format"] = 9.into(), COPY, "format");
    changed(
        &|job| job["transfer_arguments"] = json!(["--none"]),
        COPY,
        "arguments",
    );
    changed(
        &|job| job["checkpoint_out"] = json!([site.delivered("state")]),
        "echo one >state; exit 1",
        "checkpoint",
    );
    changed(
        &|job| job["executables"] = json!(["in"]),
        "ls -l in | cut -c1-10 >out",
        "executable",
    );
    for (script, required) in [
        ("cat in; echo error >&2; echo x >out; ls /proc/self/fd", "out"),
        ("cat in", "out"),
    ] {
        changed(
            &|job| {
                job["run"] = json!({"program": ["/bin/sh", "-c", script]});
                job["required"] = json!([required]);
                job["hashed"] = json!(["out"]);
            },
            "",
            "program",
        );
    }
    changed(
        &|job| job["run"] = json!({"program": ["no-such-program"]}),
        "",
        "no",
    );
    let calls = jobs.iter().enumerate().map(|(number, job)| {
        site.write(&format!("j{number}.json"), job);
        format!("LITE j{number}.json")
    });
    let mut calls: Vec<String> = calls.collect();
    // As in large plans, a part of a file.
    let text = site.job(COPY, "part").to_string();
    fs::write(site.run.path("all"), format!("\n{text}{{")).unwrap();
    calls.push(format!("LITE --part 1:{} all", text.len()));
    calls.push("/usr/bin/env A=1 B=2 LITE j3.json".into());
    calls.extend(["LITE none.json", "LITE", "LITE --version", "LITE --no-option"].map(str::to_owned));
    calls
}

#[test]
fn served_jobs_with_directories_equal_those_of_processes() {
    let count = descriptions(&Site::new(&[""; 0])).len();
    let run = |how: &str| {
        let site = Site::new(&[""; 0]);
        let dag = Run::new(&descriptions(&site));
        fs::copy(dag.path("x.dag"), site.run.path("x.dag")).unwrap();
        let mut executor = site.executor(&["--workers", "1"]);
        let output = executor.env("PMC_KICKSTART", how).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(site.left(), [""; 0], "{how}");
        site
    };
    let (served, executed) = (run("serve"), run("exec"));
    let name = |task: usize, kind: &str| format!("t{task}.{kind}.000");
    for task in 0..count {
        for kind in ["out", "err"] {
            let name = name(task, kind);
            let here = masked_lite(&served.run.read(&name));
            let here = moved(here, &served.run, &executed.run);
            let there = masked_lite(&executed.run.read(&name));
            assert_same(&here, &there, &name);
        }
    }
    for site in [&served, &executed] {
        assert_eq!(site.run.text("staging/plain"), "HELLO\n");
        assert_eq!(site.run.text("staging/state"), "one\n");
        assert!(site.run.text("plain.meta").contains("\"out\""));
        assert!(!site.run.path("staging/failed").exists());
        let status = |task: usize| {
            let record = site.run.record(task);
            let (_, rest) = record.rsplit_once("status=").unwrap();
            rest.split(',').next().unwrap().parse::<i32>().unwrap() >> 8
        };
        assert_eq!([0, 1, 4, 5, 6, 7].map(status), [0, 3, 139, 71, 71, 65]);
    }
    // Served jobs share a process.
    let pids = |site: &Site| -> BTreeSet<String> {
        let records = (0..4).map(|task| site.run.record(task));
        records.map(|record| value(&record, "pid").to_owned()).collect()
    };
    assert_eq!((pids(&served).len(), pids(&executed).len()), (1, 4));
}

#[test]
fn jobs_that_are_ended_deliver_checkpoint_files_and_leave_no_directory() {
    for how in ["serve", "exec"] {
        let site = Site::new(&["LITE j.json", "LITE copy.json"]);
        let mut job = site.job("echo one >state; sleep 60", "out");
        job["checkpoint_out"] = json!([site.delivered("state")]);
        site.write("j.json", &job);
        site.write("copy.json", &site.job(COPY, "copied"));
        let mut executor = site.executor(&["--workers", "1", "--runtime-limit", "3"]);
        let output = executor.env("PMC_KICKSTART", how).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{how}");
        let log = site.run.text("t0.err.000");
        assert!(log.contains("Caught SIGTERM"), "{how}: {log}");
        assert!(log.ends_with("PegasusLite: exitcode 143\n"), "{how}: {log}");
        assert!(site.run.record(0).contains("status=36608"), "{how}");
        assert_eq!(site.run.text("staging/state"), "one\n");
        assert_eq!(site.run.text("staging/copied"), "HELLO\n");
        assert_eq!(site.left(), [""; 0], "{how}");
    }
}

/// What a random SIGKILL meets.
#[derive(Clone, Copy, Debug)]
enum Victim {
    /// The master, in a run without agents with its workers.
    Executor,
    /// A worker's process in a run with agents.
    Agent,
    Server,
    Program,
}

/// Kills a process of a run. Returns whether there was one.
fn strike(executor: u32, victim: Victim, random: &mut Random) -> bool {
    let mut found = family(executor);
    found.retain(|pid| {
        // The server hides its file from others.
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        match victim {
            Victim::Executor => *pid == executor,
            Victim::Agent => *pid != executor && name.starts_with("pegasus-mpi-clu"),
            Victim::Server => name.starts_with("pegasus-kicksta"),
            Victim::Program => name.starts_with("sleep") || name.starts_with("sh"),
        }
    });
    if found.is_empty() {
        return false;
    }
    let pid = random.pick(&found);
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).is_ok()
}

/// Returns whether no process holds the directory of a job, and no program of one runs.
fn is_quiet(site: &Site) -> bool {
    let locks = |entry: fs::DirEntry| fs::read_dir(entry.path()).into_iter().flatten().flatten();
    let mut held = fs::read_dir(site.run.path("node"))
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(".pegasus-lite-"))
        .flat_map(locks)
        .filter_map(|lock| fs::File::open(lock.path()).ok());
    if held.any(|lock| lock.try_lock().is_err()) {
        return false;
    }
    let pids = fs::read_to_string(site.run.path("pids")).unwrap_or_default();
    let mut pids = pids.lines().filter_map(|pid| pid.parse().ok());
    !pids.any(|pid| is_running(Pid::from_raw(pid)))
}

/// Whatever is killed, the next job of the node removes the directories that are left. `PMC_TEST_KILLS` is
/// the number of kills.
#[test]
fn the_next_job_removes_what_killed_ones_have_left() {
    const JOBS: usize = 8;
    let kills: u64 = std::env::var("PMC_TEST_KILLS").map_or(10, |kills| kills.parse().unwrap());
    let (mut killed, mut left) = (0, 0);
    let mut round = 0;
    while killed < kills {
        round += 1;
        let mut random = Random(round);
        let tasks: Vec<String> = (0..JOBS).map(|n| format!("LITE j{n}.json")).collect();
        let site = Site::new(&tasks);
        for n in 0..JOBS {
            let script = format!(
                "echo $$ >>{}; sleep 0.0{n}; {COPY}",
                site.run.path("pids").display()
            );
            site.write(&format!("j{n}.json"), &site.job(&script, &format!("out{n}")));
        }
        let has_agents = random.one_in(4);
        let mut arguments = vec!["--tries", "3"];
        arguments.extend(if has_agents {
            &[
                "--agents",
                "1",
                "--slots",
                "2",
                "--agent-timeout",
                "2",
                "--join-timeout",
                "4",
            ][..]
        } else {
            &["--workers", "2"]
        });
        let mut executor = site.executor(&arguments);
        executor.stdout(Stdio::null()).stderr(Stdio::null());
        let mut executor = executor.spawn().unwrap();
        // Jobs have begun, so there is something to kill.
        wait(|| site.run.path("pids").exists() || executor.try_wait().unwrap().is_some());
        std::thread::sleep(Duration::from_millis(random.below(250)));
        let mut victims = [Victim::Program, Victim::Server, Victim::Agent, Victim::Executor];
        let first = random.index(victims.len());
        victims.rotate_left(first);
        let mut victims = victims.into_iter();
        // Its number belongs to it until it is reaped.
        let victim = match executor.try_wait().unwrap() {
            None => victims.find(|victim| strike(executor.id(), *victim, &mut random)),
            Some(_) => None,
        };
        killed += u64::from(victim.is_some());
        executor.wait().unwrap();
        assert!(wait(|| is_quiet(&site)), "round {round}: {victim:?}");
        left += u64::from(!site.left().is_empty());
        // The next run of the node.
        let next = Run::new(&["LITE next.json"]);
        fs::write(next.path("next.json"), site.job(COPY, "next").to_string()).unwrap();
        let mut executor = next.command(1, &[]);
        let output = executor.env("PEGASUS_WN_TMP_MIN_SPACE", "1").output().unwrap();
        assert_success(&output);
        assert_eq!(site.left(), [""; 0], "round {round}: {victim:?}");
    }
    println!("{killed} kills in {round} runs; {left} of them left something for the next one");
}
