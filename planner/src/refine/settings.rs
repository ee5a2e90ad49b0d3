//! Properties that steer the refinement, read once and typed.

use crate::error::InputErrors;
use crate::error::PlanError;
use crate::profiles::Profiles;
use crate::properties::Properties;
use crate::request::{CleanupStrategy, Request};

use super::cleanup::space::SpaceSettings;
use super::cluster::settings::ClusterSettings;
use super::select::ranking::{self, ReplicaSelector};
use super::sites::{self, selection::SiteSelector};
use super::storage::{self, StorageMapper};

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
        /// How far the counter goes on per job.
        multiplier: u32,
    },
}

/// To which jobs the create-dir job is tied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateDirStrategy {
    /// To the first ones.
    Minimal,
    /// To all.
    Tentacles,
    /// To a job that does nothing and comes before the first ones of all sites.
    HourGlass,
}

/// How files are dealt to transfer jobs.
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
    /// None: nothing is moved or registered.
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

/// What is done about checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Integrity {
    /// Everything.
    Full,
    /// Everything but links.
    NoSymlink,
    /// Nothing.
    None,
}

/// Numbers of transfer jobs per level, where they are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clusters {
    /// For jobs that run on the submit host.
    pub(crate) local: Option<u32>,
    /// For jobs that run on the staging site.
    pub(crate) remote: Option<u32>,
}

/// What the executable workflow is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generator {
    /// A DAG for pegasus-mpi-cluster.
    Pmc,
    /// A shell script that runs one job after the other.
    Shell,
}

