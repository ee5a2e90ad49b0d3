//! `pmc-launch --bcast`: programs that only one host sees run on all, and nothing of them is left.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use testutils::node_faults::network::{Network, Node};

use crate::gangs::{output, pmc_launch};
use crate::support::command::Program;
use crate::support::harness::setting;
use crate::support::programs::Build;

/// Longest time of a run, on a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_secs(300);

/// Each node has a RAM disk of its own.
const SETTING: &str = "mount --bind hosts /etc/hosts && mount -t tmpfs -o size=512m tmpfs /dev/shm";

/// A node whose `/tmp` has a megabyte, and whose RAM disk runs no programs. The directory of the run stays.
const TINY: &str = "mount --bind hosts /etc/hosts && mount -t tmpfs -o noexec tmpfs /dev/shm && \
                    mount --bind \"$PWD\" /mnt && mount -t tmpfs -o size=1m tmpfs /tmp && \
                    mkdir -p \"$PWD\" && mount --bind /mnt \"$PWD\" && cd \"$PWD\"";

/// Functions of scripts: all hosts of the task, the others, and what launches have left there.
const HEAD: &str = r#"#!/bin/bash
others() { grep -vx "$(hostname)" "$PMC_NODEFILE"; }
on() { local host=$1; shift; "$RSH" -n "$host" "$@"; }
left() {
    for host in $(cat "$PMC_NODEFILE"); do on $host "ls -A /dev/shm /tmp | grep pmc-programs"; done | wc -l
}
"#;

struct Scene {
    folder: tempfile::TempDir,
    /// Nodes before their network.
    nodes: Vec<Node>,
    network: Network,
}

impl Scene {
    /// A DAG with one task, which runs this script in a gang of this number of hosts.
    fn new(hosts: usize, script: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| folder.path().join(name);
        let dag = format!("TASK a -N {hosts} --ranks-per-node 1 -m 10 ./script\n");
        fs::write(path("x.dag"), dag).expect("a DAG");
        let rsh = Build::Local.program("pmc-rsh");
        let text = format!("{HEAD}RSH={}\nLAUNCH={}\n{script}", rsh.display(), pmc_launch());
        fs::write(path("script"), text).expect("a script");
        fs::set_permissions(path("script"), fs::Permissions::from_mode(0o755)).expect("a mode");
        let mut names = "127.0.0.1 localhost\n10.77.0.1 master\n".to_owned();
        for number in 1..=hosts {
            writeln!(names, "10.77.0.{} n{number}", number + 1).expect("a text");
        }
        fs::write(path("hosts"), names).expect("names");
        let network = Network::new().expect("network namespaces");
        Self {
            folder,
            nodes: Vec::new(),
            network,
        }
    }

