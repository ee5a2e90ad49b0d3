//! `pmc launch` in a batch job: launches share a session, which has the nodes of the job.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testutils::Random;

use crate::support::command::{Program, wait_until};
use crate::support::programs::Build;
use crate::support::slurm::Cluster;

/// A rank: it notes where it is while it runs.
const RANK: &str = "#!/bin/sh\n\
    here=running/$(hostname).$PMC_LAUNCH_RANK.$$\n\
    : > $here; ls running | grep -c \"^$(hostname)\\.\" >> most.$(hostname)\n\
    sleep 0.3; rm $here; echo rank $PMC_LAUNCH_RANK of $PMC_LAUNCH_SIZE with $OWN in ${PWD##*/}\n";

/// A rank that would run for long.
const LONG: &str = "#!/bin/sh\necho $$ > long.$(hostname).$PMC_LAUNCH_RANK; sleep 1000\n";

/// A batch job of three nodes in which a script runs.
struct Scene {
    cluster: Cluster,
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self {
            cluster: Cluster::start(),
            folder: tempfile::tempdir().expect("a temporary directory"),
        };
        fs::create_dir(scene.folder.path().join("running")).expect("a directory");
        scene.script("rank", RANK);
        scene.script("long", LONG);
        scene
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        fs::write(&path, text).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
    }

    /// Runs a script as a batch job, with `pmc` in `$PMC`. Returns what it has written.
    fn run(&self, script: &str) -> String {
        let top = self.folder.path();
        let pmc = Build::Local.program("pmc");
        let text = format!(
            "export XDG_STATE_HOME={}/state PMC={}\nexec > said 2>&1\n{script}\necho the end\n",
            top.display(),
            pmc.display()
        );
        let job = self
            .cluster
            .sbatch_script(Program::new("sbatch").in_directory(top), &text);
        wait_until("the batch job does not end", 240, || {
            self.said().ends_with("the end\n")
        });
        job.assert_ends_as("COMPLETED");
        self.said()
    }

    fn said(&self) -> String {
        fs::read_to_string(self.folder.path().join("said")).unwrap_or_default()
    }

    /// What the sessions of this test have logged.
    fn log(&self) -> String {
        let sessions = fs::read_dir(self.folder.path().join("state/pmc"));
        let sessions: Vec<_> = sessions.into_iter().flatten().flatten().collect();
        assert_eq!(sessions.len(), 1, "a batch job has one session");
        fs::read_to_string(sessions[0].path().join("run/tasks.dag.dagman.out")).unwrap_or_default()
    }
}

