//! Records of the plan: braindump, metrics, cache, hooks, properties.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::catalog::site::hosted;
use crate::error::PlanError;
use crate::exec::Counts;
use crate::exec::{Exec, ExecJob, Place, SiteId, Task};
use crate::ids::Id as _;
use crate::model::{Hook, JobKind, Link, Workflow};
use crate::properties::Properties;
use crate::refine::output_mapper;
use crate::refine::sites::Access;
use crate::refine::sites::selection::SiteSelector;
use crate::request::{ChosenSites, Request};

use crate::tasks::{PROPERTIES, Plan};

use super::in_order::in_order;
use super::lists::{catalog_value, catalog_word};

pub use crate::model::COMPATIBLE_VERSION;

/// Counts the jobs.
pub(crate) fn count(exec: &Exec, workflow: &Workflow) -> Counts {
    let of_kind = |kind| workflow.jobs.iter().filter(|job| job.kind == kind).count();
    let mut counts = Counts {
        tasks: workflow.jobs.len(),
        nested_tasks: of_kind(JobKind::SubWorkflow),
        nested_dag_tasks: of_kind(JobKind::SubDag),
        deleted: exec.deleted,
        total: exec.jobs.len(),
        edges: exec.edges.len(),
        ..Counts::default()
    };
    for job in &exec.jobs {
        let kind = match job.task {
            Task::Compute(_) => match exec.setups[job.setup].kind {
                JobKind::Compute => &mut counts.compute,
                JobKind::SubWorkflow => &mut counts.nested,
                JobKind::SubDag => &mut counts.nested_dags,
            },
            Task::Cluster(..) => &mut counts.clustered,
            Task::StageIn(_) => &mut counts.stage_in,
            Task::StageOut(_) => &mut counts.stage_out,
            Task::InterSite(_) => &mut counts.inter_site,
            Task::Register(_) => &mut counts.register,
            Task::CreateDir => &mut counts.create_dir,
            Task::CleanUp(_) | Task::RemoveDir => &mut counts.cleanup,
            Task::Chmod(_) => &mut counts.chmod,
            Task::NoOp => continue,
        };
        *kind += 1;
    }
    counts
}

