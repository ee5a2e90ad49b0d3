//! Typed settings of the refinement, read from the properties.

mod generator;
mod lite_cache;
mod subworkflows;

use crate::data_mode::{DataMode, StagingMapper};
use crate::diagnostic::Diagnostic;
use crate::error::{InputErrors, PlanError};
use crate::profiles::{Namespace, Profiles, parse_bool};
use crate::properties::Properties;
use crate::request::{CleanupStrategy, Request};

use super::cleanup::space::SpaceSettings;
use super::cluster::settings::ClusterSettings;
use super::output_mapper::{self, StorageMapper};
use super::select::ranking::{self, ReplicaSelector};
use super::sites::{self, selection::SiteSelector};
pub(crate) use generator::{Abilities, CodeGenerator, generator};
pub(crate) use lite_cache::LiteCache;
pub(crate) use subworkflows::Subworkflows;

/// Where files that belong to a job lie in the submit directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SubmitMapper {
    /// All in one directory.
    Flat,
    /// One directory per transformation.
    Named,
    /// Spread over numbered directories.
    Hashed {
        /// Levels of directories.
        levels: u32,
        /// Added to the counter for each job.
        multiplier: u32,
    },
}

/// Jobs that depend on the create-dir job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateDirStrategy {
    /// The first ones.
    Minimal,
    /// All.
    Tentacles,
    /// A no-op job, on which the first jobs of all sites depend.
    HourGlass,
}

/// How files are distributed over transfer jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refiner {
    /// Per level, file by file in turn.
    BalancedCluster,
    /// Per level, compute job by compute job in turn.
    Cluster,
    /// One transfer job per compute job.
    Basic,
    /// A few stage-in jobs for the whole workflow.
    Bundle,
    /// No transfer jobs: nothing is moved or registered.
    Empty,
}

/// How far data reuse goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReuseScope {
    /// All jobs.
    Full,
    /// Jobs with the profile `enable_for_data_reuse`.
    Partial,
    /// None.
    None,
}

/// Files whose checksums are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Integrity {
    /// All files.
    Full,
    /// All files but links.
    NoSymlink,
    /// No files.
    None,
}

/// Numbers of transfer jobs per level, if they are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clusters {
    /// For jobs that run on the submit host.
    pub(crate) local: Option<u32>,
    /// For jobs that run on the staging site.
    pub(crate) remote: Option<u32>,
}

impl Clusters {
    fn new(properties: &Properties, direction: &str) -> Result<Self, InputErrors> {
        let all = positive(properties, &format!("pegasus.{direction}.clusters"))?;
        Ok(Clusters {
            local: positive(properties, &format!("pegasus.{direction}.local.clusters"))?.or(all),
            remote: positive(properties, &format!("pegasus.{direction}.remote.clusters"))?.or(all),
        })
    }
}

/// `pegasus.mode`: a set of default values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Production,
    /// No retries, no checksums.
    Development,
    /// As development, with verbose programs.
    Debug,
    /// One retry only, so that failures show early.
    Tutorial,
}

impl Mode {
    /// Arguments of transfer jobs.
    pub(crate) fn transfer_arguments(self) -> &'static str {
        match self {
            Mode::Production | Mode::Development => "",
            Mode::Debug => "--debug -m 1",
            Mode::Tutorial => "-m 1",
        }
    }
    /// Properties that the mode implies, for programs that read the copy of the properties.
    pub(crate) fn properties(self) -> Vec<(&'static str, &'static str)> {
        // Some have no effect here. Tools that compare the copy expect them.
        let mut all = match self {
            Mode::Production => return Vec::new(),
            Mode::Development | Mode::Debug => {
                vec![("dagman.RETRY", "0"), ("pegasus.integrity.checking", "none")]
            }
            Mode::Tutorial => vec![("dagman.RETRY", "1")],
        };
        if self == Mode::Debug {
            all.push(("pegasus.monitord.arguments", "-vvv"));
        }
        let arguments = self.transfer_arguments();
        if !arguments.is_empty() {
            all.push(("pegasus.transfer.arguments", arguments));
            all.push(("pegasus.transfer.lite.arguments", arguments));
        }
        all.push((
            "condor.periodic_remove",
            "(JobStatus == 5) && ((CurrentTime - EnteredCurrentStatus) > 30)",
        ));
        all
    }
}

/// Values of `pegasus.mode`.
const MODES: &[(&str, Mode)] = &[
    ("production", Mode::Production),
    ("development", Mode::Development),
    ("debug", Mode::Debug),
    ("tutorial", Mode::Tutorial),
];

