//! Batch scripts from templates (section 7.3 of the planner's specification).

use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, UndefinedBehavior, context};

use crate::plan::{PlanError, Request};
use crate::profiles::Profiles;
use crate::properties::Properties;

use super::Plan;
use super::command::shell_quote;

/// Suffix of each script and its built-in template.
const TEMPLATES: &[(&str, &str)] = &[
    ("pbs", include_str!("../../../templates/pbs.j2")),
    ("sbatch", include_str!("../../../templates/sbatch.j2")),
];

/// Nodes, processes per node and minutes when nobody says anything.
const NODES: u32 = 1;
const TASKS_PER_NODE: u32 = 2;
const MINUTES: u32 = 60;

/// What the scripts ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resources {
    nodes: u32,
    tasks_per_node: u32,
    minutes: u32,
    /// The wall time was chosen by somebody.
    minutes_given: bool,
    queue: Option<String>,
    account: Option<String>,
    launcher: Option<String>,
    templates: Option<PathBuf>,
}

impl Resources {
    /// From the options, else properties `pegasus.batch.*`, else profiles of the site (over those in
    /// properties).
    ///
    /// # Errors
    /// Values that are no positive numbers.
    pub(crate) fn new(
        request: &Request,
        properties: &Properties,
        site: &Profiles,
    ) -> Result<Self, PlanError> {
        let mut problems = Vec::new();
        let text = |property: &str, profile: &str| -> Option<String> {
            properties
                .get(&format!("pegasus.batch.{property}"))
                .or_else(|| site.pegasus(profile))
                .or_else(|| properties.get(&format!("pegasus.{profile}")))
                .map(str::trim)
                .filter(|t| !t.is_empty())
                .map(str::to_owned)
        };
        let mut number = |option: Option<u32>, property: &str, profile: &str| {
            option.or_else(|| {
                let text = text(property, profile)?;
                let number = if property == "walltime" { parse_minutes(&text) } else { text.parse().ok() };
                let number = number.filter(|&n| n > 0);
                if number.is_none() {
                    problems.push(format!(
                        "the property pegasus.batch.{property} or the profile pegasus::{profile} must be a positive \
                         number{}, not {text}",
                        if property == "walltime" { " of minutes or HH:MM:SS" } else { "" }
                    ));
                }
                number
            })
        };
        let options = &request.batch;
        let nodes = number(options.nodes, "nodes", "nodes");
        let tasks_per_node = number(options.tasks_per_node, "ppn", "ppn");
        let minutes = number(options.walltime, "walltime", "maxwalltime");
        if !problems.is_empty() {
            return Err(PlanError::Refinement(problems));
        }
        let templates = options.template_dir.clone().or_else(|| {
            let directory = properties.get("pegasus.batch.templates").map(str::trim)?;
            (!directory.is_empty()).then(|| request.surroundings.working_dir.join(directory))
        });
        Ok(Resources {
            nodes: nodes.unwrap_or(NODES),
            tasks_per_node: tasks_per_node.unwrap_or(TASKS_PER_NODE),
            minutes: minutes.unwrap_or(MINUTES),
            minutes_given: minutes.is_some(),
            queue: options.queue.clone().or_else(|| text("queue", "queue")),
            account: options.account.clone().or_else(|| text("account", "project")),
            launcher: options
                .launcher
                .clone()
                .or_else(|| text("launcher", "batch.launcher")),
            templates,
        })
    }

    /// Minutes after which the executor ends the run itself; some are left for that. Only the `.pbs` of which
    /// nobody chose the wall time keeps the figures of Pegasus.
    fn max_wall_time(&self, script: &str) -> u32 {
        match self.minutes {
            minutes if !self.minutes_given && script == "pbs" => minutes,
            minutes if minutes > 10 => minutes - 5,
            minutes => minutes.saturating_sub(1).max(1),
        }
    }

    /// What is odd about them.
    pub(crate) fn warning(&self) -> Option<String> {
        let alone = self.launcher.as_deref() == Some("none") && self.nodes > 1;
        alone.then(|| {
            format!(
                "the launcher none starts the executor on one node only; {} nodes are asked for",
                self.nodes
            )
        })
    }
}

/// Minutes from `N` (minutes), `HH:MM` or `HH:MM:SS`, `D-HH:MM:SS`; seconds are rounded up.
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

/// Writes the scripts into `dir`; gives their names.
///
/// # Errors
/// A template that is wrong, a file that cannot be written.
pub(crate) fn write(
    plan: &Plan<'_>,
    resources: &Resources,
    executor: &str,
    dir: &Path,
) -> Result<Vec<String>, PlanError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .keep_trailing_newline(true)
        .build()
        .map_err(|e| PlanError::Template {
            name: "syntax".into(),
            message: e.to_string(),
        })?;
    environment.set_syntax(syntax);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_filter("sh", |text: String| shell_quote(&text).into_owned());
    let mut names = Vec::new();
    for (suffix, built_in) in TEMPLATES {
        let own = resources
            .templates
            .as_ref()
            .map(|dir| dir.join(format!("{suffix}.j2")));
        let (template, origin) = match own.filter(|path| path.exists()) {
            Some(path) => {
                let text = std::fs::read_to_string(&path).map_err(|e| PlanError::io("read", &path, e))?;
                (text, path.display().to_string())
            }
            None => ((*built_in).to_owned(), (*suffix).to_owned()),
        };
        let values = context! {
            name => plan.base.as_str(),
            label => plan.workflow.label.as_str(),
            submit_dir => plan.submit.as_str(),
            dag => format!("{}.dag", plan.base),
            executor => executor,
            launcher => resources.launcher.as_deref().unwrap_or("mpiexec"),
            nodes => resources.nodes,
            tasks_per_node => resources.tasks_per_node,
            walltime => format!("{}:{:02}:00", resources.minutes / 60, resources.minutes % 60),
            walltime_minutes => resources.minutes,
            max_wall_time => resources.max_wall_time(suffix),
            queue => resources.queue.as_deref(),
            account => resources.account.as_deref(),
        };
        let script = environment
            .render_str(&template, values)
            .map_err(|e| PlanError::Template {
                name: origin,
                message: e.to_string(),
            })?;
        let name = format!("{}.{suffix}", plan.base);
        let path = dir.join(&name);
        std::fs::write(&path, script).map_err(|e| PlanError::io("write", &path, e))?;
        names.push(name);
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_times() {
        assert_eq!(parse_minutes("90"), Some(90));
        assert_eq!(parse_minutes("1:30"), Some(90));
        assert_eq!(parse_minutes("01:30:01"), Some(91));
        assert_eq!(parse_minutes("2-00:00:00"), Some(2880));
        assert_eq!(parse_minutes("soon"), None);
        assert_eq!(parse_minutes("1:-3"), None);
        assert_eq!(parse_minutes("1:2:3:4"), None);
    }
}
