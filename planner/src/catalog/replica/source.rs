//! Replica catalogs described by properties: a file, a directory, a database, or a combination (MRC).

use std::path::{Path, PathBuf};

use monitord_compat::braindump_reader::Braindump;

use super::{DirectoryOptions, FILE_KINDS, ReplicaCatalog, Wanted, database, from_directory, load, metadata};
use crate::catalog::{SearchDirs, expansion, locate, missing_catalog};
use crate::diagnostic::Diagnostic;
use crate::error::{InputErrors, near_spelling};
use crate::expand::ExpandEnv;
use crate::properties::{Properties, PropertySources};
use crate::syntax::text;

const KEY: &str = "pegasus.catalog.replica";
/// Types that are not single files.
const OTHER_KINDS: &[&str] = &["Directory", "JDBCRC", "MRC"];

/// A catalog with its files, which are copied into the submit directory. Databases are not copied.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The catalog.
    pub catalog: ReplicaCatalog,
    /// Its files.
    pub files: Vec<PathBuf>,
    /// Files that properties name and that do not exist.
    pub missing: Vec<PathBuf>,
}

impl From<ReplicaCatalog> for Source {
    fn from(catalog: ReplicaCatalog) -> Self {
        Source {
            catalog,
            ..Source::default()
        }
    }
}

/// Reads the replica catalog that the properties describe, else a file with a default name (`replicas.yml`,
/// `rc.txt`) in these directories. Without one, the catalog is empty. From a database, reads only the files
/// `wanted`, and keeps only them of other large catalogs.
///
/// # Errors
/// An unreadable file; all problems of the file. A named file that does not exist causes a warning.
pub fn load_from_properties(
    properties: &Properties,
    dirs: SearchDirs<'_>,
    env: &ExpandEnv,
    wanted: Wanted<'_>,
) -> Result<Source, InputErrors> {
    let env = expansion(properties, KEY, env)?;
    let of = SourceProperties {
        properties,
        dirs,
        env: &env,
        wanted,
    };
    of.backend(KEY, &["replicas.yml", "rc.txt"], true)
}

/// Reads a replica file in the text format of cache files, and the metadata file beside it (`FILE.meta`), if
/// any.
///
/// # Errors
/// All problems of the files.
pub fn load_with_metadata(
    path: &Path,
    env: &ExpandEnv,
    wanted: Wanted<'_>,
) -> Result<ReplicaCatalog, InputErrors> {
    let mut catalog = load(path, Some("SimpleFile"), env, wanted)?;
    let beside = PathBuf::from(format!("{}.meta", path.display()));
    if beside.is_file() {
        metadata::complete(&mut catalog, &beside, &text::load(&beside)?)?;
    }
    Ok(catalog)
}

/// Reads a catalog that does not locate inputs: the property `key` has its type (default Regex), `<key>.file`
/// its file.
///
/// # Errors
/// See [`load_from_properties`].
pub fn load_other(
    properties: &Properties,
    key: &str,
    working_dir: &Path,
    env: &ExpandEnv,
    wanted: Wanted<'_>,
) -> Result<ReplicaCatalog, InputErrors> {
    match locate(properties, key, working_dir.into(), &[]) {
        Some(path) => load(
            &path,
            properties.get(key).filter(|k| !k.is_empty()).or(Some("Regex")),
            env,
            wanted,
        ),
        None => Ok(ReplicaCatalog::default()),
    }
}

/// Reads the files that a run has registered, from the output replica catalog of its submit directory.
///
/// # Errors
/// Not a submit directory; an unreadable catalog. A run without registered files causes a warning.
pub fn from_run(dir: &Path, env: &ExpandEnv, wanted: Wanted<'_>) -> Result<ReplicaCatalog, InputErrors> {
    const OUTPUT: &str = "pegasus.catalog.replica.output";
    let braindump = dir.join("braindump.yml");
    if !braindump.is_file() {
        return Err(
            Diagnostic::in_file(dir, "is not a submit directory: it has no braindump.yml")
                .with_hint("--reuse takes the submit directories of earlier runs")
                .into(),
        );
    }
    let values = Braindump::read(&text::load(&braindump)?)
        .map_err(|error| Diagnostic::in_file(&braindump, error.to_string()))?;
    let Some(name) = values.get("properties") else {
        return Err(Diagnostic::in_file(&braindump, "names no properties file").into());
    };
    let sources = PropertySources {
        conf_file: Some(dir.join(name)),
        ..PropertySources::default()
    };
    let properties = Properties::load(&sources)?;
    let of = SourceProperties {
        properties: &properties,
        dirs: dir.into(),
        env,
        wanted,
    };
    if properties
        .get(OUTPUT)
        .is_some_and(|kind| kind.eq_ignore_ascii_case("jdbcrc"))
    {
        let mut path = database::path(&properties, OUTPUT, dir)?;
        // The submit directory may have been moved.
        if !path.is_file()
            && let Some(moved) = path.file_name().map(|name| dir.join(name))
        {
            path = moved;
        }
        if !path.is_file() {
            let mut none = ReplicaCatalog::default();
            none.warnings.push(Diagnostic::in_file(
                &path,
                "no such database: the run has registered nothing",
            ));
            return Ok(none);
        }
        return database::read(&path, wanted.files);
    }
    Ok(of.backend(OUTPUT, &[], false)?.catalog)
}