/// Values of `pegasus.dir.create.strategy`.
const CREATE_DIR_STRATEGIES: &[(&str, CreateDirStrategy)] = &[
    ("Minimal", CreateDirStrategy::Minimal),
    ("Tentacles", CreateDirStrategy::Tentacles),
    ("HourGlass", CreateDirStrategy::HourGlass),
];

/// Values of `pegasus.transfer.refiner`.
const REFINERS: &[(&str, Refiner)] = &[
    ("BalancedCluster", Refiner::BalancedCluster),
    ("Cluster", Refiner::Cluster),
    ("Basic", Refiner::Basic),
    ("Bundle", Refiner::Bundle),
    ("Empty", Refiner::Empty),
];

/// Values of `pegasus.integrity.checking`.
const INTEGRITY_CHECKS: &[(&str, Integrity)] = &[
    ("full", Integrity::Full),
    ("nosymlink", Integrity::NoSymlink),
    ("none", Integrity::None),
];

/// Values of `pegasus.file.cleanup.strategy`.
const CLEANUP_STRATEGIES: &[(&str, CleanupStrategy)] = &[
    ("InPlace", CleanupStrategy::InPlace),
    ("Constraint", CleanupStrategy::Constraint),
    ("Leaf", CleanupStrategy::Leaf),
    ("None", CleanupStrategy::None),
];

/// Values of `pegasus.lite.form`.
const LITE_FORMS: &[(&str, Option<bool>)] = &[("native", Some(false)), ("script", Some(true))];

/// What concerns plans for HTCondor only.
#[derive(Clone, Debug)]
pub(crate) struct CondorSettings {
    /// Jobs with directories of their own are scripts, or are not, if that is said.
    pub(crate) lite_scripts: Option<bool>,
    /// Jobs have priorities by kind and depth.
    pub(crate) assigns_priorities: bool,
    /// Jobs of each kind count for a limit of the pool.
    pub(crate) limits_concurrency: bool,
    /// Name of the application.
    pub(crate) application: Option<Box<str>>,
    /// HTCondor encrypts credentials that travel with jobs.
    pub(crate) encrypts_credentials: bool,
    /// Job scripts want a worker package of the same version.
    pub(crate) package_is_strict: bool,
    /// Job scripts may download a worker package.
    pub(crate) package_is_downloaded: bool,
}

/// The settings.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) generator: CodeGenerator,
    /// What becomes of sub-workflows.
    pub(crate) subworkflows: Subworkflows,
    /// Sub-workflows that are planned when their turn comes clean up after themselves.
    pub(crate) cleanup_deferred: bool,
    /// How jobs get their files, unless a profile says otherwise.
    pub(crate) data: DataMode,
    /// A property names it.
    pub(crate) data_is_named: bool,
    /// All inputs of jobs with directories of their own bypass the staging site.
    pub(crate) bypass: bool,
    /// The cache of a node.
    pub(crate) lite_cache: LiteCache,
    /// Files of jobs in containers are fetched and delivered outside of them.
    pub(crate) transfers_on_host: bool,
    /// Layout of files on staging sites.
    pub(crate) staging_mapper: StagingMapper,
    pub(crate) submit_mapper: SubmitMapper,
    pub(crate) storage_mapper: StorageMapper,
    pub(crate) dir_exec: Option<String>,
    pub(crate) storage_deep: bool,
    pub(crate) use_timestamp: bool,
    pub(crate) register: bool,
    pub(crate) register_deep: bool,
    pub(crate) create_dir: CreateDirStrategy,
    pub(crate) refiner: Refiner,
    pub(crate) stage_in: Clusters,
    pub(crate) stage_out: Clusters,
    pub(crate) links: bool,
    pub(crate) staging_delimiter: String,
    pub(crate) no_chmod_sites: Vec<String>,
    pub(crate) remote_sites: RemoteSites,
    pub(crate) integrity: Integrity,
    pub(crate) cleanup: CleanupStrategy,
    pub(crate) cleanup_jobs: Option<u32>,
    pub(crate) cleanup_size: Option<u32>,
    /// Name patterns of files that clean-up keeps.
    pub(crate) cleanup_kept: Vec<String>,
    pub(crate) space: SpaceSettings,
    pub(crate) reuse: ReuseScope,
    pub(crate) replica_selector: ReplicaSelector,
    pub(crate) site_selector: SiteSelector,
    /// Seed of the random site selectors.
    pub(crate) seed: u64,
    /// Job clustering.
    pub(crate) cluster: ClusterSettings,
    pub(crate) cache_adds: bool,
    pub(crate) workflow_adds: bool,
    pub(crate) transformations: TransformationChoice,
    pub(crate) stat: bool,
    /// A job fails if it does not write its declared outputs.
    pub(crate) check_outputs: bool,
    pub(crate) lof: bool,
    /// Each job has its own lists of files, since the user asked for lists.
    pub(crate) lists_apart: bool,
    pub(crate) set_xbit: bool,
    pub(crate) gridstart_label: bool,
    pub(crate) invoke_always: bool,
    pub(crate) invoke_disable: bool,
    pub(crate) invoke_length: usize,
    pub(crate) condor: CondorSettings,
    pub(crate) mode: Mode,
    /// Profiles for every job, of lowest precedence.
    pub(crate) profiles: Profiles,
    /// Properties without effect.
    pub(crate) warnings: Vec<String>,
}

