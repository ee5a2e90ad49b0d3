//! Reads the settings of batch jobs: options, else properties `pegasus.batch.*`, else profiles.

use crate::diagnostic::Diagnostic;
use crate::profiles::{Namespace, Profiles};
use crate::properties::Properties;
use crate::request::Request;
use pmc_batch::Scheduler;

use super::demand::Demand;
use super::task_files::TaskFiles;
use super::transport::Transport;

/// Keys of Globus that mean the same as those of the namespace `pegasus`.
const GLOBUS_KEYS: &[(&str, &str)] = &[
    ("maxwalltime", "maxwalltime"),
    ("nodes", "hostcount"),
    ("ppn", "xcount"),
    ("project", "project"),
    ("queue", "queue"),
];

/// Reader for settings of batch jobs.
pub(super) struct Reader<'a> {
    pub(super) properties: &'a Properties,
    pub(super) site: &'a Profiles,
    pub(super) problems: Vec<Diagnostic>,
}

impl<'a> Reader<'a> {
    /// Returns a value that is not empty: from the property `pegasus.batch.…`, else from a profile.
    pub(super) fn value(&self, property: &str, profile: Option<&str>) -> Option<&'a str> {
        let globus = || GLOBUS_KEYS.iter().find(|(key, _)| Some(*key) == profile);
        self.properties
            .get(&format!("pegasus.batch.{property}"))
            .or_else(|| self.site.pegasus(profile?))
            .or_else(|| self.site.get(Namespace::Globus, globus()?.1))
            .or_else(|| self.properties.get(&format!("pegasus.{}", profile?)))
            .or_else(|| self.properties.get(&format!("globus.{}", globus()?.1)))
            .map(str::trim)
            .filter(|t| !t.is_empty())
    }

    pub(super) fn number(
        &mut self,
        option: Option<u32>,
        property: &str,
        profile: Option<&str>,
        kind: Number,
    ) -> Option<u32> {
        if option.is_some() {
            return option;
        }
        let text = self.value(property, profile)?;
        let number = (kind.parse)(text).filter(|&n| n >= kind.min);
        if number.is_none() {
            let profile = profile.map_or(String::new(), |p| format!(" or the profile pegasus::{p}"));
            self.problems.push(Diagnostic::error(format!(
                "the property pegasus.batch.{property}{profile} must be {}, not {text}",
                kind.description
            )));
        }
        number
    }

    /// Returns the number of nodes, if it is given or a job requests several.
    pub(super) fn nodes(&mut self, option: Option<u32>, demand: Demand) -> Option<u32> {
        let given = self.number(option, "nodes", Some("nodes"), COUNT);
        given.or((demand.nodes > 1).then_some(demand.nodes))
    }

    /// Returns the number of processes on a node, if it is given. In a profile, 1 is what a serial job
    /// requests, and says nothing about the node.
    pub(super) fn tasks_per_node(&mut self, option: Option<u32>) -> Option<u32> {
        let given = self.number(option, "ppn", None, COUNT);
        given.or_else(|| {
            self.number(None, "ppn", Some("ppn"), COUNT)
                .filter(|&ppn| ppn > 1)
        })
    }

    /// Returns the additional directives.
    pub(super) fn directives(&self) -> Vec<String> {
        let text = self.value("directives", Some("glite.arguments"));
        let lines = text.unwrap_or_default().lines().map(str::trim);
        lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// Returns the transport: that of the property, else that of the launcher `none`, else MPI, or agents if
    /// a job needs several nodes at once. An executor that is known to have no MPI has agents on several
    /// nodes, and is alone on one.
    pub(super) fn transport(
        &mut self,
        launcher: Option<&str>,
        nodes: Option<u32>,
        demand: Demand,
        lacks_mpi: &dyn Fn() -> bool,
    ) -> Transport {
        let default = || match launcher {
            Some("none") => Transport::None,
            _ if demand.over_nodes.is_some() => Transport::Agents,
            _ if !lacks_mpi() => Transport::Mpi,
            _ if nodes.is_some_and(|nodes| nodes > 1) => Transport::Agents,
            _ => Transport::None,
        };
        let Some(name) = self.value("transport", None) else {
            return default();
        };
        let problem = match Transport::parse(name) {
            None => format!("the property pegasus.batch.transport must be agents, mpi or none, not {name}"),
            Some(chosen) if launcher == Some("none") && chosen != Transport::None => {
                format!("the launcher none contradicts the property pegasus.batch.transport = {name}")
            }
            Some(Transport::Mpi) if lacks_mpi() => "the property pegasus.batch.transport is mpi, but the executor was \
                                                     built without MPI: build it with the feature mpi, or remove the \
                                                     property"
                .to_owned(),
            Some(chosen) => return chosen,
        };
        self.problems.push(Diagnostic::error(problem));
        Transport::Mpi
    }

    /// Returns where the output of tasks goes.
    pub(super) fn task_files(&mut self) -> TaskFiles {
        let name = self.value("output", None).unwrap_or("auto");
        TaskFiles::parse(name).unwrap_or_else(|| {
            self.problems.push(Diagnostic::error(format!(
                "the property pegasus.batch.output must be auto, files or packed, not {name}"
            )));
            TaskFiles::Auto
        })
    }

    /// Returns a text without line breaks, which would add lines to the script.
    pub(super) fn text(
        &mut self,
        option: Option<&String>,
        property: &str,
        profile: &str,
        kind: Text,
    ) -> Option<String> {
        let value = || self.value(property, Some(profile));
        let text = option.map(String::as_str).or_else(value)?.to_owned();
        if text.contains(|c: char| c.is_control() || (kind == Text::Word && c.is_whitespace())) {
            self.problems.push(Diagnostic::error(format!(
                "the {property} of the batch job must be {}, not {text:?}",
                if kind == Text::Line {
                    "one line"
                } else {
                    "one word"
                }
            )));
        }
        Some(text)
    }
}