/// Each launch has its own directory, environment, arguments and exit code.
#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn launches_at_once_share_the_nodes_of_a_batch_job() {
    let scene = Scene::new();
    let said = scene.run(
        "for i in 1 2 3 4 5 6 7 8; do OWN=$i $PMC launch -q -n 2 ./rank > out.$i 2>&1 & all=\"$all $!\"; done\n\
         for pid in $all; do wait $pid || echo failed $?; done\n\
         squeue --steps --noheader --format=%i | grep -v batch | grep -vc extern | sed 's/^/steps /'\n\
         $PMC launch -q -N 3 sh -c 'hostname; cat' < rank > input; echo code $?\n\
         mkdir sub; cd sub; OWN=$ $PMC launch -n 1 sh -c 'echo $OWN ${PWD##*/}; umask; exit 7'; echo code $?; cd ..\n\
         $PMC launch -n 1 sh -c 'kill -9 $$'; echo code $?\n\
         $PMC launch -N 4 true; echo code $?\n\
         $PMC launch -n 1000 true; echo code $?\n\
         $PMC launch --on nowhere true; echo code $?\n\
         $PMC launch -n 1 ./missing; echo code $?\n\
         $PMC launch -q -N 3 ./long & long=$!; while [ $(ls | grep -c '^long\\.') -lt 3 ]; do sleep 0.05; done\n\
         $PMC launch --immediate -N 3 -n 6 true; echo code $?\n\
         $PMC launch -q -N 3 -n 6 true & late=$!; sleep 1; kill -INT $late; wait $late; echo late $?\n\
         kill -TERM $long; wait $long; echo long $?\n",
    );
    for number in 1..=8 {
        let out = fs::read_to_string(scene.folder.path().join(format!("out.{number}"))).expect("output");
        for rank in 0..2 {
            let name = scene.folder.path().file_name().expect("a name").to_string_lossy();
            let line = format!("rank {rank} of 2 with {number} in {name}\n");
            assert!(out.contains(&line), "{out}\n{said}");
        }
    }
    assert!(!said.contains("failed"), "{said}");
    assert!(
        said.contains("steps 1\n"),
        "launches start no steps of the job: {said}"
    );
    let input = fs::read_to_string(scene.folder.path().join("input")).expect("output");
    for node in scene.cluster.node_names() {
        assert!(input.contains(&format!("{node}\n")), "{input}\n{said}");
        // Two CPUs of each node.
        let most = fs::read_to_string(scene.folder.path().join(format!("most.{node}"))).unwrap_or_default();
        let most = most.lines().filter_map(|line| line.parse::<u32>().ok()).max();
        assert!(most.is_none_or(|most| most <= 2), "{node}: {most:?}");
    }
    assert!(input.contains(RANK), "rank 0 has the input: {input}");
    assert!(said.contains("$ sub\n"), "{said}");
    for line in ["code 7", "code 137"] {
        assert!(said.lines().any(|known| known == line), "{line}: {said}");
    }
    for why in [
        "it needs 4 nodes, and job ",
        " has 3\n",
        "1000 ranks need 1000 CPUs, and job ",
        "nowhere is no host of job ",
        "./missing: ",
    ] {
        assert!(said.contains(why), "{why}: {said}");
    }
    assert_eq!(said.matches("code 4\n").count(), 5, "{said}");
    // One that waits is withdrawn, one that runs gets SIGTERM.
    assert!(said.contains("late 4\n") && said.contains("long 143\n"), "{said}");
    scene.log();
}

/// Words of the process of a session.
const SESSION: &[&str] = &["serve", "--agents"];

/// The launch that runs says so once, and the next one starts when all that was left has ended.
#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn nothing_is_left_of_a_session_that_was_killed() {
    let scene = Scene::new();
    let top = scene.folder.path().to_owned();
    let killer = std::thread::spawn(move || {
        wait_until("no launch begins", 120, || top.join("begun").exists());
        let found = processes(&top, SESSION);
        assert_eq!(found.len(), 1, "a batch job has one session");
        kill(found[0], Signal::SIGKILL).expect("a signal");
    });
    let said = scene.run(
        "$PMC launch -N 3 ./long 2> first & first=$!\n\
         while [ $(ls | grep -c '^long\\.') -lt 3 ]; do sleep 0.05; done\n\
         : > begun; wait $first; echo ended $?\n\
         $PMC launch -q -N 3 sh -c \\\n\
         'for pid in $(cat long.$(hostname).*); do kill -0 $pid 2>&- && echo left; done; hostname' 2> second\n\
         echo next $?; cat first second; ls state/pmc/*; grep -c ^TASK state/pmc/*/run/tasks.dag\n",
    );
    killer.join().expect("the session was killed");
    assert!(said.contains("ended 4\n") && said.contains("next 0\n"), "{said}");
    assert!(!said.contains("left\n"), "{said}");
    for node in scene.cluster.node_names() {
        assert!(said.contains(&format!("{node}\n")), "{said}");
    }
    for (why, times) in [
        ("was killed, and this launch with it", 1),
        ("was killed: a new one starts", 1),
    ] {
        assert_eq!(said.matches(why).count(), times, "{said}");
    }
    assert!(!said.contains("launch-"), "a ticket is left: {said}");
    assert!(
        said.ends_with("\n1\nthe end\n"),
        "the new session has one launch: {said}"
    );
}

