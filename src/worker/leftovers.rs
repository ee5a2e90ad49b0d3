//! Processes that an attempt has left behind.
//!
//! Once the leader of a task's group has ended, nobody knows what has left that group: the ranks of an MPI
//! program, for example, if their `mpirun` was killed. So each attempt has a token in its environment, which
//! all of its processes inherit, and after its end all that has this token is ended.
//!
//! To look at all processes of a host takes longer than a small task. A worker looks at once if the attempt
//! was killed, and when it has nothing to do. Else it looks when it has run long enough since it looked last,
//! so that it spends a four hundredth of its time on that.

use std::ffi::{CString, OsString};
use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use memchr::memmem;
use nix::unistd::Pid;
use rustix::process::{Signal, pidfd_send_signal};

use super::GRACE;
use super::running::is_readable;
use super::strays::open;
use crate::protocol::GangToken;

/// Variable with the tokens of an attempt, and of the attempts in which its executor runs: `TOKEN.TOKEN`.
pub(super) const VARIABLE: &[u8] = b"PMC_TOKENS";

/// Between two tokens.
const SEPARATOR: u8 = b'.';

/// A worker looks when its attempts have run for this many times of what it takes.
const SHARE: u32 = 400;

/// What a look takes, before the first one.
const EXPECTED: Duration = Duration::from_millis(2);

/// Time for processes to end by themselves, for example those that write the last output to a file.
const NATURAL: Duration = Duration::from_millis(200);

/// How often processes are killed: one may have started another one meanwhile.
const ROUNDS: usize = 10;

/// Held by the worker of this process that looks.
static LOOKING: Mutex<()> = Mutex::new(());

/// Names of batch jobs. What a task hands to the batch system inherits its environment, but is not its own.
const BATCH_JOBS: [&[u8]; 5] = [
    b"SLURM_JOB_ID",
    b"PBS_JOBID",
    b"LSB_JOBID",
    b"FLUX_JOB_ID",
    b"JOB_ID",
];

/// The tokens of the attempts of a worker.
pub(super) struct Leftovers {
    job: BatchJob,
    /// Tokens of the attempts in which this executor runs.
    outer: Vec<u8>,
    /// The first token. The others follow.
    base: u128,
    /// The first attempt after which nobody has looked.
    first: u64,
    /// The next attempt.
    next: u64,
    /// For how long attempts have run since the last look.
    run: Duration,
    /// What the last look took.
    cost: Duration,
}

impl Leftovers {
    /// Starts with a random token. `None` if the system has no random bytes.
    pub(super) fn new(environment: &[(OsString, OsString)]) -> Option<Self> {
        let (high, low) = (getrandom::u64().ok()?, getrandom::u64().ok()?);
        let outer = environment.iter().find(|(name, _)| name.as_bytes() == VARIABLE);
        Some(Self {
            job: BatchJob::of(environment),
            outer: outer.map_or_else(Vec::new, |(_, value)| value.as_bytes().to_vec()),
            base: u128::from(high) << 64 | u128::from(low),
            first: 0,
            next: 0,
            run: Duration::ZERO,
            cost: EXPECTED,
        })
    }

    /// Returns the variable of the next attempt. Its processes also have the token of its gang.
    pub(super) fn begin(&mut self, gang: Option<GangToken>) -> Option<CString> {
        let own = self.base.wrapping_add(self.next.into());
        self.next += 1;
        let tokens = gang.into_iter().chain([GangToken(own)]);
        variable(&self.outer, tokens)
    }

    /// Notes the end of the attempt that has begun last. Looks for what it has left if it must, or if
    /// it is time. Returns the names of the programs that were ended.
    pub(super) fn ended(&mut self, run: Duration, must_look: bool) -> Vec<String> {
        self.run = self.run.saturating_add(run);
        match must_look || self.run >= self.cost * SHARE {
            true => self.look(),
            false => Vec::new(),
        }
    }

    /// True if nobody has looked for what the last attempts have left.
    pub(super) fn is_due(&self) -> bool {
        self.first < self.next
    }

    /// Ends what all attempts so far have left. Call it while none runs.
    pub(super) fn look(&mut self) -> Vec<String> {
        let (base, attempts) = (self.base, self.first..self.next);
        let is_own = |token: u128| {
            let number = token.wrapping_sub(base);
            u64::try_from(number).is_ok_and(|number| attempts.contains(&number))
        };
        let begun = Instant::now();
        let found = find(&self.job, &is_own);
        self.cost = begun.elapsed();
        (self.first, self.run) = (self.next, Duration::ZERO);
        match found.is_empty() {
            true => Vec::new(),
            false => end(&self.job, &is_own, found),
        }
    }
}