/// Sites whose transfer jobs must run on the site itself; `*` for all.
#[derive(Clone, Debug, Default)]
pub(crate) struct RemoteSites {
    pub(crate) all: Vec<String>,
    pub(crate) stage_in: Vec<String>,
    pub(crate) inter: Vec<String>,
    pub(crate) stage_out: Vec<String>,
}

impl RemoteSites {
    fn new(properties: &Properties) -> Self {
        let sites = |direction: &str| {
            let key = format!("pegasus.transfer.{direction}.remote.sites");
            list(properties.get(&key))
        };
        RemoteSites {
            all: sites("*"),
            stage_in: sites("stagein"),
            inter: sites("inter"),
            stage_out: sites("stageout"),
        }
    }
}

/// Which catalog entries may be used for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransformationChoice {
    /// Installed at the site, or stageable from anywhere.
    All,
    /// Only installed ones.
    Installed,
    /// Only stageable ones.
    Staged,
    /// Only stageable ones on `local`.
    Submit,
}

/// Values of the properties that choose transformations.
const TRANSFORMATION_CHOICES: &[(&str, TransformationChoice)] = &[
    ("All", TransformationChoice::All),
    ("Random", TransformationChoice::All),
    ("Installed", TransformationChoice::Installed),
    ("Staged", TransformationChoice::Staged),
    ("Submit", TransformationChoice::Submit),
];