/// Returns keys and values of the braindump, in order. `code` is about what runs the plan.
pub(crate) fn braindump(
    plan: &Plan<'_>,
    request: &Request,
    code: Vec<(&'static str, Option<String>)>,
) -> Vec<(String, Option<String>)> {
    let workflow = plan.workflow;
    let environment = &request.environment;
    let text = |s: &str| Some(s.to_owned());
    let rundir = plan.submit.rsplit('/').next().unwrap_or_default();
    [
        ("user", text(&environment.user)),
        ("grid_dn", None),
        ("submit_hostname", text(&environment.host)),
        ("root_wf_uuid", text(&plan.nesting.root)),
        ("wf_uuid", text(plan.uuid)),
        ("dax", Some(request.workflow.display().to_string())),
        ("dax_label", text(&workflow.label)),
        ("dax_index", text(&workflow.index)),
        ("dax_version", text(&workflow.version)),
        (
            "pegasus_wf_name",
            Some(format!("{}-{}", workflow.label, workflow.index)),
        ),
        (
            "timestamp",
            Some(environment.now.format("%Y%m%dT%H%M%S%z").to_string()),
        ),
        ("basedir", Some(request.dir.display().to_string())),
        ("submit_dir", text(&plan.submit)),
        ("planner", Some(format!("{}/pmc-plan", plan.own_tools))),
        ("planner_version", text(COMPATIBLE_VERSION)),
        ("pegasus_build", text(env!("CARGO_PKG_VERSION"))),
        ("planner_arguments", Some(format!("\"{} \"", request.arguments))),
        ("jsd", text("jobstate.log")),
        ("rundir", text(rundir)),
        ("bindir", text(&plan.own_tools)),
        ("vogroup", text("pegasus")),
        ("uses_pmc", Some(plan.abilities().is_pmc.to_string())),
        ("properties", text(PROPERTIES)),
        // Without this key the monitoring daemon fails when it follows a run.
        ("notify", Some(format!("{}.notify", plan.base))),
    ]
    .into_iter()
    .chain(code)
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

/// Returns the metrics as pretty-printed JSON.
pub(crate) fn metrics(
    plan: &Plan<'_>,
    request: &Request,
    properties: &Properties,
    counts: &Counts,
) -> String {
    let start = request.environment.now.timestamp_millis() as f64 / 1000.0;
    let [inputs, between, outputs] = plan.files;
    let api = plan
        .workflow
        .metadata
        .iter()
        .find(|(key, _)| &**key == "wf.api")
        .map_or("", |(_, value)| value);
    let mut app = Map::new();
    app.insert("name".into(), Value::from(plan.workflow.label.as_str()));
    if let Some(name) = properties
        .get("pegasus.metrics.app")
        .filter(|name| !name.trim().is_empty())
    {
        app.insert("name".to_owned(), Value::from(name.trim()));
    }
    for (key, value) in properties.with_prefix("pegasus.metrics.app.") {
        app.insert(key.to_owned(), Value::from(value));
    }
    let value = json!({
        "client": "pmc-plan",
        "version": env!("CARGO_PKG_VERSION"),
        "wf_api": api,
        "type": "metrics",
        "start_time": start,
        "end_time": start,
        "duration": 0,
        "exitcode": 0,
        "root_wf_uuid": plan.nesting.root,
        "wf_uuid": plan.uuid,
        "data_config": plan.settings.data.name(),
        "planner_args": format!("{} ", request.arguments),
        "uses_pmc": plan.abilities().is_pmc,
        "wf_metrics": {
            "compute_tasks": counts.tasks - counts.nested_tasks - counts.nested_dag_tasks,
            "dax_tasks": counts.nested_tasks,
            "dag_tasks": counts.nested_dag_tasks,
            "total_tasks": counts.tasks,
            "deleted_tasks": counts.deleted,
            "dax_input_files": inputs,
            "dax_inter_files": between,
            "dax_output_files": outputs,
            "dax_total_files": inputs + between + outputs,
            "compute_jobs": counts.compute,
            "clustered_jobs": counts.clustered,
            "si_tx_jobs": counts.stage_in,
            "so_tx_jobs": counts.stage_out,
            "inter_tx_jobs": counts.inter_site,
            "reg_jobs": counts.register,
            "cleanup_jobs": counts.cleanup,
            "create_dir_jobs": counts.create_dir,
            "dax_jobs": counts.nested,
            "dag_jobs": counts.nested_dags,
            "chmod_jobs": counts.chmod,
            "total_jobs": counts.total,
        },
        "app_metrics": app,
    });
    // Strings and numbers can always be serialized.
    format!("{}\n", serde_json::to_string_pretty(&value).unwrap_or_default())
}

/// Counts files of the abstract workflow: only read, written and read, only written.
pub(crate) fn count_files(workflow: &Workflow) -> [usize; 3] {
    let mut seen = vec![(false, false); workflow.files.len()];
    for file_use in workflow.jobs.iter().flat_map(|job| &job.uses) {
        let (read, written) = &mut seen[file_use.file];
        *read |= file_use.link.reads();
        // A checkpoint is for the job that writes it.
        *written |= file_use.link.writes() && file_use.link != Link::Checkpoint;
    }
    let count = |what: (bool, bool)| seen.iter().filter(|&&s| s == what).count();
    [count((true, false)), count((true, true)), count((false, true))]
}

/// Writes the cache file: locations of files in the work directories.
///
/// # Errors
/// A failed write.
pub(crate) fn write_cache(plan: &Plan<'_>, path: &Path) -> Result<(), PlanError> {
    const LINE_CHUNK: usize = 4096;
    let failed = |e| PlanError::io("write", path, e);
    let mut out = plan.secrets.create_list(path).map_err(failed)?;
    let cache = &plan.exec.cache;
    in_order(
        cache.len(),
        LINE_CHUNK,
        String::new,
        |text, range| {
            for &(file, site) in &cache[range] {
                let lfn = plan.workflow.files.name(file);
                let place = Place::Scratch(site);
                let (site, url) = plan.url_parts(&place, file, Access::Get);
                let is_word = |part: &str| part.is_empty() || matches!(catalog_word(part), Cow::Borrowed(_));
                if is_word(lfn) && url.iter().all(|part| is_word(part)) {
                    text.push_str(lfn);
                    text.push(' ');
                    for part in url {
                        text.push_str(part);
                    }
                } else {
                    text.push_str(&catalog_word(lfn));
                    text.push(' ');
                    text.push_str(&catalog_word(&url.concat()));
                }
                for part in [" site=\"", site, "\"\n"] {
                    text.push_str(part);
                }
            }
        },
        |text| {
            out.write_all(text.as_bytes()).map_err(failed)?;
            text.clear();
            Ok::<(), PlanError>(())
        },
    )?;
    for (file, url, site) in &plan.exec.bypassing {
        let lfn = catalog_word(plan.workflow.files.name(*file));
        let line = format!("{lfn} {} site={}\n", catalog_word(url), catalog_value(site));
        out.write_all(line.as_bytes()).map_err(failed)?;
    }
    Ok(())
}

/// Returns hooks of the workflow and its jobs.
pub(crate) fn notify(plan: &Plan<'_>) -> String {
    let mut text = String::new();
    let mut add = |head: &str, hooks: &mut dyn Iterator<Item = &Hook>, separate: bool| {
        let mut hooks: Vec<&Hook> = hooks.collect();
        hooks.sort_by_key(|hook| rank(&hook.when));
        if separate && !hooks.is_empty() {
            text.push('\n');
        }
        for hook in hooks {
            // A line break would split the entry.
            let command = hook.command.replace(['\n', '\r'], " ");
            // Writing into a String cannot fail.
            let _ = writeln!(text, "{head} {} {}", hook.when, command.trim());
        }
    };
    add(
        &format!("WORKFLOW {}", plan.uuid),
        &mut plan.workflow.hooks.iter(),
        false,
    );
    let mut of_job = |job: &ExecJob, head: &dyn Fn() -> String| {
        let Task::Compute(n) = job.task else { return };
        let hooks_of_job = &plan.workflow.jobs[n].hooks;
        let entry = plan.exec.setups[job.setup].entry;
        let program = entry.map(|e| &plan.catalog.entries[e].hooks);
        if hooks_of_job.is_empty() && program.is_none_or(|hooks| hooks.is_empty()) {
            return;
        }
        let mut hooks = hooks_of_job.iter().chain(program.into_iter().flatten());
        add(&head(), &mut hooks, true);
    };
    for job in &plan.exec.jobs {
        match job.task {
            Task::Cluster(n, _) => {
                let members = plan.exec.clusters[n].members.clone();
                for (k, member) in members.enumerate() {
                    let head = || format!("INVOCATION {} {}", job.name, k + 1);
                    of_job(&plan.exec.members[member], &head);
                }
            }
            _ => {
                let word = match plan.exec.setups[job.setup].kind {
                    JobKind::Compute => "JOB",
                    JobKind::SubWorkflow => "DAXJOB",
                    JobKind::SubDag => "DAGJOB",
                };
                of_job(job, &|| format!("{word} {}", job.name));
            }
        }
    }
    text
}

fn rank(when: &str) -> usize {
    let known = Hook::EVENTS;
    known.iter().position(|k| *k == when).unwrap_or(known.len())
}

/// Returns the copied properties, with the planner's decisions.
pub(crate) fn properties(
    plan: &Plan<'_>,
    request: &Request,
    properties: &Properties,
    site_file: Option<&Path>,
    transformation_file: Option<&Path>,
) -> String {
    const COPIED_PREFIXES: &[&str] = &[
        "pegasus.",
        "env.",
        "condor.",
        "globus.",
        "dagman.",
        "hints.",
        "selector.",
        "pmc.",
    ];
    let mut all: std::collections::BTreeMap<String, String> = properties
        .iter()
        .filter(|(key, _)| COPIED_PREFIXES.iter().any(|prefix| key.starts_with(prefix)))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    if !all
        .keys()
        .any(|key| key.starts_with("pegasus.catalog.replica.output"))
    {
        let url = format!("jdbc:sqlite:{}/{}.replicas.db", plan.submit, plan.base);
        all.insert("pegasus.catalog.replica.output".into(), "JDBCRC".into());
        all.insert("pegasus.catalog.replica.output.db.driver".into(), "sqlite".into());
        all.insert("pegasus.catalog.replica.output.db.url".into(), url);
    }
    for (key, file) in [
        ("pegasus.catalog.site.file", site_file),
        ("pegasus.catalog.transformation.file", transformation_file),
    ] {
        if let Some(file) = file {
            all.insert(key.into(), file.display().to_string());
        }
    }
    all.extend(super::nested::secret_properties(plan));
    if let Some(copy) = hosted::copy(properties, &request.environment.working_dir) {
        all.insert(hosted::FILE.into(), copy.display().to_string());
    }
    // The planners of sub-workflows read them in other directories.
    for key in ["pegasus.catalog.replica.file", output_mapper::MAP_FILE] {
        if let Some(file) = all.get_mut(key)
            && !file.trim().is_empty()
        {
            let absolute = request.environment.working_dir.join(file.trim());
            *file = absolute.display().to_string();
        }
    }
    for (key, value) in plan.settings.mode.properties() {
        if !all.keys().any(|known| known.eq_ignore_ascii_case(key)) {
            all.insert(key.into(), value.into());
        }
    }
    all.entry("dagman.maxpre".into()).or_insert_with(|| "1".into());
    all.insert("pegasus.home.bindir".into(), plan.own_tools.clone());
    if let Some(home) = plan.own_tools.strip_suffix("/bin") {
        all.insert("pegasus.home.sysconfdir".into(), format!("{home}/etc"));
        all.insert(
            "pegasus.home.sharedstatedir".into(),
            format!("{home}/share/pegasus"),
        );
        all.insert(
            "pegasus.home.schemadir".into(),
            format!("{home}/share/pegasus/schema"),
        );
    }
    let mut text = format!(
        "#Properties of the run, escaped as Java reads them.\n#{}\n",
        request.environment.now.format("%a %b %d %H:%M:%S UTC%:z %Y")
    );
    if !request.line.is_empty() {
        let saved = crate::saved_request::SavedRequest::new(request, chosen_sites(plan));
        // Readers of properties ignore comment lines.
        text.push_str(&saved.comment());
    }
    for (key, value) in &all {
        push_escaped(&mut text, key, true);
        text.push('=');
        push_escaped(&mut text, value, false);
        text.push('\n');
    }
    text
}

/// Returns what the program of NonJavaCallout has chosen, for those who look at the plan: that starts no
/// program.
fn chosen_sites(plan: &Plan<'_>) -> Option<ChosenSites> {
    if !matches!(plan.settings.site_selector, SiteSelector::Callout(_)) {
        return None;
    }
    let mut jobs = vec![None; plan.workflow.jobs.len()];
    for job in plan.exec.jobs.iter().chain(&plan.exec.members) {
        if let Task::Compute(n) = job.task {
            jobs[n] = u32::try_from(job.site.index()).ok();
        }
    }
    let sites = SiteId::first(plan.sites.len());
    let names = sites.map(|site| plan.sites.get(site).name.clone()).collect();
    Some(ChosenSites { names, jobs })
}

/// Escapes a text for Java's properties format.
fn push_escaped(text: &mut String, part: &str, is_key: bool) {
    for (n, c) in part.chars().enumerate() {
        match c {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            ':' | '=' | '#' | '!' => {
                text.push('\\');
                text.push(c);
            }
            ' ' if is_key || n == 0 => text.push_str("\\ "),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn properties_are_read_back_unchanged(
            pairs in proptest::collection::btree_map("[a-z.=:# \\\\é!]{1,8}", "[^$\\x00-\\x1f]{0,12}", 0..6),
        ) {
            let mut text = String::new();
            for (key, value) in &pairs {
                push_escaped(&mut text, key, true);
                text.push('=');
                push_escaped(&mut text, value, false);
                text.push('\n');
            }
            let read = Properties::parse(Path::new("p"), &text).map_err(|e| e.to_string());
            let read: Vec<(String, String)> = read
                .map(|p| p.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
                .unwrap_or_default();
            // Values are trimmed, as in all properties files.
            let expected: Vec<(String, String)> =
                pairs.into_iter().map(|(k, v)| (k, v.trim().to_owned())).collect();
            proptest::prop_assert_eq!(read, expected, "{}", text);
        }
    }

    #[test]
    fn properties_are_escaped() {
        let mut text = String::new();
        push_escaped(&mut text, "a b", true);
        text.push('=');
        push_escaped(&mut text, " jdbc:x=1\\", false);
        assert_eq!(text, "a\\ b=\\ jdbc\\:x\\=1\\\\");
    }
}
