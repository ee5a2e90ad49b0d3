//! A budget of time and memory for looking at the plan of another user.
//!
//! Such a plan names files, directories and databases that its owner chooses: a directory can be `/`, and
//! a file can be larger than the memory. A thread watches over all of it, so that no reader has to count.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use nix::unistd::{SysconfVar, sysconf};

/// Maximum time. A plan of a million jobs takes some ten seconds.
const TIME: Duration = Duration::from_secs(60);

/// Maximum bytes of memory, and maximum part of what the machine has.
const MEMORY: u64 = 4 << 30;
const MEMORY_PART: u64 = 2;

/// Time between two looks. Reading a file fills some ten megabytes meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// What may be used.
#[derive(Clone, Copy, Debug)]
struct Budget {
    time: Duration,
    memory: u64,
}

impl Budget {
    /// Returns what is used up, as the end of a message.
    fn exceeded(self, time: Duration, memory: u64) -> Option<String> {
        if memory > self.memory {
            let mebibytes = self.memory >> 20;
            return Some(format!(
                "the plan of another user takes more than {mebibytes} MiB of memory: it is given up"
            ));
        }
        let seconds = self.time.as_secs();
        (time > self.time)
            .then(|| format!("the plan of another user takes more than {seconds} seconds: it is given up"))
    }
}

/// Ends this process when the budget is used up, with the code that `report` returns for the reason.
///
/// # Errors
/// The system has no thread.
pub(crate) fn start(report: impl Fn(&str) -> u8 + Send + 'static) -> io::Result<()> {
    let installed = nix::sys::sysinfo::sysinfo().map_or(u64::MAX, |info| info.ram_total());
    let budget = Budget {
        time: TIME,
        memory: MEMORY.min(installed / MEMORY_PART),
    };
    let begun = Instant::now();
    let watch = move || loop {
        if let Some(what) = budget.exceeded(begun.elapsed(), memory().unwrap_or(0)) {
            std::process::exit(report(&what).into());
        }
        std::thread::sleep(LOOK_INTERVAL);
    };
    std::thread::Builder::new()
        .name("budget".to_owned())
        .spawn(watch)?;
    Ok(())
}

/// Bytes of memory that only this process has.
fn memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text
        .split_whitespace()
        .skip(1)
        .map_while(|word| word.parse::<u64>().ok());
    let (resident, shared) = (pages.next()?, pages.next()?);
    let page = sysconf(SysconfVar::PAGE_SIZE).ok()??;
    Some(resident.saturating_sub(shared) * u64::try_from(page).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_memory_are_limited() {
        let budget = Budget {
            time: Duration::from_secs(2),
            memory: 1 << 20,
        };
        assert_eq!(budget.exceeded(Duration::from_secs(2), 1 << 20), None);
        let what = |time, memory| {
            budget
                .exceeded(Duration::from_secs(time), memory)
                .unwrap_or_default()
        };
        assert!(what(3, 0).contains("more than 2 seconds"));
        assert!(what(0, 2 << 20).contains("more than 1 MiB of memory"));
    }

    #[test]
    fn memory_is_counted() {
        let before = memory().expect("the system says it");
        let taken = vec![1_u8; 64 << 20];
        let after = memory().expect("the system says it");
        assert!(after >= before + (32 << 20) && taken[1] == 1, "{before} {after}");
    }
}
