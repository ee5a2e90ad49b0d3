//! Nodes in network namespaces of their own, which a switch connects.
//!
//! A node has its own network, host name and processes. Killing it kills all of its processes at once, and
//! its cable can be pulled without a message to any process.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// First three numbers of all addresses.
const PREFIX: &str = "10.77.0";

/// The same in IPv6.
const PREFIX_V6: &str = "fd77::";

/// An Ethernet address that no network interface has.
const UNUSED: &str = "02:00:00:00:00:99";

/// Keeps namespaces until it is killed.
const HOLD: &str = "echo ready; exec sleep 10000";

/// The switch, and the namespace of the master. All nodes end with it.
pub struct Network {
    switch: Child,
    master: Option<Member>,
    plugs: u32,
}

/// A namespace with a cable to the switch.
struct Member {
    /// In the outer namespace of processes.
    holder: Child,
    /// Number of its cable, and of its address.
    plug: u32,
}

/// A node: it is off when this is dropped.
pub struct Node(Member);

/// In which direction packets of a node get lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the node to the master.
    ToMaster,
    /// From the master to the node.
    ToNode,
}

impl Network {
    /// Makes a network with nothing but the namespace of the master.
    ///
    /// # Errors
    /// This user cannot make namespaces, or `ip` is missing.
    pub fn new() -> io::Result<Self> {
        let mut command = Command::new("unshare");
        if !nix::unistd::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        let script = format!("ip link add br0 type bridge && ip link set br0 up && {HOLD}");
        command.args(["--net", "--", "sh", "-c", &script]);
        let mut network = Self {
            switch: start(&mut command)?,
            master: None,
            plugs: 0,
        };
        let mut command = network.enter_user();
        command.args(["unshare", "--net", "--", "sh", "-c"]);
        command.arg(format!("ip link set lo up && {HOLD}"));
        let holder = start(&mut command)?;
        let plug = network.plug(&holder)?;
        network.master = Some(Member { holder, plug });
        Ok(network)
    }

    /// A command with the rights of the network's user.
    fn enter_user(&self) -> Command {
        let mut command = Command::new("nsenter");
        if !nix::unistd::geteuid().is_root() {
            let target = self.switch.id().to_string();
            command.args(["--target", &target, "--user", "--preserve-credentials"]);
        }
        command
    }

    /// A command in the namespace of a process.
    fn inside(&self, pid: u32) -> Command {
        let mut command = self.enter_user();
        command.args(["--target", &pid.to_string(), "--net"]);
        command
    }

    /// The address of the master's host.
    #[must_use]
    pub fn master_address(&self) -> String {
        let plug = self.master.as_ref().map_or(0, |master| master.plug);
        format!("{PREFIX}.{plug}")
    }

    /// The same in IPv6.
    #[must_use]
    pub fn master_address_v6(&self) -> String {
        let plug = self.master.as_ref().map_or(0, |master| master.plug);
        format!("{PREFIX_V6}{plug:x}")
    }

    /// A command on the host of the master.
    #[must_use]
    pub fn on_master(&self) -> Command {
        self.inside(self.master_pid())
    }

    fn master_pid(&self) -> u32 {
        self.master.as_ref().map_or(0, |master| master.holder.id())
    }

