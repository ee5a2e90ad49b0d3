//! Variables of jobs.

use crate::exec::Task;
use crate::profiles::Namespace;
use crate::tasks::PlannedJob;

use super::ad::Ad;
use super::context::Context;

/// Sets what all jobs have: defaults, profiles, and who they are.
pub(super) fn add<'a>(context: &'a Context<'a>, job: PlannedJob<'a>, ad: &mut Ad<'a>) {
    let plan = context.plan;
    let site = plan.sites.get(job.site);
    ad.set_variable("LANG", "en_US.UTF-8");
    if !matches!(job.task, Task::NoOp) {
        add_profiles(context, job, ad);
    }
    ad.set_expanded("CONDOR_JOBID", "$(cluster).$(process)");
    ad.set_variable("PEGASUS_WF_UUID", plan.uuid);
    ad.set_variable("PEGASUS_WF_LABEL", plan.workflow.label.as_str());
    ad.set_variable("PEGASUS_DAG_JOB_ID", job.name.to_string());
    ad.set_variable("PEGASUS_SITE", site.name.as_str());
}

/// Sets variables of profiles, and where programs are.
fn add_profiles<'a>(context: &'a Context<'a>, job: PlannedJob<'a>, ad: &mut Ad<'a>) {
    let plan = context.plan;
    let site = plan.sites.get(job.site);
    let is_local = job.site == plan.sites.local();
    // What is meant for the program in a container stays away from the programs outside.
    let container = job.setup.container.as_ref();
    let is_inside = |name: &str| container.is_some_and(|of| of.profiles.get(Namespace::Env, name).is_some());
    let variables = job.setup.profiles.of(Namespace::Env);
    for (name, value) in variables.filter(|(name, _)| !is_inside(name)) {
        ad.set_variable(name, value);
    }
    match &site.home {
        Some(home) => ad.set_variable("PEGASUS_HOME", home.as_str()),
        None if is_local => ad.set_variable("PEGASUS_HOME", context.home.as_str()),
        None => {}
    }
    // DAGMan of a sub-workflow is found where that of this one was.
    if is_local
        && !job.is_nested()
        && !ad.has_variable("PATH")
        && let Some(path) = context.request.environment.variables.get("PATH")
    {
        ad.set_variable("PATH", path.as_str());
    }
}