/// Properties and directories of a catalog.
struct SourceProperties<'a> {
    properties: &'a Properties,
    dirs: SearchDirs<'a>,
    env: &'a ExpandEnv,
    wanted: Wanted<'a>,
}

impl SourceProperties<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        self.properties.get(key).map(str::trim).filter(|v| !v.is_empty())
    }

    /// Reads the catalog that the properties below `key` describe.
    fn backend(&self, key: &str, defaults: &[&str], may_be_several: bool) -> Result<Source, InputErrors> {
        let kind = self.text(key);
        match kind.unwrap_or_default().to_ascii_lowercase().as_str() {
            "directory" => self.directory(key).map(Source::from),
            "jdbcrc" => {
                let path = database::path(self.properties, key, self.dirs.working)?;
                database::read(&path, self.wanted.files).map(Source::from)
            }
            "mrc" if may_be_several => self.several(key),
            "mrc" => Err(self
                .properties
                .bad_value(key, "cannot be MRC inside another one")
                .into()),
            name if !name.is_empty() && !FILE_KINDS.iter().any(|k| k.eq_ignore_ascii_case(name)) => {
                let known = [FILE_KINDS, OTHER_KINDS].concat();
                let hint = match near_spelling(name, known.iter().copied()) {
                    Some(near) => format!("did you mean {near}? types are {}", known.join(", ")),
                    None => format!("types are {}", known.join(", ")),
                };
                let problem = self
                    .properties
                    .bad_value(key, "must be a type of replica catalog");
                Err(problem.with_hint(hint).into())
            }
            _ => {
                let Some(path) = locate(self.properties, key, self.dirs, defaults) else {
                    if kind.is_some() && defaults.is_empty() {
                        let what = format!("needs the property {key}.file");
                        return Err(self.properties.bad_key(key, &what).into());
                    }
                    return Ok(Source::default());
                };
                if !path.exists() {
                    let mut none = ReplicaCatalog::default();
                    none.warnings.push(missing_catalog(&path));
                    return Ok(Source {
                        missing: vec![path],
                        ..Source::from(none)
                    });
                }
                Ok(Source {
                    catalog: load(&path, kind, self.env, self.wanted)?,
                    files: vec![path],
                    missing: Vec::new(),
                })
            }
        }
    }

    fn directory(&self, key: &str) -> Result<ReplicaCatalog, InputErrors> {
        let default = DirectoryOptions::default();
        let text = |name: &str| self.text(&format!("{key}.directory{name}")).map(str::to_owned);
        let options = DirectoryOptions {
            site: text(".site").unwrap_or(default.site),
            url_prefix: text(".url.prefix").unwrap_or(default.url_prefix),
            flat_lfn: self
                .properties
                .get_bool(&format!("{key}.directory.flat.lfn"), false)?,
        };
        let directory = text("").ok_or_else(|| {
            let what = format!("Directory needs the property {key}.directory");
            self.properties.bad_key(key, &what)
        })?;
        from_directory(&self.dirs.working.join(directory), &options)
    }

    /// Reads all catalogs `KEY.mrc.NAME`, in order of their names.
    fn several(&self, key: &str) -> Result<Source, InputErrors> {
        let prefix = format!("{key}.mrc.");
        let mut all = Source::default();
        let mut problems: Option<InputErrors> = None;
        let mut names = 0;
        for (name, _) in self
            .properties
            .with_prefix(&prefix)
            .filter(|(name, _)| !name.contains('.'))
        {
            names += 1;
            let key = format!("{prefix}{name}");
            let found = self.backend(&key, &[], false).and_then(|found| {
                all.files.extend(found.files);
                all.missing.extend(found.missing);
                all.catalog
                    .append(found.catalog)
                    .map_err(|error| self.properties.bad_key(&key, &error.to_string()).into())
            });
            if let Err(found) = found {
                match &mut problems {
                    Some(all) => all.extend(found),
                    none => *none = Some(found),
                }
            }
        }
        if names == 0 {
            let what = format!(
                "MRC needs catalogs: {prefix}NAME for the type of each, {prefix}NAME.file and the like"
            );
            return Err(self.properties.bad_key(key, &what).into());
        }
        problems.map_or(Ok(all), Err)
    }
}