/// Returns the variable with these tokens, after those of the attempts around it.
pub(super) fn variable(outer: &[u8], tokens: impl Iterator<Item = GangToken>) -> Option<CString> {
    let mut text = [VARIABLE, b"="].concat();
    text.extend_from_slice(outer);
    for token in tokens {
        if !text.ends_with(b"=") {
            text.push(SEPARATOR);
        }
        text.extend_from_slice(token.to_string().as_bytes());
    }
    CString::new(text).ok()
}

/// Ends all processes of a gang on this host. Returns the names of the programs that did not end by
/// themselves.
pub(crate) fn end_gang(environment: &[(OsString, OsString)], token: GangToken) -> Vec<String> {
    let job = BatchJob::of(environment);
    let is_own = |found: u128| found == token.0;
    let found = find(&job, &is_own);
    match found.is_empty() {
        true => Vec::new(),
        false => end(&job, &is_own, found),
    }
}

/// The variables that name the batch job of a process.
struct BatchJob(Vec<(&'static [u8], Vec<u8>)>);

impl BatchJob {
    fn of(environment: &[(OsString, OsString)]) -> Self {
        let find = |name: &'static [u8]| {
            let (_, value) = environment.iter().find(|(own, _)| own.as_bytes() == name)?;
            Some((name, value.as_bytes().to_vec()))
        };
        Self(BATCH_JOBS.into_iter().filter_map(find).collect())
    }

    /// False if a process with this environment is in another batch job.
    fn is_of(&self, environment: &[u8]) -> bool {
        BATCH_JOBS.into_iter().all(|name| {
            let found = value_of(environment, name);
            let own = self.0.iter().find(|(own, _)| *own == name);
            found.is_none_or(|found| own.is_some_and(|(_, own)| own == found))
        })
    }
}

/// A process that was left.
struct Found {
    process: OwnedFd,
    name: String,
}

/// Finds the processes with such a token.
fn find(job: &BatchJob, is_own: &dyn Fn(u128) -> bool) -> Vec<Found> {
    // A look takes open files, which may be short.
    let _looking = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_token = |pid: Pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        has_token(&environment, is_own) && job.is_of(&environment)
    };
    let found = pids.map(Pid::from_raw).filter_map(|pid| {
        if pid == Pid::this() || !has_token(pid) {
            return None;
        }
        let process = open(pid)?;
        // The number may have been reused before it was opened.
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        has_token(pid).then(|| Found {
            process,
            name: name.trim_end().to_owned(),
        })
    });
    found.collect()
}

/// Ends these processes, and those that they start meanwhile.
fn end(job: &BatchJob, is_own: &dyn Fn(u128) -> bool, found: Vec<Found>) -> Vec<String> {
    wait(&found, NATURAL);
    let left = find(job, is_own);
    let mut names: Vec<String> = left.iter().map(|process| process.name.clone()).collect();
    names.sort_unstable();
    names.dedup();
    signal(&left, Signal::TERM);
    wait(&left, GRACE);
    for _ in 0..ROUNDS {
        let left = find(job, is_own);
        if left.is_empty() {
            break;
        }
        signal(&left, Signal::KILL);
        wait(&left, GRACE);
    }
    names
}

fn signal(processes: &[Found], signal: Signal) {
    for found in processes {
        // It may have ended.
        let _ = pidfd_send_signal(&found.process, signal);
    }
}

/// Waits until all have ended, at most `limit`.
fn wait(processes: &[Found], limit: Duration) {
    let end = Instant::now() + limit;
    for found in processes {
        let left = end.saturating_duration_since(Instant::now());
        if !is_readable(found.process.as_fd(), left, None) {
            return;
        }
    }
}

/// Returns whether one of the tokens in an environment is such a one.
fn has_token(environment: &[u8], is_own: &dyn Fn(u128) -> bool) -> bool {
    let tokens = value_of(environment, VARIABLE).unwrap_or_default();
    tokens.split(|byte| *byte == SEPARATOR).any(|token| {
        let token = std::str::from_utf8(token).ok();
        let token = token.and_then(|token| token.parse::<GangToken>().ok());
        token.is_some_and(|token| is_own(token.0))
    })
}

