//! Arguments of sub-workflow jobs, which are planner options. For a sub-workflow that becomes part of the
//! plan, options that the plan fulfils anyway are accepted. Options without effect on the results give a
//! warning. Other options are differences.

use std::path::{Path, PathBuf};

use crate::catalog::{SearchDirs, replica, site, transformation};
use crate::diagnostic::Diagnostic;
use crate::error::InputErrors;
use crate::expand::ExpandEnv;
use crate::input::Embedded;
use crate::model::{Arguments, Job, Workflow};
use crate::properties::{Properties, PropertySources};
use crate::request::SubworkflowOptions;

use super::super::replicas::Replicas;
use super::{Catalogs, Difference, OuterWorkflow, canonical};

/// Advice about an option that differs.
const WITH_PLAN: &str = "Plan the whole with it, or leave it out here";

/// Properties of HTCondor, of records and of transfers, or that can have one value in one plan only. They
/// change no results, so that other values than those of the whole cause a warning.
const WITHOUT_EFFECT: &[&str] = &[
    "condor.",
    "dagman.",
    "globus.",
    "pegasus.catalog.workflow.",
    "pegasus.catalog.master.",
    "pegasus.code.generator",
    "pegasus.condor.",
    "pegasus.data.configuration",
    "pegasus.dir.submit.",
    "pegasus.dir.useTimestamp",
    "pegasus.integrity.",
    "pegasus.log.",
    "pegasus.metrics.",
    "pegasus.mode",
    "pegasus.monitord.",
    "pegasus.transfer.",
];
/// Properties of the catalogs of a sub-workflow, which are added to those of the whole.
pub(super) const CATALOGS: &[&str] = &[
    "pegasus.catalog.site",
    "pegasus.catalog.transformation",
    "pegasus.catalog.replica",
];

/// What a check finds.
pub(super) struct Findings<'f> {
    pub(super) warnings: &'f mut Vec<String>,
    pub(super) problems: &'f mut Vec<Diagnostic>,
    pub(super) differences: &'f mut Vec<Difference>,
}

/// Parses the arguments of a sub-workflow job. `None` after a problem.
pub(super) fn parse(
    job: &Job,
    outer: &OuterWorkflow<'_>,
    problems: &mut Vec<Diagnostic>,
) -> Option<SubworkflowOptions> {
    let words: Vec<String> = match &job.arguments {
        Arguments::Raw(text) => pmc_dag::words::Words::new(text.as_bytes())
            .map(|word| String::from_utf8_lossy(&word).into_owned())
            .collect(),
        Arguments::Words(words) | Arguments::Exact(words) => words.iter().map(str::to_owned).collect(),
    };
    match (outer.request.parse_options)(&words) {
        Ok(options) => Some(options),
        Err(error) => {
            let message = error.to_string();
            let message = message.strip_prefix("error: ").unwrap_or(&message);
            let first = message.lines().next().unwrap_or_default();
            problems.push(Diagnostic::error(format!(
                "the job {}: its arguments {}: {first}",
                job.id,
                words.join(" ")
            )));
            None
        }
    }
}

/// Checks the arguments of a sub-workflow job. Returns the properties of its own, if it names catalogs in
/// them.
pub(super) fn check(
    workflow: &Workflow,
    job: &Job,
    outer: &OuterWorkflow<'_>,
    catalogs: &Catalogs<'_>,
    mut findings: Findings<'_>,
) -> Option<Properties> {
    let replicas = &*catalogs.replicas;
    let own = parse(job, outer, findings.problems)?;
    let request = outer.request;
    let differences = &mut *findings.differences;
    let mut refuse = |option: &str, value: String, advice: &str| {
        differences.push(Difference::new(
            format!("it has the argument {option} {value}"),
            format!(
                "the job {}: its argument {option} {value} differs from what the workflow around it is planned with; \
                 its jobs become part of that plan. {advice}",
                job.id
            ),
        ));
    };
    let site = |name: &String| match catalogs.sites.is_undefined_local(name) {
        true => "local".to_owned(),
        false => name.clone(),
    };
    let differ = |own: &[String], whole: &[String]| -> bool {
        let whole: Vec<String> = whole.iter().map(site).collect();
        let any = whole.iter().any(|name| name == "*");
        !own.iter().map(site).all(|name| any || whole.contains(&name))
    };
    if !request.sites.is_empty() && differ(&own.sites, &request.sites) {
        refuse("--sites", own.sites.join(","), WITH_PLAN);
    }
    if differ(&own.output_sites, &request.output_sites) {
        refuse("--output-sites", own.output_sites.join(","), WITH_PLAN);
    }
    let here = &request.environment.working_dir;
    if let Some(dir) = &own.output_dir
        && request.output_dir.as_ref().map(|d| here.join(d)) != Some(here.join(dir))
    {
        refuse("--output-dir", dir.clone(), WITH_PLAN);
    }
    let path = |file: &PathBuf| locate(file, workflow, replicas, here);
    for (option, own, whole) in [
        ("--cache", &own.cache, &request.cache_files),
        ("--inherited-rc-files", &own.inherited, &request.inherited_files),
        ("--input-dir", &own.input_dirs, &request.input_dirs),
    ] {
        for file in own {
            let file = canonical(&path(file));
            if !whole.iter().any(|known| canonical(known) == file) {
                refuse(option, file.display().to_string(), WITH_PLAN);
            }
        }
    }
    if let Some(dir) = &own.transformations_dir {
        let dir = canonical(&path(dir));
        if request.transformations_dir.as_deref().map(canonical) != Some(dir.clone()) {
            refuse("--transformations-dir", dir.display().to_string(), WITH_PLAN);
        }
    }
    let properties = own_properties(job, outer, &own, path, &mut findings);
    if !own.without_effect.is_empty() {
        findings.warnings.push(format!(
            "the job {}: the arguments {} are ignored, since its jobs become jobs of this plan, where the options \
             of the whole hold",
            job.id,
            own.without_effect.join(", ")
        ));
    }
    properties
}