/// Splits a list at commas.
fn list(text: Option<&str>) -> Vec<String> {
    text.unwrap_or_default()
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

impl Settings {
    /// Reads the settings from the properties and the command line.
    ///
    /// # Errors
    /// Values without a meaning, and choices that are not offered.
    pub(crate) fn new(properties: &Properties, request: &Request) -> Result<Self, PlanError> {
        let (generator, data) = (generator(properties)?, data_mode(properties)?);
        let mut problems = Vec::new();
        let mut choices = Choices {
            properties,
            problems: &mut problems,
        };
        let mode = choices.one_of("pegasus.mode", Mode::Production, MODES);
        let is_development = matches!(mode, Mode::Debug | Mode::Development);
        let (submit_mapper, staging_mapper) = (choices.submit_mapper()?, choices.staging_mapper(data)?);
        let storage_mapper = output_mapper::mapper(properties, choices.problems);
        let (subworkflows, cleanup_deferred) = choices.subworkflows(generator.abilities());
        let create_dir = choices.create_dir();
        let refiner = choices.one_of("pegasus.transfer.refiner", Refiner::BalancedCluster, REFINERS);
        let replica_selector = ranking::selector(properties, choices.problems);
        let transformations = choices.transformations();
        let (integrity, lite_cache) = (choices.integrity(is_development), choices.lite_cache());
        let condor = choices.condor();
        let site_selector = sites::settings::selector(properties, request, choices.problems);
        let seed = sites::settings::seed(properties, request, choices.problems);
        let cluster = ClusterSettings::new(properties, request, choices.problems)?;
        let cleanup = request.cleanup.unwrap_or_else(|| choices.cleanup());
        InputErrors::check(problems)?;
        let is_set = |key: &str, default: bool| properties.get_bool(key, default);
        let stat = is_set("pegasus.gridstart.kickstart.stat", true)?;
        let lists_apart = is_set("pegasus.gridstart.generate.lof", false)?;
        Ok(Settings {
            generator,
            subworkflows,
            cleanup_deferred,
            data,
            data_is_named: text(properties, "pegasus.data.configuration").is_some(),
            bypass: is_set("pegasus.transfer.bypass.input.staging", false)?,
            lite_cache,
            transfers_on_host: is_set("pegasus.transfer.container.onhost", true)?,
            staging_mapper,
            submit_mapper,
            storage_mapper,
            dir_exec: text(properties, "pegasus.dir.exec"),
            storage_deep: is_set("pegasus.dir.storage.deep", false)?,
            use_timestamp: is_set("pegasus.dir.useTimestamp", false)?,
            register: is_set("pegasus.register", true)?,
            register_deep: is_set("pegasus.register.deep", true)?,
            create_dir,
            refiner,
            stage_in: Clusters::new(properties, "stagein")?,
            stage_out: Clusters::new(properties, "stageout")?,
            links: is_set("pegasus.transfer.links", false)?,
            staging_delimiter: staging_delimiter(properties),
            no_chmod_sites: list(properties.get("pegasus.transfer.disable.chmod.sites")),
            remote_sites: RemoteSites::new(properties),
            integrity,
            cleanup,
            cleanup_jobs: positive(properties, "pegasus.file.cleanup.clusters.num")?,
            cleanup_size: positive(properties, "pegasus.file.cleanup.clusters.size")?,
            cleanup_kept: list(properties.get("pegasus.file.cleanup.exclude")),
            space: SpaceSettings::new(properties, &request.environment.working_dir)?,
            reuse: reuse_scope(properties, request),
            replica_selector,
            site_selector,
            seed,
            cluster,
            cache_adds: is_set("pegasus.catalog.replica.cache.asrc", false)?,
            workflow_adds: is_set("pegasus.catalog.replica.dax.asrc", false)?,
            transformations,
            stat,
            check_outputs: is_set("pmc.check.outputs", true)?,
            lof: stat || lists_apart,
            lists_apart,
            set_xbit: is_set("pegasus.gridstart.kickstart.set.xbit", false)?,
            gridstart_label: is_set("pegasus.gridstart.label", true)?,
            invoke_always: is_set("pegasus.gridstart.invoke.always", false)?,
            invoke_disable: is_set("pegasus.gridstart.invoke.disable", false)?,
            invoke_length: properties
                .get_number("pegasus.gridstart.invoke.length")?
                .map_or(4000, |n| usize::try_from(n).unwrap_or(usize::MAX)),
            condor,
            mode,
            profiles: default_profiles(properties, is_development),
            warnings: warnings(properties, refiner, data),
        })
    }
}

fn staging_delimiter(properties: &Properties) -> String {
    let delimiter = properties.get("pegasus.transfer.staging.delimiter");
    delimiter.unwrap_or("-").to_owned()
}

/// Reads properties with a fixed set of values, and collects the problems.
struct Choices<'a> {
    properties: &'a Properties,
    problems: &'a mut Vec<Diagnostic>,
}

impl Choices<'_> {
    /// Returns the choice that a property names, in any case.
    fn one_of<T: Clone>(&mut self, key: &str, default: T, choices: &[(&str, T)]) -> T {
        let Some(text) = text(self.properties, key) else {
            return default;
        };
        match choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(&text)) {
            Some((_, choice)) => choice.clone(),
            None => {
                let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
                let message = format!("must be one of {}", names.join(", "));
                self.problems.push(self.properties.bad_value(key, &message));
                default
            }
        }
    }

    fn cleanup(&mut self) -> CleanupStrategy {
        let default = CleanupStrategy::InPlace;
        self.one_of("pegasus.file.cleanup.strategy", default, CLEANUP_STRATEGIES)
    }

    fn staging_mapper(&mut self, data: DataMode) -> Result<StagingMapper, InputErrors> {
        let hashed = (
            positive(self.properties, "pegasus.dir.staging.mapper.hashed.levels")?,
            positive(self.properties, "pegasus.dir.staging.mapper.hashed.multiplier")?,
        );
        Ok(StagingMapper::new(self.properties, data, hashed, self.problems))
    }

    fn submit_mapper(&mut self) -> Result<SubmitMapper, InputErrors> {
        let levels = positive(self.properties, "pegasus.dir.submit.mapper.hashed.levels")?.unwrap_or(2);
        let multiplier =
            positive(self.properties, "pegasus.dir.submit.mapper.hashed.multiplier")?.unwrap_or(5);
        let hashed = SubmitMapper::Hashed {
            levels: levels.min(8),
            multiplier,
        };
        let choices = [
            ("Hashed", hashed.clone()),
            ("Flat", SubmitMapper::Flat),
            ("Named", SubmitMapper::Named),
        ];
        Ok(self.one_of("pegasus.dir.submit.mapper", hashed, &choices))
    }

    fn integrity(&mut self, is_development: bool) -> Integrity {
        let default = if is_development {
            Integrity::None
        } else {
            Integrity::Full
        };
        self.one_of("pegasus.integrity.checking", default, INTEGRITY_CHECKS)
    }

    fn condor(&mut self) -> CondorSettings {
        let is = |key: &str| self.properties.get(key).and_then(parse_bool);
        let assigns_priorities = is("pegasus.job.priority.assign") != Some(false);
        let limits_concurrency = is("pegasus.condor.concurrency.limits") == Some(true);
        let application = ["pegasus.metrics.app", "pegasus.metrics.app.name"];
        let application = application.iter().find_map(|key| self.properties.get(key));
        CondorSettings {
            application: application
                .map(str::trim)
                .filter(|name| !name.is_empty())
                .map(Into::into),
            lite_scripts: self.one_of("pegasus.lite.form", None, LITE_FORMS),
            assigns_priorities,
            limits_concurrency,
            encrypts_credentials: is("pegasus.credential.encrypt") != Some(false),
            package_is_strict: is("pegasus.transfer.worker.package.strict") != Some(false),
            package_is_downloaded: is("pegasus.transfer.worker.package.autodownload") != Some(false),
        }
    }

    fn create_dir(&mut self) -> CreateDirStrategy {
        let key = "pegasus.dir.create.strategy";
        self.one_of(key, CreateDirStrategy::Minimal, CREATE_DIR_STRATEGIES)
    }

    /// Combines mapper and selector of transformations: the narrower one counts.
    fn transformations(&mut self) -> TransformationChoice {
        let all = TransformationChoice::All;
        let mapper = self.one_of(
            "pegasus.catalog.transformation.mapper",
            all,
            TRANSFORMATION_CHOICES,
        );
        if mapper != all {
            return mapper;
        }
        self.one_of("pegasus.selector.transformation", all, TRANSFORMATION_CHOICES)
    }
}