/// Whatever is killed, no rank is left soon after, and the next launch has all hosts. As many rounds as
/// `PMC_TEST_LAUNCH_KILLS` says.
#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn nothing_is_left_of_a_launch_after_a_kill() {
    let scene = Scene::new();
    let rounds = std::env::var("PMC_TEST_LAUNCH_KILLS").ok();
    let rounds: u32 = rounds.and_then(|text| text.parse().ok()).unwrap_or(6);
    let top = scene.folder.path().to_owned();
    let killer = std::thread::spawn(move || {
        let mut random = Random(u64::from(std::process::id()));
        for round in 0..rounds {
            wait_until("a round does not begin", 120, || {
                top.join(format!("round.{round}")).exists()
            });
            kill_one(&top, round, &mut random);
            fs::write(top.join(format!("killed.{round}")), "").expect("a file");
        }
    });
    let script = format!(
        "for i in $(seq 0 {}); do\n\
         rm -f long.*; $PMC launch --wait 1 -N 3 ./long & launch=$!\n\
         while [ $(ls | grep -c '^long\\.') -lt 3 ]; do sleep 0.05; done\n\
         echo $launch > launch.$i; : > round.$i\n\
         while [ ! -e killed.$i ]; do sleep 0.05; done\n\
         wait $launch; echo ended $?\n\
         $PMC launch -q -N 3 hostname; echo next $?\n\
         done",
        rounds - 1
    );
    let said = scene.run(&script);
    killer.join().expect("all that was killed has gone");
    assert_eq!(said.matches("next 0\n").count() as u32, rounds, "{said}");
    assert!(!said.contains("ended 0\n"), "{said}");
}

/// Processes of this test whose command line has these words.
fn processes(top: &Path, words: &[&str]) -> Vec<Pid> {
    let all = fs::read_dir("/proc").expect("processes").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_meant = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let top = top.to_string_lossy();
        let is_own = String::from_utf8_lossy(&environment).contains(&*top) || line.contains(&*top);
        is_own && words.iter().all(|word| line.contains(word))
    };
    pids.filter(is_meant).map(Pid::from_raw).collect()
}

/// Kills a part of the launch that runs.
fn kill_one(top: &Path, round: u32, random: &mut Random) {
    let victims: [&[&str]; 5] = [
        &["pmc launch", "./long"],
        &["pmc-launch", "./long"],
        &["pmc-launch", "--proxy"],
        &["/bin/sh ./long"],
        SESSION,
    ];
    let words = victims[round as usize % victims.len()];
    std::thread::sleep(Duration::from_millis(random.below(50)));
    let found: Vec<Pid> = processes(top, words);
    let victim = found.get(random.below(found.len().max(1) as u64) as usize);
    let victim = *victim.unwrap_or_else(|| panic!("there is no {words:?}"));
    kill(victim, Signal::SIGKILL).expect("a signal");
    wait_until(&format!("ranks are left after a kill of {words:?}"), 30, || {
        processes(top, &["./long"]).is_empty()
    });
}

/// Prints what launches of a session take, and what it takes to send a program of `PMC_BCAST_MB` megabytes to
/// all nodes, beside `sbcast`.
#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn times_of_launches_in_a_batch_job_are_printed() {
    let scene = Scene::new();
    let megabytes = std::env::var("PMC_BCAST_MB").unwrap_or_else(|_| "2".to_owned());
    let script = format!(
        "#!/bin/bash\nt() {{ local a=$EPOCHREALTIME b; \"${{@:2}}\" || exit; b=$EPOCHREALTIME; \
         echo $1 $(((${{b/./}} - ${{a/./}}) / 1000)) ms; }}\n\
         (printf '#!/bin/sh\\nexit 0\\n'; head -c {megabytes}000000 /dev/urandom) > prog; chmod +x prog\n\
         t first $PMC launch -q -n 3 true\n\
         for i in 1 2 3 4 5; do t next $PMC launch -q -n 3 true; done\n\
         for i in 1 2 3; do\n\
         t sbcast sbcast --force prog $PWD/copy\n\
         t launch $PMC launch -q -N 3 --bcast=always ./prog\ndone\n"
    );
    scene.script("times", &script);
    let said = scene.run("./times");
    println!("{said}");
    for (what, times) in [("first ", 1), ("next ", 5), ("sbcast ", 3), ("launch ", 3)] {
        let lines = said
            .lines()
            .filter(|line| line.starts_with(what) && line.ends_with(" ms"));
        assert_eq!(lines.count(), times, "{said}");
    }
}