/// Returns the file that an argument names: a logical file, else one beside the workflow, else one in the
/// working directory.
pub(super) fn locate(file: &Path, workflow: &Workflow, replicas: &Replicas, here: &Path) -> PathBuf {
    let known = replicas.lookup(&file.to_string_lossy());
    match known.and_then(|known| known.replicas.into_iter().next()) {
        Some(replica) => replica.pfn.strip_prefix("file://").unwrap_or(&replica.pfn).into(),
        None => {
            let beside = workflow.path.with_file_name(file);
            if file.is_relative() && beside.exists() {
                beside
            } else {
                here.join(file)
            }
        }
    }
}

/// Reads the catalogs that the properties of a sub-workflow job name.
///
/// # Errors
/// All problems of the catalogs.
pub(super) fn catalogs(
    own: &Properties,
    workflow: &Workflow,
    part: &Workflow,
    outer: &OuterWorkflow<'_>,
    replicas: &Replicas,
    env: &ExpandEnv,
) -> Result<Embedded, InputErrors> {
    let here = &outer.request.environment.working_dir;
    let mut properties = own.clone();
    for key in CATALOGS {
        let key = format!("{key}.file");
        if let Some(file) = own.get(&key).filter(|file| !file.is_empty()) {
            let file = locate(Path::new(file), workflow, replicas, here);
            properties.set(&key, &file.display().to_string());
        }
    }
    let names = |key: &str| own.get(key).is_some() || own.get(&format!("{key}.file")).is_some();
    let [sites, programs, locations] = [CATALOGS[0], CATALOGS[1], CATALOGS[2]].map(names);
    let sites = sites || own.get(site::hosted::FILE).is_some();
    let dirs = SearchDirs::from(here.as_path());
    let mut catalogs = Embedded::default();
    if sites {
        catalogs.sites = Some(site::load_from_properties(&properties, dirs, env)?.catalog);
    }
    if programs {
        catalogs.transformations =
            Some(transformation::load_from_properties(&properties, dirs, env)?.catalog);
    }
    if locations {
        let loaded = replica::load_from_properties(&properties, dirs, env, replica::Wanted::by(part))?;
        catalogs.replicas = Some(loaded.catalog);
    }
    Ok(catalogs)
}

/// Refuses properties that differ from those of the outer workflow. Returns the properties if they name other
/// catalogs.
fn own_properties(
    job: &Job,
    outer: &OuterWorkflow<'_>,
    own: &SubworkflowOptions,
    path: impl Fn(&PathBuf) -> PathBuf,
    findings: &mut Findings<'_>,
) -> Option<Properties> {
    let request = outer.request;
    let conf = own
        .conf
        .as_ref()
        .map(path)
        .filter(|file| Some(canonical(file)) != request.conf.as_deref().map(canonical));
    let sources = PropertySources {
        system_file: None,
        user_file: None,
        working_file: None,
        conf_file: conf,
        environment: Vec::new(),
        command_line: own.defines.clone(),
        is_conf_of_plan: false,
    };
    let properties = match Properties::load(&sources) {
        Ok(properties) => properties,
        Err(error) => {
            let problem = Diagnostic::error(format!("the job {}: {error}", job.id));
            findings.problems.push(problem);
            return None;
        }
    };
    let starts = |key: &str, list: &[&str]| list.iter().any(|prefix| key.starts_with(prefix));
    let mut ignored = Vec::new();
    let mut has_catalogs = false;
    for (key, value) in properties.iter() {
        if outer.properties.get(key) == Some(value) {
            continue;
        }
        if starts(key, CATALOGS) {
            has_catalogs = true;
        } else if starts(key, WITHOUT_EFFECT) {
            ignored.push(key);
        } else {
            let with = outer.properties.get(key).map_or_else(
                || "which the workflow around it is planned without".to_owned(),
                |whole| format!("which is {whole} for the workflow around it"),
            );
            findings.differences.push(Difference::new(
                format!("it has the property {key} = {value}"),
                format!(
                    "the job {}: its workflow is to have the property {key} = {value}, {with}; its jobs become part of \
                     that plan. {WITH_PLAN}",
                    job.id
                ),
            ));
        }
    }
    if !ignored.is_empty() {
        findings.warnings.push(format!(
            "the job {}: the properties {} of its workflow are ignored, since its jobs become jobs of this plan",
            job.id,
            ignored.join(", ")
        ));
    }
    has_catalogs.then_some(properties)
}
