//! What the submit description of a job says, as values.

use std::borrow::Cow;
use std::collections::BTreeMap;

use pmc_dagman::write::{Dollars, SubmitFile, WriteError, class_ad_string, environment};

use crate::exec::Task;
use crate::tasks::{Plan, PlannedJob};

use super::context::{Context, VERSION};

/// A variable of the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Variable<'a> {
    name: Cow<'a, str>,
    value: Cow<'a, str>,
    /// HTCondor replaces no macro in the value.
    is_literal: bool,
}

/// What the submit description of a job says.
#[derive(Debug, Default)]
pub(super) struct Ad<'a> {
    environment: Vec<Variable<'a>>,
    /// The environment belongs to the remote job; the submitted one has none.
    pub(super) is_remote_environment: bool,
    /// Commands and attributes of the user and of the style, by name.
    pub(super) commands: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    /// Macros to which requests refer, and further ones that the user may change.
    pub(super) macros: Vec<(Cow<'static, str>, String)>,
}

impl<'a> Ad<'a> {
    /// Sets a variable to a text.
    pub(super) fn set_variable(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) {
        self.put_variable(name.into(), value.into(), true);
    }

    /// Sets a variable to a text in which HTCondor replaces macros.
    pub(super) fn set_expanded(&mut self, name: &'static str, value: impl Into<Cow<'a, str>>) {
        self.put_variable(name.into(), value.into(), false);
    }

    fn put_variable(&mut self, name: Cow<'a, str>, value: Cow<'a, str>, is_literal: bool) {
        let variable = Variable {
            name,
            value,
            is_literal,
        };
        match self
            .environment
            .iter_mut()
            .find(|other| other.name == variable.name)
        {
            Some(other) => *other = variable,
            None => self.environment.push(variable),
        }
    }

    /// Returns whether a variable is set.
    pub(super) fn has_variable(&self, name: &str) -> bool {
        self.environment.iter().any(|variable| variable.name == name)
    }

    /// Sets a command, unless the user has set it.
    pub(super) fn or_set(&mut self, name: &'static str, value: impl Into<Cow<'a, str>>) {
        self.commands
            .entry(Cow::Borrowed(name))
            .or_insert_with(|| value.into());
    }

    /// Sets a command.
    pub(super) fn set(&mut self, name: &'static str, value: impl Into<Cow<'a, str>>) {
        self.commands.insert(Cow::Borrowed(name), value.into());
    }

    /// Returns a command.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.commands.get(name).map(AsRef::as_ref)
    }

    /// Returns the universe.
    pub(super) fn universe(&self) -> &str {
        self.get("universe").unwrap_or_default()
    }

    /// Sets a command to a text in which HTCondor replaces no macro.
    pub(super) fn set_literal(&mut self, name: &'static str, text: &str) {
        self.set(name, literal(text));
    }

    /// Returns when HTCondor replaces `$$(…)`.
    pub(super) fn dollars(&self) -> Dollars {
        match self.universe().eq_ignore_ascii_case("scheduler") {
            true => Dollars::Never,
            false => Dollars::AtMatch,
        }
    }

    /// Writes the submit description.
    ///
    /// # Errors
    /// A text that it cannot express.
    pub(super) fn render(&self, context: &Context<'_>, job: PlannedJob<'_>) -> Result<String, WriteError> {
        let plan = context.plan;
        let mut file = SubmitFile::default();
        file.comment(&format!("The job {} of {}", job.name, context.workflow_name()));
        let variables = self
            .environment
            .iter()
            .map(|variable| (&*variable.name, &*variable.value, variable.is_literal));
        let text = environment(variables, self.dollars())?;
        match self.is_remote_environment {
            true => {
                file.command("environment", "\"\"")?;
                file.command("+remote_environment", &class_ad_environment(&text))?;
            }
            false => file.command("environment", &text)?,
        }
        for (name, value) in &self.commands {
            file.command(name, value)?;
        }
        for (name, value) in &self.macros {
            file.command(name, value)?;
        }
        let mut transformation = String::new();
        match job.task {
            _ if job.is_nested() => transformation.push_str("condor::dagman"),
            Task::NoOp => transformation.push_str(noop_transformation(plan)),
            _ => plan.push_transformation(&job, &mut transformation),
        }
        let application = plan.settings.condor.application.as_deref();
        let texts: [(&str, &str); 9] = [
            ("+pegasus_generator", "Pegasus"),
            ("+pegasus_root_wf_uuid", &plan.nesting.root),
            ("+pegasus_wf_uuid", plan.uuid),
            ("+pegasus_version", VERSION),
            ("+pegasus_wf_name", &context.workflow_name()),
            ("+pegasus_wf_time", &context.time),
            ("+pegasus_wf_xformation", &transformation),
            ("+pegasus_wf_dax_job_id", context.logical_id(job)),
            ("+pegasus_wf_dag_job_id", &job.name),
        ];
        let of_user = application.map(|name| ("+pegasus_wf_app", name));
        for (name, text) in texts.into_iter().chain(of_user) {
            file.command(name, &literal(&class_ad_string(text)))?;
        }
        file.command("+pegasus_job_class", &plan.exec.event_type(&job).0.to_string())?;
        let site = class_ad_string(&plan.sites.get(job.site).name);
        file.command("+pegasus_site", &literal(&site))?;
        let size = job.cluster().map_or(1, |cluster| cluster.members.len());
        file.command("+pegasus_cluster_size", &size.to_string())?;
        Ok(file.queue())
    }
}

/// Returns what Pegasus calls a job that does nothing: the only one of a plan without work, or one that
/// waits for all directories.
fn noop_transformation(plan: &Plan<'_>) -> &'static str {
    match plan.exec.jobs.len() {
        1 => "pegasus::noop:1.0",
        _ => "pegasus::dirmanager",
    }
}

/// Returns an environment in the new syntax as a string of ClassAds. It is in double quotes already, in which
/// a double quote is written twice.
fn class_ad_environment(text: &str) -> String {
    let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    class_ad_string(&inner.unwrap_or(text).replace("\"\"", "\""))
}

/// Returns a text as the value of a command in which HTCondor replaces no macro.
pub(super) fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    pmc_dagman::write::literal(text, Dollars::AtMatch, &mut out);
    out
}
