//! Resources that a task requests.

use pmc_dag::words::Words;

/// Resources that a task requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// CPUs.
    pub cpus: u32,
    /// Memory in MB; 0 for no request.
    pub memory_mb: u64,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            cpus: 1,
            memory_mb: 0,
        }
    }
}

impl Request {
    /// Reads the options of a task line after the name. Ignores invalid values.
    pub(super) fn read(text: &[u8]) -> Self {
        let mut request = Self::default();
        let mut words = Words::new(text);
        while let Some(option) = words.next().filter(|word| word.first() == Some(&b'-')) {
            let Some(value) = words.next() else { break };
            match &*option {
                b"-c" | b"--request-cpus" => request.cpus = number(&value).map_or(1, |number| number as u32),
                b"-m" | b"--request-memory" => request.memory_mb = number(&value).unwrap_or(0),
                _ => {}
            }
        }
        request
    }
}

/// Reads a number and rounds it up.
fn number(text: &[u8]) -> Option<u64> {
    let number: f64 = pmc_dag::number::decimal_text(text)?.parse().ok()?;
    (0.0..4e9).contains(&number).then(|| number.ceil() as u64)
}

/// Returns the command behind the options of a task.
pub(super) fn skip_options(text: &[u8]) -> &[u8] {
    let mut words = Words::new(text);
    loop {
        let command = words.rest();
        match words.next() {
            Some(word) if word.first() == Some(&b'-') => {
                let _ = words.next();
            }
            _ => return command,
        }
    }
}