    fn shell(&self, pid: u32, script: &str) -> io::Result<()> {
        let status = self.inside(pid).args(["sh", "-c", script]).status()?;
        match status.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!("`{script}` fails"))),
        }
    }

    /// Connects a namespace with the switch. Returns the number of the cable.
    fn plug(&mut self, holder: &Child) -> io::Result<u32> {
        self.plugs += 1;
        let (plug, pid) = (self.plugs, holder.id());
        let script = format!(
            "ip link add v{plug} type veth peer name eth0 netns {pid} && ip link set v{plug} master br0 up"
        );
        self.shell(self.switch.id(), &script)?;
        let script = format!(
            "ip addr add {PREFIX}.{plug}/24 dev eth0 && ip link set eth0 up && \
             ip -6 addr add {PREFIX_V6}{plug:x}/64 dev eth0 nodad"
        );
        self.shell(pid, &script)?;
        Ok(plug)
    }

    /// Switches a node on: it runs a command in a directory, with its output at the end of a file. What it
    /// mounts, no other node sees.
    ///
    /// # Errors
    /// This user cannot make namespaces.
    pub fn start_node(
        &mut self,
        name: &str,
        directory: &Path,
        log: &str,
        words: &[&OsStr],
    ) -> io::Result<Node> {
        let script = format!(
            "echo ready; read -r go; hostname {name}; ip link set lo up; \"$@\" </dev/null >>{log} 2>&1 & \
             wait $! || sleep 5"
        );
        let mut command = self.enter_user();
        command.args(["unshare", "--net", "--uts", "--pid", "--mount-proc", "--fork"]);
        command.args(["--kill-child=KILL", "--", "sh", "-c", &script, "sh"]);
        command.args(words).current_dir(directory).env_clear();
        command.env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        );
        let mut holder = start(&mut command)?;
        let plug = self.plug(&holder);
        let go = holder.stdin.take().map(|mut stdin| stdin.write_all(b"go\n"));
        let node = Node(Member {
            holder,
            plug: *plug.as_ref().unwrap_or(&0),
        });
        plug?;
        go.transpose()?;
        Ok(node)
    }

    /// Pulls the cable of a node, or plugs it in again.
    ///
    /// # Errors
    /// The node is off.
    pub fn cut(&self, node: &Node, cut: bool) -> io::Result<()> {
        let how = if cut { "down" } else { "up" };
        let script = format!("ip link set v{} {how}", node.0.plug);
        self.shell(self.switch.id(), &script)
    }

    /// Loses all packets of a node in one direction, or no more.
    pub(super) fn half_open(&self, node: &Node, direction: Direction, broken: bool) -> io::Result<()> {
        let master = self.master.as_ref().map_or(0, |master| master.plug);
        let (pid, other) = match direction {
            Direction::ToMaster => (node.0.holder.id(), master),
            Direction::ToNode => (self.master_pid(), node.0.plug),
        };
        let script = match broken {
            true => format!("ip neigh replace {PREFIX}.{other} lladdr {UNUSED} nud permanent dev eth0"),
            false => format!("ip neigh del {PREFIX}.{other} dev eth0"),
        };
        self.shell(pid, &script)
    }

    /// Limits what comes to a node from other nodes, in megabytes a second.
    ///
    /// # Errors
    /// The node is off.
    pub fn slow_down(&self, node: &Node, megabytes: u32) -> io::Result<()> {
        let script = format!(
            "nft add table inet s && nft 'add chain inet s c {{ type filter hook input priority 0; }}' && \
             nft add rule inet s c iifname eth0 ip saddr != {} limit rate over {megabytes} mbytes/second drop",
            self.master_address()
        );
        self.shell(node.0.holder.id(), &script)
    }

    /// Limits the line of a node in both directions, in megabits a second: packets wait for their turn.
    ///
    /// # Errors
    /// The node is off, or `tc` is missing.
    pub fn limit_line(&self, node: &Node, megabits: u32) -> io::Result<()> {
        let limit = |device: &str| {
            format!("tc qdisc add dev {device} root tbf rate {megabits}mbit burst 256kb latency 200ms")
        };
        self.shell(node.0.holder.id(), &limit("eth0"))?;
        self.shell(self.switch.id(), &limit(&format!("v{}", node.0.plug)))
    }

    /// Loses packets that come to a node at random.
    pub(super) fn lose_packets(&self, node: &Node, percent: u32) -> io::Result<()> {
        let script = format!(
            "nft add table inet f && nft 'add chain inet f c {{ type filter hook input priority 0; }}' && \
             nft add rule inet f c iifname eth0 numgen random mod 100 '<' {percent} drop"
        );
        self.shell(node.0.holder.id(), &script)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.master = None;
        let _ = self.switch.kill();
        let _ = self.switch.wait();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl Node {
    /// Its address.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{PREFIX}.{}", self.0.plug)
    }

    /// Addresses to which programs of the node have made connections that are open.
    #[must_use]
    pub fn peers(&self) -> Vec<String> {
        let list = format!("/proc/{}/net/tcp", self.0.holder.id());
        let list = fs::read_to_string(list).unwrap_or_default();
        let peer = |line: &str| {
            // Number, local and remote `ADDRESS:PORT` in hexadecimal, state.
            let mut words = line.split_ascii_whitespace().skip(2);
            let (remote, state) = (words.next()?, words.next()?);
            let remote = u32::from_str_radix(remote.split(':').next()?, 16).ok()?;
            let is_open = state == "01";
            is_open.then(|| Ipv4Addr::from(remote.to_ne_bytes()).to_string())
        };
        list.lines().filter_map(peer).collect()
    }

    /// Processes of the node: the agent's guard, and the agent.
    fn guard_and_agent(&self) -> Option<(Pid, Pid)> {
        let holder = Pid::from_raw(self.0.holder.id().cast_signed());
        let first = *children(holder).first()?;
        let guard = *children(first).first()?;
        let is_agent = |pid: &&Pid| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).any(|word| word == b"--agent")
        };
        let agent = *children(guard).iter().find(is_agent)?;
        Some((guard, agent))
    }

    /// Sends a signal to the agent. False if there is none.
    #[must_use]
    pub fn signal_agent(&self, signal: Signal) -> bool {
        self.guard_and_agent()
            .is_some_and(|(_, agent)| kill(agent, signal).is_ok())
    }

    /// Kills the parent of the agent.
    pub(super) fn kill_guard(&self) -> bool {
        self.guard_and_agent()
            .is_some_and(|(guard, _)| kill(guard, Signal::SIGKILL).is_ok())
    }

    /// True if the agent has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.0.holder.try_wait().is_ok_and(|status| status.is_some())
    }
}

fn children(pid: Pid) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let lists = tasks.flatten();
    let lists = lists.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let lists: Vec<String> = lists.collect();
    let numbers = lists.iter().flat_map(|list| list.split_whitespace());
    numbers
        .filter_map(|number| number.parse().ok().map(Pid::from_raw))
        .collect()
}

/// Starts a process that says when it is ready.
fn start(command: &mut Command) -> io::Result<Child> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    if line == "ready\n" {
        return Ok(child);
    }
    let _ = child.kill();
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(said.trim_end().to_owned()))
}