/// `pegasus.mode`: what is taken where nothing else is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Production,
    /// No tries, no checksums.
    Development,
    /// The same, and programs say more.
    Debug,
    /// Failures show at once.
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
    /// Properties that the mode stands for, for programs that read the copy of the properties.
    pub(crate) fn properties(self) -> Vec<(&'static str, &'static str)> {
        // Those without a meaning here are for tools that look whether the copy is whole.
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

/// The settings.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) generator: Generator,
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
    /// Patterns of names of files that clean-up leaves alone.
    pub(crate) cleanup_kept: Vec<String>,
    pub(crate) space: SpaceSettings,
    pub(crate) reuse: ReuseScope,
    pub(crate) replica_selector: ReplicaSelector,
    pub(crate) site_selector: SiteSelector,
    /// Where chance begins.
    pub(crate) seed: u64,
    /// Job clustering.
    pub(crate) cluster: ClusterSettings,
    pub(crate) cache_adds: bool,
    pub(crate) workflow_adds: bool,
    pub(crate) transformations: TransformationChoice,
    pub(crate) stat: bool,
    pub(crate) lof: bool,
    /// Lists of files were asked for, so that each job has its own.
    pub(crate) lists_apart: bool,
    pub(crate) set_xbit: bool,
    pub(crate) gridstart_label: bool,
    pub(crate) invoke_always: bool,
    pub(crate) invoke_disable: bool,
    pub(crate) invoke_length: usize,
    pub(crate) mode: Mode,
    /// Profiles for every job, of lowest precedence.
    pub(crate) profiles: Profiles,
    /// What was not understood or is not done.
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

/// A list with commas.
fn list(text: Option<&str>) -> Vec<String> {
    text.unwrap_or_default()
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The choice that a property names, in any case.
fn choose<T: Clone>(
    properties: &Properties,
    key: &str,
    default: T,
    choices: &[(&str, T)],
    problems: &mut Vec<crate::error::InputError>,
) -> T {
    let Some(text) = properties.get(key).map(str::trim).filter(|t| !t.is_empty()) else {
        return default;
    };
    match choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
        Some((_, choice)) => choice.clone(),
        None => {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            problems.push(properties.bad_value(key, &format!("must be one of {}", names.join(", "))));
            default
        }
    }
}

impl Settings {
    /// From the properties and the command line.
    ///
    /// # Errors
    /// Values that mean nothing, and choices that are not offered.
    pub(crate) fn new(properties: &Properties, request: &Request) -> Result<Self, PlanError> {
        let mut problems = Vec::new();
        let generator = generator(properties)?;
        check_data_configuration(properties, request)?;
        let mode = choose(
            properties,
            "pegasus.mode",
            Mode::Production,
            &[
                ("production", Mode::Production),
                ("development", Mode::Development),
                ("debug", Mode::Debug),
                ("tutorial", Mode::Tutorial),
            ],
            &mut problems,
        );
        let development = matches!(mode, Mode::Debug | Mode::Development);
        let number = |key: &str| -> Result<Option<u32>, InputErrors> {
            match properties.get_number(key)? {
                Some(0) => Err(properties.bad_value(key, "must be positive").into()),
                Some(n) => match u32::try_from(n) {
                    Ok(n) => Ok(Some(n)),
                    Err(_) => Err(properties.bad_value(key, "is too large").into()),
                },
                None => Ok(None),
            }
        };
        let clusters = |direction: &str| -> Result<Clusters, InputErrors> {
            let all = number(&format!("pegasus.{direction}.clusters"))?;
            Ok(Clusters {
                local: number(&format!("pegasus.{direction}.local.clusters"))?.or(all),
                remote: number(&format!("pegasus.{direction}.remote.clusters"))?.or(all),
            })
        };
        let levels = number("pegasus.dir.submit.mapper.hashed.levels")?.unwrap_or(2);
        let multiplier = number("pegasus.dir.submit.mapper.hashed.multiplier")?.unwrap_or(5);
        let hashed = SubmitMapper::Hashed {
            levels: levels.min(8),
            multiplier,
        };
        let submit_mapper = choose(
            properties,
            "pegasus.dir.submit.mapper",
            hashed.clone(),
            &[
                ("Hashed", hashed),
                ("Flat", SubmitMapper::Flat),
                ("Named", SubmitMapper::Named),
            ],
            &mut problems,
        );
        let storage_mapper = storage::mapper(properties, &mut problems);
        let create_dir = choose(
            properties,
            "pegasus.dir.create.strategy",
            CreateDirStrategy::Minimal,
            &[
                ("Minimal", CreateDirStrategy::Minimal),
                ("Tentacles", CreateDirStrategy::Tentacles),
                ("HourGlass", CreateDirStrategy::HourGlass),
            ],
            &mut problems,
        );
        let refiner = choose(
            properties,
            "pegasus.transfer.refiner",
            Refiner::BalancedCluster,
            &[
                ("BalancedCluster", Refiner::BalancedCluster),
                ("Cluster", Refiner::Cluster),
                ("Basic", Refiner::Basic),
                ("Bundle", Refiner::Bundle),
                ("Empty", Refiner::Empty),
            ],
            &mut problems,
        );
        let mut warnings = super::unused::warnings(properties);
        if refiner == Refiner::Empty {
            warnings.push(
                "pegasus.transfer.refiner = Empty: no files are staged or registered; inputs must be in the work directory \
                 when their jobs run, and outputs stay there"
                    .into(),
            );
        }
        let replica_selector = ranking::selector(properties, &mut problems);
        let transformations = transformation_choice(properties, &mut problems);
        let integrity = choose(
            properties,
            "pegasus.integrity.checking",
            if development {
                Integrity::None
            } else {
                Integrity::Full
            },
            &[
                ("full", Integrity::Full),
                ("nosymlink", Integrity::NoSymlink),
                ("none", Integrity::None),
            ],
            &mut problems,
        );
        let site_selector = sites::settings::selector(properties, request, &mut problems);
        let seed = sites::settings::seed(properties, request, &mut problems);
        let cluster = ClusterSettings::new(properties, request, &mut problems)?;
        let reuse = match properties.get("pegasus.data.reuse.scope").map(str::trim) {
            _ if request.force => ReuseScope::None,
            Some(word) if word.eq_ignore_ascii_case("none") => ReuseScope::None,
            Some(word) if word.eq_ignore_ascii_case("partial") => ReuseScope::Partial,
            _ => ReuseScope::Full,
        };
        let cleanup = match request.cleanup {
            Some(strategy) => strategy,
            None => choose(
                properties,
                "pegasus.file.cleanup.strategy",
                CleanupStrategy::InPlace,
                &[
                    ("InPlace", CleanupStrategy::InPlace),
                    ("Constraint", CleanupStrategy::Constraint),
                    ("Leaf", CleanupStrategy::Leaf),
                    ("None", CleanupStrategy::None),
                ],
                &mut problems,
            ),
        };
        let mut profiles = properties.profiles();
        set_default(&mut profiles, "dagman", "retry", development.then_some("0"));
        InputErrors::check(problems)?;
        let stat = properties.get_bool("pegasus.gridstart.kickstart.stat", true)?;
        let lists_apart = properties.get_bool("pegasus.gridstart.generate.lof", false)?;
        Ok(Settings {
            generator,
            submit_mapper,
            storage_mapper,
            dir_exec: text(properties, "pegasus.dir.exec"),
            storage_deep: properties.get_bool("pegasus.dir.storage.deep", false)?,
            use_timestamp: properties.get_bool("pegasus.dir.useTimestamp", false)?,
            register: properties.get_bool("pegasus.register", true)?,
            register_deep: properties.get_bool("pegasus.register.deep", true)?,
            create_dir,
            refiner,
            stage_in: clusters("stagein")?,
            stage_out: clusters("stageout")?,
            links: properties.get_bool("pegasus.transfer.links", false)?,
            staging_delimiter: properties
                .get("pegasus.transfer.staging.delimiter")
                .unwrap_or("-")
                .to_owned(),
            no_chmod_sites: list(properties.get("pegasus.transfer.disable.chmod.sites")),
            remote_sites: RemoteSites {
                all: list(properties.get("pegasus.transfer.*.remote.sites")),
                stage_in: list(properties.get("pegasus.transfer.stagein.remote.sites")),
                inter: list(properties.get("pegasus.transfer.inter.remote.sites")),
                stage_out: list(properties.get("pegasus.transfer.stageout.remote.sites")),
            },
            integrity,
            cleanup,
            cleanup_jobs: number("pegasus.file.cleanup.clusters.num")?,
            cleanup_size: number("pegasus.file.cleanup.clusters.size")?,
            cleanup_kept: list(properties.get("pegasus.file.cleanup.exclude")),
            space: SpaceSettings::new(properties, &request.environment.working_dir)?,
            reuse,
            replica_selector,
            site_selector,
            seed,
            cluster,
            cache_adds: properties.get_bool("pegasus.catalog.replica.cache.asrc", false)?,
            workflow_adds: properties.get_bool("pegasus.catalog.replica.dax.asrc", false)?,
            transformations,
            stat,
            lof: stat || lists_apart,
            lists_apart,
            set_xbit: properties.get_bool("pegasus.gridstart.kickstart.set.xbit", false)?,
            gridstart_label: properties.get_bool("pegasus.gridstart.label", true)?,
            invoke_always: properties.get_bool("pegasus.gridstart.invoke.always", false)?,
            invoke_disable: properties.get_bool("pegasus.gridstart.invoke.disable", false)?,
            invoke_length: properties
                .get_number("pegasus.gridstart.invoke.length")?
                .map_or(4000, |n| usize::try_from(n).unwrap_or(usize::MAX)),
            mode,
            profiles,
            warnings,
        })
    }
}

/// Sets a profile that is absent.
fn set_default(profiles: &mut Profiles, namespace: &str, key: &str, value: Option<&str>) {
    if let (Some(namespace), Some(value)) = (crate::profiles::Namespace::parse(namespace), value)
        && profiles.get(namespace, key).is_none()
    {
        profiles.set(namespace, key, value);
    }
}

/// A property that is not empty.
fn text(properties: &Properties, key: &str) -> Option<String> {
    properties
        .get(key)
        .map(str::trim)
        .filter(|t| !t.is_empty())
        .map(str::to_owned)
}

/// Mapper and selector of transformations together: the narrower one counts.
fn transformation_choice(
    properties: &Properties,
    problems: &mut Vec<crate::error::InputError>,
) -> TransformationChoice {
    let choices = [
        ("All", TransformationChoice::All),
        ("Random", TransformationChoice::All),
        ("Installed", TransformationChoice::Installed),
        ("Staged", TransformationChoice::Staged),
        ("Submit", TransformationChoice::Submit),
    ];
    let mapper = choose(
        properties,
        "pegasus.catalog.transformation.mapper",
        TransformationChoice::All,
        &choices,
        problems,
    );
    if mapper != TransformationChoice::All {
        return mapper;
    }
    choose(
        properties,
        "pegasus.selector.transformation",
        TransformationChoice::All,
        &choices,
        problems,
    )
}

/// The code generator; PMC without the property.
pub(crate) fn generator(properties: &Properties) -> Result<Generator, PlanError> {
    match properties.get("pegasus.code.generator").map(str::trim) {
        None | Some("") => Ok(Generator::Pmc),
        Some(name) if name.eq_ignore_ascii_case("pmc") => Ok(Generator::Pmc),
        Some(name) if name.eq_ignore_ascii_case("shell") => Ok(Generator::Shell),
        Some(name) => Err(PlanError::Unsupported(format!(
            "the code generator {name} is not offered: set pegasus.code.generator to PMC or Shell, or leave it out"
        ))),
    }
}

/// Only a shared file system is offered; without the property it is assumed.
fn check_data_configuration(properties: &Properties, request: &Request) -> Result<(), PlanError> {
    let Some(mode) = text(properties, "pegasus.data.configuration") else {
        return Ok(());
    };
    if mode.eq_ignore_ascii_case("sharedfs") {
        return Ok(());
    }
    let home = request.environment.variables.get("PEGASUS_HOME");
    let mut message = format!(
        "the data configuration {mode} is not offered with PMC, whose tasks share a file system: set \
         pegasus.data.configuration to sharedfs, or leave it out"
    );
    if mode.eq_ignore_ascii_case("nonsharedfs")
        && let Some(home) = home
    {
        let packages = std::path::Path::new(home).join("share/pegasus/worker-packages");
        if !packages.is_dir() {
            message.push_str(&format!(
                "\nSource directory for worker package does not exist {}",
                packages.display()
            ));
        }
    }
    Err(PlanError::Unsupported(message))
}