/// Returns the value of a variable in the environment of a process, as the system shows it.
fn value_of<'e>(environment: &'e [u8], name: &[u8]) -> Option<&'e [u8]> {
    memmem::find_iter(environment, name).find_map(|at| {
        let is_start = at == 0 || environment.get(at - 1) == Some(&0);
        let value = environment.get(at + name.len()..)?.strip_prefix(b"=")?;
        is_start.then(|| value.split(|byte| *byte == 0).next().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command};

    use super::*;

    fn leftovers() -> Leftovers {
        Leftovers::new(&[]).unwrap()
    }

    fn sleep(variable: &CString, more: &[(&str, &str)]) -> Child {
        let text = variable.to_str().unwrap();
        let (name, value) = text.split_once('=').unwrap();
        let mut command = Command::new("/bin/sleep");
        command.arg("1000").env(name, value).process_group(0);
        begun(command.envs(more.iter().copied()))
    }

    /// Starts a program, and waits until the system shows its environment.
    fn begun(command: &mut Command) -> Child {
        let child = command.spawn().unwrap();
        let path = format!("/proc/{}/environ", child.id());
        while fs::read(&path).unwrap().is_empty() {
            std::thread::yield_now();
        }
        child
    }

    #[test]
    fn what_has_the_token_of_an_attempt_that_has_ended_is_ended() {
        let mut own = leftovers();
        let first = own.begin(None).unwrap();
        let mut left = sleep(&first, &[]);
        let mut other = sleep(&leftovers().begin(None).unwrap(), &[]);
        let mut submitted = sleep(&first, &[("SLURM_JOB_ID", "7")]);
        assert!(own.ended(Duration::ZERO, false).is_empty(), "it is not time");
        assert!(own.is_due());
        assert_eq!(own.ended(Duration::ZERO, true), ["sleep"]);
        assert!(!own.is_due());
        assert!(!left.wait().unwrap().success());
        for process in [&mut other, &mut submitted] {
            assert!(process.try_wait().unwrap().is_none());
            process.kill().unwrap();
            process.wait().unwrap();
        }
        // The next attempt has another token.
        let mut next = sleep(&own.begin(None).unwrap(), &[]);
        let mut again = sleep(&first, &[]);
        assert_eq!(own.ended(Duration::from_secs(60), false), ["sleep"]);
        assert!(!next.wait().unwrap().success());
        assert!(again.try_wait().unwrap().is_none());
        again.kill().unwrap();
        again.wait().unwrap();
    }

    #[test]
    fn a_process_that_ends_by_itself_is_not_named() {
        let mut own = leftovers();
        let variable = own.begin(None).unwrap();
        let mut process = sleep(&variable, &[]);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(NATURAL / 4);
            process.kill().unwrap();
            process.wait().unwrap();
        });
        assert!(own.look().is_empty());
        killer.join().unwrap();
    }

    #[test]
    fn a_program_that_ignores_sigterm_is_killed_and_so_is_the_gang() {
        let (mut own, gang) = (leftovers(), GangToken(7 << 100));
        let variable = own.begin(Some(gang)).unwrap();
        let text = variable.to_str().unwrap();
        let (name, value) = text.split_once('=').unwrap();
        let mut shell = Command::new("/bin/sh");
        let shell = shell.args(["-c", "trap '' TERM; while :; do sleep 0.05; done"]);
        let mut shell = begun(shell.env(name, value));
        assert!(end_gang(&[], gang).contains(&"sh".to_owned()));
        assert!(!shell.wait().unwrap().success());
    }

    #[test]
    fn tokens_are_found_among_those_of_other_attempts() {
        let (one, two) = (GangToken(1), GangToken(2));
        let outer = variable(b"", [one].into_iter()).unwrap();
        let outer = outer.as_bytes().strip_prefix(b"PMC_TOKENS=").unwrap();
        let both = variable(outer, [two].into_iter()).unwrap();
        let environment = [b"A=PMC_TOKENS=\0", both.as_bytes(), b"\0XPMC_TOKENS=\0"].concat();
        for token in [one, two] {
            assert!(has_token(&environment, &|found| found == token.0));
        }
        assert!(!has_token(&environment, &|found| found == 3));
        assert_eq!(value_of(b"AB=1\0B=2\0C", b"B"), Some(&b"2"[..]));
        assert_eq!(value_of(b"AB=1\0B", b"B"), None);
        assert!(!has_token(b"PMC_TOKENS=x..\0", &|_| true));
    }
}
