//! Settings of clustering, from the command line and the properties.

use rustc_hash::FxHashMap;

use crate::diagnostic::Diagnostic;
use crate::error::{InputErrors, PlanError};
use crate::properties::Properties;
use crate::request::Request;

use crate::exec::Aggregator;

/// A clustering technique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Technique {
    /// Jobs of one level, transformation and site, by size or number of clusters.
    Horizontal,
    /// The same, by the run times of the jobs.
    Runtime,
    /// Jobs with the same value of the label.
    Label,
    /// All jobs.
    Whole,
}

impl Technique {
    /// Names for `--cluster`.
    const NAMES: &'static [(&'static str, Technique)] = &[
        ("horizontal", Technique::Horizontal),
        ("runtime", Technique::Runtime),
        ("label", Technique::Label),
        ("whole", Technique::Whole),
    ];
}

/// The settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterSettings {
    /// Techniques, applied in order.
    pub(crate) techniques: Vec<Technique>,
    /// Horizontal clustering is by run time.
    pub(crate) by_runtime: bool,
    /// Key of the profile that labels jobs, in lower case.
    pub(crate) label_key: String,
    /// Default jobs per cluster, by site.
    pub(crate) nodes: FxHashMap<String, u32>,
    /// A cluster may have one job.
    pub(crate) allow_single: bool,
    /// Default program that runs the jobs of a cluster.
    pub(crate) aggregator: Aggregator,
    /// Default further arguments of that program.
    pub(crate) arguments: Option<String>,
    /// pegasus-cluster keeps a log of its progress.
    pub(crate) log: bool,
    /// All clusters share that log.
    pub(crate) global_log: bool,
    /// pegasus-cluster stops at the first job that fails.
    pub(crate) first_job_fail: bool,
}

impl ClusterSettings {
    /// Reads `--cluster` and the properties `pegasus.clusterer.*`.
    ///
    /// # Errors
    /// Unknown techniques and values.
    pub(crate) fn new(
        properties: &Properties,
        request: &Request,
        problems: &mut Vec<Diagnostic>,
    ) -> Result<Self, PlanError> {
        let flag = |key: &str, default| -> Result<bool, InputErrors> { properties.get_bool(key, default) };
        let text = |key: &str| properties.get(key).map(str::trim).filter(|text| !text.is_empty());
        let mut techniques = Vec::new();
        for name in &request.cluster {
            let name = name.trim();
            match Technique::NAMES
                .iter()
                .find(|(n, _)| n.eq_ignore_ascii_case(name))
            {
                Some((_, technique)) => techniques.push(*technique),
                None if name.eq_ignore_ascii_case("none") => {}
                None => {
                    let known: Vec<&str> = Technique::NAMES.iter().map(|(name, _)| *name).collect();
                    return Err(PlanError::Unsupported(format!(
                        "--cluster: there is no technique {name}; known are {}",
                        known.join(", ")
                    )));
                }
            }
        }
        const PREFERENCE: &str = "pegasus.clusterer.preference";
        let by_runtime = match text(PREFERENCE) {
            None => false,
            Some(word) if word.eq_ignore_ascii_case("runtime") => true,
            Some(word) if ["horizontal", "size", "number"].contains(&word.to_ascii_lowercase().as_str()) => {
                false
            }
            Some(_) => {
                problems.push(properties.bad_value(PREFERENCE, "must be runtime, or left out"));
                false
            }
        };
        const AGGREGATOR: &str = "pegasus.clusterer.job.aggregator";
        let aggregator = match text(AGGREGATOR) {
            None => Aggregator::default(),
            Some(name) => Aggregator::parse(name).unwrap_or_else(|| {
                problems.push(properties.bad_value(AGGREGATOR, "must be SeqExec or MPIExec"));
                Aggregator::default()
            }),
        };
        const NODES: &str = "pegasus.clusterer.nodes";
        let mut nodes = FxHashMap::default();
        for part in text(NODES).unwrap_or_default().split(',') {
            let part = part.trim();
            if part.is_empty() {
                continue;
            }
            let pair = part
                .split_once('=')
                .map(|(site, n)| (site.trim(), n.trim().parse::<u32>()));
            match pair {
                Some((site, Ok(n))) if n > 0 && !site.is_empty() => {
                    nodes.insert(site.to_owned(), n);
                }
                _ => problems.push(properties.bad_value(
                    NODES,
                    "must be a list of SITE=NUMBER with commas between, NUMBER being the jobs of a cluster",
                )),
            }
        }
        Ok(ClusterSettings {
            techniques,
            by_runtime,
            label_key: text("pegasus.clusterer.label.key")
                .unwrap_or("label")
                .to_lowercase(),
            nodes,
            allow_single: flag("pegasus.clusterer.allow.single", false)?,
            aggregator,
            arguments: text("pegasus.clusterer.job.aggregator.arguments").map(str::to_owned),
            log: flag("pegasus.clusterer.job.aggregator.seqexec.log", false)?,
            global_log: flag("pegasus.clusterer.job.aggregator.seqexec.log.global", true)?,
            first_job_fail: flag("pegasus.clusterer.job.aggregator.seqexec.firstjobfail", true)?,
        })
    }
}