/// A text without line breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    Line,
    /// A text without white space.
    Word,
}

/// A kind of number.
#[derive(Clone, Copy)]
pub(super) struct Number {
    parse: fn(&str) -> Option<u32>,
    min: u32,
    description: &'static str,
}

pub(super) const COUNT: Number = Number {
    parse: |text| text.parse().ok(),
    min: 1,
    description: "a positive number",
};
pub(super) const REPEATS: Number = Number {
    parse: |text| text.parse().ok(),
    min: 0,
    description: "a whole number",
};
pub(super) const TIME: Number = Number {
    parse: parse_minutes,
    min: 1,
    description: "a positive number of minutes or HH:MM:SS",
};
pub(super) const DRAIN: Number = Number {
    parse: parse_minutes,
    min: 0,
    description: "a number of minutes or HH:MM:SS",
};
pub(super) const MEMORY: Number = Number {
    parse: parse_megabytes,
    min: 0,
    description: "a number of MiB, or a number with M, G or T",
};

/// Returns the schedulers that get a script: PBS and Slurm always, others on request.
pub(super) fn schedulers(
    request: &Request,
    property: Option<&str>,
    problems: &mut Vec<Diagnostic>,
) -> Vec<Scheduler> {
    let mut requested = request.batch.schedulers.clone();
    if requested.is_empty() {
        for name in property
            .unwrap_or_default()
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
        {
            match Scheduler::parse(name) {
                Some(scheduler) => requested.push(scheduler),
                None => problems.push(Diagnostic::error(format!(
                    "the property pegasus.batch.scheduler: {}",
                    Scheduler::unknown(name)
                ))),
            }
        }
    }
    if requested.is_empty() {
        requested.extend(request.batch.detected);
    }
    let mut all: Vec<Scheduler> = Vec::new();
    for scheduler in requested {
        match all.iter().find(|known| known.suffix() == scheduler.suffix()) {
            Some(&known) if known != scheduler => problems.push(Diagnostic::error(format!(
                "the scripts for {known} and {scheduler} would have the same name: choose one of the two"
            ))),
            Some(_) => {}
            None => all.push(scheduler),
        }
    }
    for scheduler in [Scheduler::Torque, Scheduler::Slurm] {
        if !all.iter().any(|known| known.suffix() == scheduler.suffix()) {
            all.push(scheduler);
        }
    }
    all
}

/// Parses minutes: `N` (minutes), `HH:MM`, `HH:MM:SS` or `D-HH:MM:SS`. Rounds seconds up.
pub(crate) fn parse_minutes(text: &str) -> Option<u32> {
    let text = text.trim();
    if let Ok(minutes) = text.parse::<u32>() {
        return Some(minutes);
    }
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u32>().ok()?, clock),
        None => (0, text),
    };
    let parts: Vec<u32> = clock
        .split(':')
        .map(|part| {
            part.parse()
                .ok()
                .filter(|_| part.bytes().all(|b| b.is_ascii_digit()))
        })
        .collect::<Option<_>>()?;
    let (hours, minutes, seconds) = match parts.as_slice() {
        [h, m] => (*h, *m, 0),
        [h, m, s] => (*h, *m, *s),
        _ => return None,
    };
    days.checked_mul(24 * 60)?
        .checked_add(hours.checked_mul(60)?)?
        .checked_add(minutes)?
        .checked_add(seconds.div_ceil(60))
}

/// Parses MiB: `N` (MiB) or a number with the unit M, G or T (with or without B), in powers of 1024.
pub(crate) fn parse_megabytes(text: &str) -> Option<u32> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
    let factor = match text[digits.len()..].trim().to_ascii_uppercase().as_str() {
        "" | "M" | "MB" => 1,
        "G" | "GB" => 1024,
        "T" | "TB" => 1024 * 1024,
        _ => return None,
    };
    digits.parse::<u32>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_times_are_parsed() {
        assert_eq!(parse_minutes("90"), Some(90));
        assert_eq!(parse_minutes("1:30"), Some(90));
        assert_eq!(parse_minutes("01:30:01"), Some(91));
        assert_eq!(parse_minutes("2-00:00:00"), Some(2880));
        assert_eq!(parse_minutes("soon"), None);
        assert_eq!(parse_minutes("1:-3"), None);
        assert_eq!(parse_minutes("1:2:3:4"), None);
    }

    #[test]
    fn memory_sizes_are_parsed() {
        assert_eq!(parse_megabytes("512"), Some(512));
        assert_eq!(parse_megabytes("64G"), Some(65536));
        assert_eq!(parse_megabytes("1 tb"), Some(1 << 20));
        assert_eq!(parse_megabytes("64K"), None);
        assert_eq!(parse_megabytes("G"), None);
        assert_eq!(parse_megabytes("9999999G"), None);
    }
}
