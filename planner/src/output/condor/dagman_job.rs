//! The job that runs DAGMan: `B.dag.condor.sub`, as `condor_submit_dag` writes it, so that planning needs no
//! program of HTCondor.

use pmc_dagman::write::{Dollars, SubmitFile, WriteError, class_ad_string, environment};

use crate::profiles::{Namespace, Profiles};
use crate::refine::java_hash_order::{hash, sort_hashed};
use crate::tasks::requests::dagman;

use super::ad::literal;
use super::context::{Context, VERSION};

/// Suffix of the file.
pub(super) const SUFFIX: &str = ".dag.condor.sub";

/// Environment variables that the job of DAGMan gets from the user who submits it.
pub(super) const GETENV: &str = "CONDOR_CONFIG,_CONDOR_*,PATH,PYTHONPATH,PERL*,PEGASUS_*,TZ,HOME,USER,LANG,LC_ALL,\
    ASAN_OPTIONS,LSAN_OPTIONS,BEARER_TOKEN,BEARER_TOKEN_FILE,XDG_RUNTIME_DIR";

/// Variables that it takes over from the planner.
const KEPT_VARIABLES: [&str; 8] = [
    "USER",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "JAVA_HEAPMAX",
    "JAVA_HEAPMIN",
    "PEGASUS_UPDATE_PYTHONPATH",
];

/// When HTCondor removes the job: at its end, but not when the machine goes down or a signal ends DAGMan.
pub(super) const ON_EXIT_REMOVE: &str =
    "(ExitSignal =?= 11 || (ExitCode =!= UNDEFINED && ExitCode >=0 && ExitCode <= 2))";

/// Jobs that go with the job of DAGMan.
pub(super) const REMOVED_WITH_IT: &str = "\"DAGManJobId =?= $(cluster)\"";

/// Limits of DAGMan: properties and options.
const LIMITS: [(&str, &str, Option<&str>); 4] = [
    ("maxpre", "-MaxPre", Some("1")),
    ("maxpost", "-MaxPost", Some("20")),
    ("maxjobs", "-MaxJobs", None),
    ("maxidle", "-MaxIdle", None),
];

/// Returns the submit description.
///
/// # Errors
/// A text that it cannot express.
pub(super) fn description(context: &Context<'_>) -> Result<String, WriteError> {
    let plan = context.plan;
    let dag = format!("{}.dag", plan.base);
    let mut file = SubmitFile::default();
    file.comment(&format!("DAGMan for {dag}"));
    let limits = limits(&[&plan.settings.profiles], true);
    let arguments = arguments(&dag, &limits);
    file.comment(&format!("condor_submit_dag -no_submit {limits}"));
    for (name, value) in [
        ("universe", "scheduler".to_owned()),
        (
            "executable",
            literal(&format!("{}/bin/pegasus-dagman", context.home)),
        ),
        ("getenv", GETENV.to_owned()),
        ("output", format!("{dag}.lib.out")),
        ("error", format!("{dag}.lib.err")),
        ("log", format!("{dag}.dagman.log")),
        ("remove_kill_sig", "SIGUSR1".to_owned()),
        ("+OtherJobRemoveRequirements", REMOVED_WITH_IT.to_owned()),
        ("on_exit_remove", ON_EXIT_REMOVE.to_owned()),
        ("copy_to_spool", "False".to_owned()),
        ("arguments", format!("\"{arguments}\"")),
    ] {
        file.command(name, &value)?;
    }
    for (name, text) in [
        ("+pegasus_wf_uuid", plan.uuid),
        ("+pegasus_root_wf_uuid", &plan.nesting.root),
        ("+pegasus_wf_name", &context.workflow_name()),
        ("+pegasus_wf_time", &context.time),
        ("+pegasus_version", VERSION),
    ] {
        file.command(name, &literal(&class_ad_string(text)))?;
    }
    file.command("+pegasus_job_class", "11")?;
    file.command("+pegasus_cluster_size", "1")?;
    file.command("+pegasus_site", "\"local\"")?;
    let mut sites: Vec<&str> = plan.sites.names(&plan.sites.candidates);
    let count = sites.len();
    sort_hashed(&mut sites, count, |name| hash(name));
    let sites = class_ad_string(&sites.join(","));
    file.command("+pegasus_execution_sites", &literal(&sites))?;
    file.command("+pegasus_wf_xformation", "\"pegasus::dagman\"")?;
    file.command("environment", &variables(context, &dag)?)?;
    Ok(file.queue())
}

/// Returns the limits of DAGMan as options: of the first profiles that name them, else the defaults.
pub(super) fn limits(profiles: &[&Profiles], has_defaults: bool) -> String {
    let given = LIMITS.iter().filter_map(|(key, option, default)| {
        // The number of preparations has no limit of its own in the original's call.
        let default = default.filter(|_| has_defaults && *key != "maxpre");
        let named = profiles.iter().find_map(|profiles| dagman(profiles, key));
        Some(format!("{option} {}", named.or(default)?))
    });
    given.collect::<Vec<_>>().join(" ")
}

/// Returns the arguments of `condor_dagman`.
pub(super) fn arguments(dag: &str, limits: &str) -> String {
    format!(
        "-p 0 -f -l . -Notification never -Debug 3 -Lockfile {dag}.lock -Dag {dag} -AllowVersionMismatch \
         -AutoRescue 1 -DoRescueFrom 0 {limits}"
    )
}

/// Returns the environment of DAGMan.
fn variables(context: &Context<'_>, dag: &str) -> Result<String, WriteError> {
    let plan = context.plan;
    let mut all: Vec<(String, String)> = vec![
        ("_CONDOR_DAGMAN_LOG".into(), format!("{dag}.dagman.out")),
        ("_CONDOR_MAX_DAGMAN_LOG".into(), "0".into()),
        ("PEGASUS_METRICS".into(), "true".into()),
    ];
    let own = &context.request.environment.variables;
    let is_kept = |name: &str| KEPT_VARIABLES.contains(&name) || name.starts_with("PERL");
    let kept = own.iter().filter(|(name, _)| is_kept(name));
    all.extend(kept.map(|(name, value)| (name.clone(), value.clone())));
    let local = &plan.sites.get(plan.sites.local()).profiles;
    let profiles = [&plan.settings.profiles, local];
    for (name, value) in profiles.iter().flat_map(|profiles| profiles.of(Namespace::Env)) {
        if matches!(name, "PATH" | "PYTHONPATH") || plan.secrets.has(name) {
            continue;
        }
        all.retain(|(other, _)| other != name);
        all.push((name.to_owned(), value.to_owned()));
    }
    all.retain(|(name, _)| name != "PEGASUS_HOME");
    all.push(("PEGASUS_HOME".into(), context.home.clone()));
    let pairs = all
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str(), true));
    environment(pairs, Dollars::Never)
}