    /// Runs the task. `setting` is what each node does before, `megabits` is the speed of its line. Returns
    /// what the script has written, and what launches have said.
    fn run(&mut self, setting: impl Fn(usize) -> &'static str, megabits: Option<u32>) -> (String, String) {
        let top = self.folder.path();
        let hosts = fs::read_to_string(top.join("hosts"))
            .expect("names")
            .lines()
            .count()
            - 2;
        let mut master = self.network.on_master();
        master.arg(Build::Local.program("pegasus-mpi-cluster"));
        master.args(["--agents", &hosts.to_string(), "--slots", "1"]);
        master.args(["--host-memory", "1000", "--per-task-stdio", "x.dag"]);
        let log = fs::File::create(top.join("master.log")).expect("a log");
        master.current_dir(top).stdout(Stdio::null()).stderr(log);
        let mut master = master.spawn().expect("a master");
        let program = Build::Local.program("pegasus-mpi-cluster");
        for number in 1..=hosts {
            let line = format!(
                "{} && exec {} --agent x.dag.endpoint",
                setting(number),
                program.display()
            );
            let words = ["/bin/sh", "-c", &line].map(OsStr::new);
            let name = format!("n{number}");
            let node = self.network.start_node(&name, top, "agent.log", &words);
            let node = node.expect("a node");
            if let Some(megabits) = megabits {
                self.network.limit_line(&node, megabits).expect("a limit");
            }
            self.nodes.push(node);
        }
        let begun = Instant::now();
        let status = loop {
            match master.try_wait().expect("a status") {
                Some(status) => break status,
                None if begun.elapsed() > LIMIT => {
                    let _ = master.kill();
                    break master.wait().expect("a status");
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let text = |name: &str| fs::read_to_string(top.join(name)).unwrap_or_default();
        let (out, err) = (output(top, "a"), text("a.err.000"));
        let logs = text("master.log") + &text("agent.log");
        assert!(status.success(), "{out}\n{err}\n{logs}");
        (out, err)
    }

    /// Compiles a library, and a program that finds it in the RAM disk of its host.
    fn compile(&self) {
        let library = "int answer(void) { return 42; }\n";
        let program = "#include <stdio.h>\nint answer(void);\n\
                       int main(void) { printf(\"answer %d\\n\", answer()); return 0; }\n";
        fs::write(self.folder.path().join("own.c"), library).expect("a source");
        fs::write(self.folder.path().join("main.c"), program).expect("a source");
        for line in [
            "cc -shared -fPIC -o libown.so own.c",
            "cc -o linked main.c -L. -lown -Wl,-rpath,/dev/shm/own",
        ] {
            Program::from_line(line)
                .in_directory(self.folder.path())
                .run()
                .ok();
        }
    }
}

/// Asserts that exactly this number of lines end with `line`.
fn assert_lines(out: &str, err: &str, number: usize, line: &str) {
    let found = out.lines().filter(|known| known.ends_with(line)).count();
    assert_eq!(found, number, "{line}: {out}\n{err}");
}

#[test]
#[ignore = "needs network namespaces and a C compiler: tests/run e2e"]
fn a_program_that_one_host_sees_runs_on_all_and_nothing_is_left() {
    // Where it is, each node has a directory of its own. One host has a file with the right key and one wrong
    // byte: it is not used.
    let script = r##"mkdir /dev/shm/own
mv linked libown.so /dev/shm/own/
printf '#!/bin/sh\necho "$(cat "$PMC_LAUNCH_FILES/data") on $(hostname)"\n' > /dev/shm/own/prog
chmod +x /dev/shm/own/prog
echo data of the front end > /dev/shm/own/data
$LAUNCH -q -n 3 /dev/shm/own/prog; echo without $?
cd /dev/shm/own && $LAUNCH -q -n 3 --bcast --files data ./prog; echo here $?
cd /
key=$(sha256sum < /dev/shm/own/prog); key=${key%% *}
store=/dev/shm/pmc-programs-$(id -u)
cat > /dev/shm/plant <<END
mkdir -p -m 700 $store && mkdir $store/$key && cd $store/$key || exit
printf '#!/bin/sh\necho planted\n' > data
chmod 500 data
stat -c '%i %s %.9Y %.9Z' data > ../$key.lock
END
on $(others | head -n 1) "$(cat /dev/shm/plant)"
$LAUNCH -q --bcast --files /dev/shm/own/data /dev/shm/own/prog; echo program $?
$LAUNCH -q --keep-going --bcast /dev/shm/own/linked; echo unlinked $?
$LAUNCH -q --bcast --send-libs /dev/shm/own/linked; echo linked $?
$LAUNCH -q --bcast=always /bin/true; echo always $?
$LAUNCH -q --bcast --files /dev/shm/own/data,/nowhere/data /dev/shm/own/prog; echo missing $?
$LAUNCH -q --bcast /dev/shm/own/nothing; echo nothing $?
echo left $(left)
"##;
    let mut scene = Scene::new(3, script);
    scene.compile();
    let (out, err) = scene.run(|_| SETTING, None);
    for line in [
        "without 4",
        // The directory is not on the other hosts.
        "here 4",
        "program 0",
        "unlinked 127",
        "linked 0",
        "always 0",
        "missing 4",
        "nothing 4",
        "left 0",
    ] {
        assert_lines(&out, &err, 1, line);
    }
    for host in ["n1", "n2", "n3"] {
        assert_lines(&out, &err, 1, &format!("data of the front end on {host}"));
    }
    // Without its library, it runs only where that is.
    assert_lines(&out, &err, 4, "answer 42");
    assert!(err.contains("/nowhere/data: No such file"), "{err}");
    assert!(!out.contains("planted"), "{out}");
}

#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn one_host_without_room_lets_all_take_the_program_from_a_shared_directory() {
    let script = r##"(printf '#!/bin/sh\necho "run $0"\nexit 0\n'; head -c 5000000 /dev/zero) > prog
chmod +x prog
$LAUNCH -q --bcast=always ./prog 2>said; echo beside $?
echo said $(grep -c 'no room' said); cat said >&2
mkdir shared; export PARALLEL_FILE_SYSTEM=$PWD/shared
$LAUNCH -q --bcast=always ./prog; echo shared $?
printf -- '-l n[1-2] -sz 2 ./prog\n-l n3 ./script2\n' > load
printf '#!/bin/sh\necho "other $0"\n' > script2; chmod +x script2
$LAUNCH -q --bcast=always load; echo lines $?
PMC_PROGRAM_DIR=$PWD/shared $LAUNCH -q --bcast=always ./prog; echo named $?
echo left $(left) $(ls -A shared .programs 2>/dev/null | grep -c pmc-)
"##;
    let mut scene = Scene::new(3, script);
    let (out, err) = scene.run(|number| if number == 3 { TINY } else { SETTING }, None);
    for line in ["beside 0", "said 1", "shared 0", "lines 0", "named 0", "left 0 0"] {
        assert_lines(&out, &err, 1, line);
    }
    let runs = |place: &str| {
        let runs = out.lines().filter(|line| line.starts_with("run "));
        runs.filter(|line| line.contains(place)).count()
    };
    // All three, though two have room.
    assert_eq!(runs("/.programs/"), 3, "{out}\n{err}");
    assert_eq!(runs("/shared/pmc-copies-"), 3, "{out}\n{err}");
    assert_eq!(runs("/shared/pmc-programs-"), 3, "{out}\n{err}");
    // Those of another line have room.
    assert_eq!(runs("/dev/shm/"), 2, "{out}\n{err}");
    assert!(out.contains("other /tmp/pmc-programs-"), "{out}");
    assert!(err.contains("n3: no room for 5.0 MB"), "{err}");
}

#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn what_a_kill_in_the_middle_leaves_the_next_launch_removes() {
    let script = r##"(printf '#!/bin/sh\nexit 0\n'; head -c 40000000 /dev/urandom) > /dev/shm/prog
chmod +x /dev/shm/prog
$LAUNCH -q --bcast --load-tries 1 /dev/shm/prog & launch=$!
first=$(others | head -n 1) last=$(others | tail -n 1)
store=/dev/shm/pmc-programs-$(id -u)
for host in $first $last; do
    on $host "for i in \$(seq 500); do ls $store/*/new/file && break; sleep 0.02; done
        kill -9 \$(pidof pmc-launch)" &
done > /dev/null 2>&1
wait $(jobs -p | grep -vx $launch)
kill -9 $(pidof pmc-launch); wait $launch; echo killed $?
echo found $(($(left) > 0))
$LAUNCH -q /bin/true; echo next $?
echo left $(left)
"##;
    let mut scene = Scene::new(3, script);
    let (out, err) = scene.run(|_| SETTING, Some(40));
    for line in ["found 1", "next 0", "left 0"] {
        assert_lines(&out, &err, 1, line);
    }
    assert!(!out.contains("killed 0"), "{out}");
}

/// Sends a file of `PMC_BCAST_MB` megabytes to one other host, and to `PMC_BCAST_HOSTS`, over lines of
/// `PMC_BCAST_MBIT` megabits a second, and prints both times. Only a file of 50 megabytes or more takes long
/// enough to compare them.
#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn all_hosts_have_a_program_soon_after_the_first_one() {
    let hosts = usize::try_from(setting("PMC_BCAST_HOSTS", 4)).expect("a number");
    let megabytes = setting("PMC_BCAST_MB", 2);
    let megabits = u32::try_from(setting("PMC_BCAST_MBIT", 200)).expect("a number");
    let script = format!(
        "(printf '#!/bin/sh\\nhostname\\nexit 0\\n'; head -c {megabytes}000000 /dev/urandom) > prog\n\
         chmod +x prog\n\
         for hosts in 2 {hosts}; do\n\
         $LAUNCH -q --timing --bcast=always -N $hosts -n $hosts ./prog || exit\ndone\n"
    );
    let mut scene = Scene::new(hosts, &script);
    let (out, err) = scene.run(|_| SETTING, Some(megabits));
    let ran = out.lines().filter(|line| line.starts_with('n')).count();
    assert_eq!(ran, 2 + hosts, "{out}\n{err}");
    let times: Vec<f64> = err
        .lines()
        .filter_map(|line| line.strip_prefix("programs sent to ")?.split(" in ").nth(1))
        .map(|time| time.trim_end_matches(" s").parse().expect("a number"))
        .collect();
    let [one, all] = times[..] else {
        panic!("two times: {err}")
    };
    println!(
        "{megabytes} MB over {megabits} Mbit/s: {one:.2} s to one host, {all:.2} s to {} ({:.2} times)",
        hosts - 1,
        all / one
    );
    assert!(megabytes < 50 || all <= 2.5 * one, "{all} s, {one} s");
}
