//! How a task saves itself: the options `--checkpoint-signal SIG[@SECONDS]` and `--checkpoint-exit CODE`.

use std::time::Duration;

/// Signals by their names, without `SIG`. The numbers are those of Linux on all machines but MIPS and SPARC.
const NAMES: [(&str, i32); 13] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("USR1", 10),
    ("USR2", 12),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("TSTP", 20),
    ("URG", 23),
    ("XCPU", 24),
    ("WINCH", 28),
    ("PWR", 30),
];

/// Numbers that are no names above: the other signals that a program can handle.
const NUMBERS: std::ops::RangeInclusive<i32> = 1..=64;

/// KILL and STOP: no program gets them.
const UNHANDLED: [i32; 2] = [9, 19];

/// The longest lead: a day.
const MAX_LEAD: u32 = 24 * 60 * 60;

/// Default of [`CheckpointSignal::lead`].
pub const DEFAULT_LEAD: Duration = Duration::from_secs(60);

/// How a task saves itself, so that its next attempt goes on where this one has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Checkpoint {
    /// The signal that asks for it.
    pub signal: Option<CheckpointSignal>,
    /// Exit code of an attempt that has saved itself and is to run again, from 1.
    pub exit: Option<u8>,
}

/// `--checkpoint-signal SIG[@SECONDS]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CheckpointSignal {
    /// Number of the signal.
    pub number: i32,
    /// How long before the end of the time it is sent.
    pub lead: Duration,
}

impl Checkpoint {
    /// Returns whether an attempt with this raw wait status has saved itself.
    #[must_use]
    pub fn is_saved(&self, status: i32) -> bool {
        self.exit
            .is_some_and(|code| status & 0x7f == 0 && status >> 8 & 0xff == i32::from(code))
    }
}

impl CheckpointSignal {
    /// Parses `SIG[@SECONDS]`: a name with or without `SIG`, or a number.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (signal, lead) = text.split_once('@').map_or((text, None), |(s, l)| (s, Some(l)));
        let name = signal.strip_prefix("SIG").unwrap_or(signal);
        let named = NAMES.iter().find(|(known, _)| *known == name);
        let number = match named {
            Some((_, number)) => *number,
            None => plain(signal)?,
        };
        let lead = match lead {
            Some(seconds) => {
                let seconds = plain(seconds).and_then(|seconds| u32::try_from(seconds).ok())?;
                Duration::from_secs(Some(seconds).filter(|seconds| *seconds <= MAX_LEAD)?.into())
            }
            None => DEFAULT_LEAD,
        };
        (NUMBERS.contains(&number) && !UNHANDLED.contains(&number)).then_some(Self { number, lead })
    }
}

/// Parses a number without a sign.
fn plain(text: &str) -> Option<i32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// Parses an exit code that is not that of success.
#[must_use]
pub fn checkpoint_exit(text: &str) -> Option<u8> {
    plain(text)
        .and_then(|code| u8::try_from(code).ok())
        .filter(|code| *code > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_numbers_and_leads() {
        let parsed = |text: &str| CheckpointSignal::parse(text).map(|s| (s.number, s.lead.as_secs()));
        assert_eq!(parsed("USR1"), Some((10, 60)));
        assert_eq!(parsed("SIGUSR2@5"), Some((12, 5)));
        assert_eq!((parsed("15@0"), parsed("34")), (Some((15, 0)), Some((34, 60))));
        for wrong in [
            "",
            "@5",
            "USR1@",
            "USR1@-1",
            "USR1@1.5",
            "USR1@86401",
            "usr1",
            "KILL",
            "SIGSTOP",
            "9",
            "19",
            "0",
            "65",
            "-10",
            "+10",
            "SIG",
            "SIG10",
            "USR1@5@6",
            "USR1 ",
        ] {
            assert_eq!(parsed(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn only_the_exit_code_says_that_a_task_has_saved_itself() {
        let checkpoint = Checkpoint {
            exit: checkpoint_exit("85"),
            ..Checkpoint::default()
        };
        assert!(checkpoint.is_saved(85 << 8));
        assert!(!checkpoint.is_saved(85) && !checkpoint.is_saved(0) && !checkpoint.is_saved(9));
        assert!(!Checkpoint::default().is_saved(0));
        for wrong in ["0", "256", "-1", "", "85 ", "+85"] {
            assert_eq!(checkpoint_exit(wrong), None, "{wrong:?}");
        }
    }
}