/// Reads a positive number.
fn positive(properties: &Properties, key: &str) -> Result<Option<u32>, InputErrors> {
    match properties.get_number(key)? {
        Some(0) => Err(properties.bad_value(key, "must be positive").into()),
        Some(n) => match u32::try_from(n) {
            Ok(n) => Ok(Some(n)),
            Err(_) => Err(properties.bad_value(key, "is too large").into()),
        },
        None => Ok(None),
    }
}

fn reuse_scope(properties: &Properties, request: &Request) -> ReuseScope {
    match properties.get("pegasus.data.reuse.scope").map(str::trim) {
        _ if request.force => ReuseScope::None,
        Some(word) if word.eq_ignore_ascii_case("none") => ReuseScope::None,
        Some(word) if word.eq_ignore_ascii_case("partial") => ReuseScope::Partial,
        _ => ReuseScope::Full,
    }
}

fn default_profiles(properties: &Properties, is_development: bool) -> Profiles {
    let mut profiles = properties.profiles();
    if is_development && profiles.get(Namespace::Dagman, "retry").is_none() {
        profiles.set(Namespace::Dagman, "retry", "0");
    }
    profiles
}

fn warnings(properties: &Properties, refiner: Refiner, data: DataMode) -> Vec<String> {
    let mut warnings: Vec<String> = subworkflows::unknown_scope(properties).into_iter().collect();
    let is_condor = generator(properties).is_ok_and(|of| of.abilities().ships_files);
    if data == DataMode::CondorIo && !is_condor {
        warnings.push(
            "pegasus.data.configuration = condorio: jobs run as with nonsharedfs and the staging site local, since \
             HTCondor, which would bring their files, takes no part"
                .into(),
        );
    }
    if refiner == Refiner::Empty {
        warnings.push(
            "pegasus.transfer.refiner = Empty: no files are staged or registered; inputs must be in the work directory \
             when their jobs run, and outputs stay there"
                .into(),
        );
    }
    warnings
}

/// Returns a property that is not empty.
fn text(properties: &Properties, key: &str) -> Option<String> {
    properties
        .get(key)
        .map(str::trim)
        .filter(|t| !t.is_empty())
        .map(str::to_owned)
}

/// Returns the data configuration: without the property, a shared file system is assumed.
fn data_mode(properties: &Properties) -> Result<DataMode, PlanError> {
    match text(properties, "pegasus.data.configuration") {
        None => Ok(DataMode::Shared),
        Some(name) => DataMode::parse(&name).ok_or_else(|| {
            PlanError::Unsupported(format!(
                "the data configuration {name} is not offered: set pegasus.data.configuration to sharedfs, nonsharedfs or \
                 condorio, or leave it out, which means sharedfs"
            ))
        }),
    }
}
