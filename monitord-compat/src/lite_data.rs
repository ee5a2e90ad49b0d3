//! The line in which a lite job says how long its steps took and how many bytes it moved.
//!
//! Pegasus' monitoring does not know it, and keeps it with the rest of standard error.

use std::fmt;
use std::ops::AddAssign;

/// Beginning of the line.
const MARK: &str = "PegasusLite: data ";

/// A line feed in the columns of the STAMPEDE database.
const ENCODED_LINE_FEED: &str = "%0A";

/// Times and bytes of one or more lite jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LiteData {
    /// Seconds until all inputs, or the image of the container, were there and verified.
    pub stage_in: f64,
    /// Seconds of the program, in its container if it has one.
    pub run: f64,
    /// Seconds in which outputs were delivered.
    pub stage_out: f64,
    /// Seconds of `stage_in` in which another job of the node fetched what this one needed.
    pub waited: f64,
    /// Bytes that came from elsewhere.
    pub fetched: u64,
    /// Bytes that another job of the node had fetched.
    pub cached: u64,
    /// Bytes that came from other nodes of the run.
    pub from_peers: u64,
    /// Bytes that were delivered.
    pub delivered: u64,
}

impl AddAssign for LiteData {
    fn add_assign(&mut self, other: Self) {
        self.stage_in += other.stage_in;
        self.run += other.run;
        self.stage_out += other.stage_out;
        self.waited += other.waited;
        self.fetched = self.fetched.saturating_add(other.fetched);
        self.cached = self.cached.saturating_add(other.cached);
        self.from_peers = self.from_peers.saturating_add(other.from_peers);
        self.delivered = self.delivered.saturating_add(other.delivered);
    }
}

impl fmt::Display for LiteData {
    /// Writes the line without a line feed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{MARK}stage_in={:.3} run={:.3} stage_out={:.3} waited={:.3} fetched={} cached={} from_peers={} \
             delivered={}",
            self.stage_in,
            self.run,
            self.stage_out,
            self.waited,
            self.fetched,
            self.cached,
            self.from_peers,
            self.delivered
        )
    }
}

/// Finds the last line in the standard error of a job, or in that column of the database. Keys that are not
/// known are left out.
#[must_use]
pub fn find(text: &str) -> Option<LiteData> {
    let begins_line =
        |before: &str| before.is_empty() || before.ends_with('\n') || before.ends_with(ENCODED_LINE_FEED);
    let (at, _) = text
        .rmatch_indices(MARK)
        .find(|(at, _)| begins_line(&text[..*at]))?;
    let line = text[at + MARK.len()..].split(['\n', '%']).next()?;
    let mut data = LiteData::default();
    for word in line.split_ascii_whitespace() {
        let (key, value) = word.split_once('=')?;
        let seconds = || {
            value
                .parse()
                .ok()
                .filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0)
        };
        match key {
            "stage_in" => data.stage_in = seconds()?,
            "run" => data.run = seconds()?,
            "stage_out" => data.stage_out = seconds()?,
            "waited" => data.waited = seconds()?,
            "fetched" => data.fetched = value.parse().ok()?,
            "cached" => data.cached = value.parse().ok()?,
            "from_peers" => data.from_peers = value.parse().ok()?,
            "delivered" => data.delivered = value.parse().ok()?,
            _ => {}
        }
    }
    Some(data)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DATA: LiteData = LiteData {
        stage_in: 0.25,
        run: 1.5,
        stage_out: 0.125,
        waited: 0.0,
        fetched: 2048,
        cached: 7,
        from_peers: 3,
        delivered: 1,
    };

    #[test]
    fn the_last_line_counts_in_files_and_columns() {
        let line = DATA.to_string();
        assert_eq!(
            line,
            "PegasusLite: data stage_in=0.250 run=1.500 stage_out=0.125 waited=0.000 fetched=2048 cached=7 from_peers=3 \
             delivered=1"
        );
        let text = format!("PegasusLite: data run=9\n{line} later=1\nPegasusLite: exitcode 0\n");
        assert_eq!(find(&text), Some(DATA));
        assert_eq!(find(&text.replace('\n', "%0A")), Some(DATA));
        assert_eq!(find(&format!("echo {line}\n")), None);
        for wrong in ["run=x", "run=-1", "run=NaN", "fetched=-1", "run"] {
            assert_eq!(find(&format!("PegasusLite: data {wrong}\n")), None, "{wrong}");
        }
        let mut sum = DATA;
        sum += DATA;
        assert_eq!((sum.run, sum.fetched), (3.0, 4096));
    }

    proptest! {
        #[test]
        fn no_text_is_too_much(text in ".{0,40}", more in ".{0,40}") {
            let _ = find(&text);
            let _ = find(&format!("{text}\n{MARK}{more}"));
        }
    }
}
