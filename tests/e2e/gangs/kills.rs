//! Launchers, agents, nodes and masters of gangs are killed at random moments.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testutils::Random;

use super::{GONE, Mpi, NODES, Scene, output};

/// Programs of a gang.
const PROGRAMS: [&str; 3] = ["ring", "orted", "mpirun.openmpi"];

/// Each rank has a lock on its host. One that another rank has is noted.
const LOCKED: &str = "#!/bin/sh
exec 9>>lock.$(hostname)
flock -n 9 || echo \"$*\" >>overlaps
exec ./ring \"$@\"
";

/// The longest moment since the launcher has begun, in milliseconds.
const LATEST: u64 = 2500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Launcher,
    Agent,
    Node,
    Master,
}

const VICTIMS: [Victim; 4] = [Victim::Launcher, Victim::Agent, Victim::Node, Victim::Master];

/// Time until nothing is left. That a node is gone, the others notice when it has been silent for 5 s.
fn limit(victim: Victim) -> Duration {
    match victim {
        Victim::Node => GONE * 2,
        _ => GONE,
    }
}

/// After this time, something is left for ever: a machine that is busy needs longer than [`limit`].
const FOR_EVER: Duration = Duration::from_secs(60);

impl Scene {
    /// Processes of gangs.
    fn of_gangs(&self) -> Vec<Pid> {
        PROGRAMS.iter().flat_map(|name| self.processes(name)).collect()
    }

    fn launchers(&self) -> Vec<Pid> {
        ["mpirun.openmpi", "mpirun"]
            .iter()
            .flat_map(|name| self.processes(name))
            .collect()
    }
}

/// A round: the task with this number is struck while it runs, and ends in the end. Returns how long anything
/// of the gang was left.
fn round(scene: &mut Scene, number: usize, victim: Victim, random: &mut Random) -> Duration {
    let task = format!("ring{number}");
    scene.wait_for("a launcher", |scene| !scene.launchers().is_empty());
    std::thread::sleep(Duration::from_millis(random.below(LATEST)));
    let (before, launchers) = (scene.of_gangs(), scene.launchers());
    let member = random.index(NODES.len());
    let begun = Instant::now();
    match victim {
        Victim::Launcher => launchers.iter().for_each(|pid| {
            // It may just have ended.
            let _ = kill(*pid, Signal::SIGKILL);
        }),
        Victim::Agent => {
            let _ = scene.nodes[member].signal_agent(Signal::SIGKILL);
        }
        Victim::Node => scene.restart_node(member, Duration::from_millis(random.below(1000))),
        Victim::Master => {
            let mut master = scene.master.take().expect("a master");
            master.kill().expect("a signal");
            master.wait().expect("a status");
            std::thread::sleep(Duration::from_millis(random.below(1000)));
            scene.start_master();
        }
    }
    let mut time = Duration::ZERO;
    if victim != Victim::Master {
        let has_ended = |scene: &Scene| {
            let now = scene.of_gangs();
            !before.iter().any(|pid| now.contains(pid))
        };
        while !has_ended(scene) {
            assert!(
                begun.elapsed() < FOR_EVER,
                "{victim:?}: something is left\n{}",
                scene.said()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        time = begun.elapsed();
    }
    fs::write(scene.path(&format!("go{number}")), "").expect("a file");
    let said = "3 ranks, token 3, sum 6 6";
    scene.wait_for(&task, |scene| output(scene.folder.path(), &task).contains(said));
    if victim == Victim::Master {
        let is_same = !scene.path(&format!("{task}.out.001")).exists();
        assert!(is_same, "{task} began again\n{}", scene.said());
    }
    // Until the next one begins, or the run ends.
    scene.wait_for("the end of a gang", |scene| {
        let now = scene.launchers();
        launchers.iter().all(|pid| !now.contains(pid))
    });
    time
}

/// `PMC_TEST_KILLS` is the number of rounds, `PMC_TEST_SEED` that of the first moment. With the first one, no
/// round may need longer than [`limit`].
#[test]
#[ignore = "needs network namespaces and Open MPI: tests/run e2e"]
fn gangs_end_whatever_is_killed() {
    let number = |name: &str| {
        let text = std::env::var(name).ok();
        text.map(|text| text.parse().expect("a number"))
    };
    let (rounds, seed) = (number("PMC_TEST_KILLS"), number("PMC_TEST_SEED"));
    let is_strict = rounds.is_some();
    let rounds = rounds.unwrap_or(VICTIMS.len() as u64) as usize;
    let mut random = Random(seed.unwrap_or(1));
    let mut dag = String::new();
    for number in 0..rounds {
        dag += &format!("TASK ring{number} -t 5 -N 3 -m 100 mpirun.openmpi ./locked go{number}\n");
        if let Some(before) = number.checked_sub(1) {
            dag += &format!("EDGE ring{before} ring{number}\n");
        }
    }
    let mut scene = Scene::new(Mpi::debian("mpicc.openmpi"), &dag);
    fs::write(scene.path("locked"), LOCKED).expect("a script");
    fs::set_permissions(scene.path("locked"), fs::Permissions::from_mode(0o755)).expect("a mode");
    scene.start();
    let mut longest = [Duration::ZERO; VICTIMS.len()];
    let mut late = 0;
    for number in 0..rounds {
        let at = number % VICTIMS.len();
        let time = round(&mut scene, number, VICTIMS[at], &mut random);
        println!("{number}: {:?}, {time:.1?}", VICTIMS[at]);
        longest[at] = longest[at].max(time);
        late += usize::from(time > limit(VICTIMS[at]));
        let overlaps = scene.text("overlaps");
        assert!(overlaps.is_empty(), "{overlaps}\n{}", scene.said());
    }
    scene.succeed();
    scene.nothing_is_left(&PROGRAMS);
    println!("{rounds} rounds, {late} of them late; the longest times: {VICTIMS:?}, {longest:.1?}");
    assert!(!is_strict || late == 0, "{late} rounds were late");
}
