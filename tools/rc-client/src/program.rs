//! `pegasus-rc-client` without its process: command line and messages.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{ArgAction, Parser, Subcommand};
use pmc_files::MAX_LIST;

use crate::catalog::{self, Catalog, CatalogError, OpenDatabase, Pattern};
use crate::entry::{self, Entry, LineError};
use crate::meta::Metadata;
use crate::properties::Properties;

/// Registers, looks up and deletes the locations of files in a replica catalog.
#[derive(Debug, Parser)]
#[command(
    name = "pegasus-rc-client",
    version,
    disable_version_flag = true,
    args_conflicts_with_subcommands = false
)]
pub struct Args {
    /// Read the properties that describe the catalog from FILE
    #[arg(short, long, value_name = "FILE", default_value = "pegasus.properties")]
    conf: PathBuf,
    /// Set a property
    #[arg(short = 'D', value_name = "KEY=VALUE")]
    define: Vec<String>,
    /// Prefix of the properties that describe the catalog
    #[arg(long, value_name = "NAME", default_value = "pegasus.catalog.replica")]
    prefix: String,
    /// Insert the entries in FILE: lines LFN PFN site="SITE" KEY="VALUE" … ("-" for stdin)
    #[arg(short, long, value_name = "FILE")]
    insert: Option<PathBuf>,
    /// Delete the entries in FILE: lines LFN [PFN [site="SITE"]]
    #[arg(short, long, value_name = "FILE")]
    delete: Option<PathBuf>,
    /// Look up the logical names in FILE, one per line
    #[arg(short, long, value_name = "FILE")]
    lookup: Option<PathBuf>,
    /// Add metadata from these metadata files of jobs to the inserted entries
    #[arg(long, value_name = "FILE,…", value_delimiter = ',')]
    meta: Vec<PathBuf>,
    /// Print more messages; repeatable
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version)]
    version: Option<bool>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Insert one entry
    Insert {
        /// Logical name
        lfn: String,
        /// Location
        pfn: String,
        /// Site and metadata
        #[arg(value_name = "KEY=VALUE")]
        attributes: Vec<String>,
    },
    /// Print the entries of logical names
    Lookup {
        /// Logical names
        #[arg(required = true)]
        lfn: Vec<String>,
    },
    /// Print all entries
    List,
    /// Delete one location of a logical name
    Delete {
        /// Logical name
        lfn: String,
        /// Location
        pfn: String,
        /// site=SITE: only that site
        #[arg(value_name = "KEY=VALUE")]
        attributes: Vec<String>,
    },
    /// Delete all locations of logical names
    Remove {
        /// Logical names
        #[arg(required = true)]
        lfn: Vec<String>,
    },
}

impl Args {
    /// Returns the files to read, if this inserts or deletes the lines of a file.
    pub(crate) fn files_of_change(&self) -> Option<impl Iterator<Item = &Path>> {
        let lines = match (&self.insert, &self.delete, &self.lookup, &self.command) {
            (Some(path), None, None, None) | (None, Some(path), None, None) => path,
            _ => return None,
        };
        let meta = self.meta.iter().filter(|path| !path.as_os_str().is_empty());
        let files = [lines, &self.conf].into_iter().chain(meta).map(PathBuf::as_path);
        (lines != Path::new("-")).then_some(files)
    }
}

/// Output streams of an invocation.
pub struct Streams<'a> {
    /// Receives the entries that were found.
    pub stdout: &'a mut dyn Write,
    /// Receives messages.
    pub stderr: &'a mut dyn Write,
}

impl Streams<'_> {
    fn print_message(&mut self, message: &str) {
        // There is no other place to report a failing stderr.
        let _ = self
            .stderr
            .write_all(format!("pegasus-rc-client: {message}\n").as_bytes());
    }
}

/// Runs the program, and returns whether it succeeded. Prints the error to `stderr`.
pub fn run(args: &Args, database: &mut OpenDatabase, streams: &mut Streams<'_>) -> bool {
    let result = execute(args, database, streams);
    if let Err(error) = &result {
        // The next invocation starts with a new connection.
        *database = OpenDatabase::default();
        streams.print_message(&error.to_string());
    }
    result.is_ok()
}

/// An error that ends the program.
#[derive(Debug, thiserror::Error)]
enum ProgramError {
    #[error("exactly one of --insert, --delete, --lookup or a command is needed; see --help")]
    Usage,
    #[error("{name}: {source}")]
    Read { name: String, source: io::Error },
    #[error("{0}: not UTF-8 text")]
    NotText(String),
    #[error("{name}:{line}: {source}")]
    Line {
        name: String,
        line: usize,
        source: LineError,
    },
    #[error("'{0}' is not KEY=VALUE")]
    Attribute(String),
    #[error("{}: {message}", path.display())]
    Configuration { path: PathBuf, message: String },
    #[error(transparent)]
    Catalog(CatalogError),
    #[error("cannot write the result: {0}")]
    Output(io::Error),
}

fn execute(args: &Args, database: &mut OpenDatabase, streams: &mut Streams<'_>) -> Result<(), ProgramError> {
    let actions = [
        args.insert.is_some(),
        args.delete.is_some(),
        args.lookup.is_some(),
        args.command.is_some(),
    ];
    if actions.iter().filter(|action| **action).count() != 1 {
        return Err(ProgramError::Usage);
    }
    let properties = read_properties(args)?;
    // Read the input before opening the catalog: invalid input must not leave an empty catalog behind.
    let action = Action::read(args, streams)?;
    let mut catalog = catalog::open(&properties, &args.prefix, database).map_err(|error| match error {
        CatalogError::Configuration(message) => ProgramError::Configuration {
            path: args.conf.clone(),
            message,
        },
        other => ProgramError::Catalog(other),
    })?;
    action.run(catalog.as_mut(), args.verbose, streams)
}

fn read_properties(args: &Args) -> Result<Properties, ProgramError> {
    let conf = pmc_files::open_input(&args.conf);
    let conf = conf.and_then(|file| pmc_files::read_at_most(file, MAX_LIST));
    let mut properties = match conf {
        Ok(text) => Properties::parse(&String::from_utf8_lossy(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !args.define.is_empty() => {
            Properties::default()
        }
        Err(source) => {
            let name = args.conf.display().to_string();
            return Err(ProgramError::Read { name, source });
        }
    };
    for define in &args.define {
        let (key, value) = define.split_once('=').unwrap_or((define, "true"));
        properties.set(key, value);
    }
    Ok(properties)
}

/// The action, with its input.
enum Action {
    Insert { entries: Vec<Entry>, lines: usize },
    Delete { patterns: Vec<Pattern>, lines: usize },
    Lookup(Vec<String>),
    List,
}

impl Action {
    fn read(args: &Args, streams: &mut Streams<'_>) -> Result<Self, ProgramError> {
        if let Some(path) = &args.insert {
            let input = Input::read(path)?;
            let mut entries = input.entries(entry::parse)?;
            entries.retain_mut(Entry::settle_optional);
            let metadata = read_metadata(&args.meta, streams);
            entries.iter_mut().for_each(|entry| metadata.complete(entry));
            return Ok(Self::Insert {
                entries,
                lines: input.text.lines().count(),
            });
        }
        if let Some(path) = &args.delete {
            let input = Input::read(path)?;
            let patterns = input.entries(|line| {
                Ok(if entry::is_name_only(line) {
                    entry::parse_name(line)?.map(|lfn| Pattern {
                        lfn,
                        ..Pattern::default()
                    })
                } else {
                    entry::parse(line)?.map(pattern)
                })
            })?;
            return Ok(Self::Delete {
                patterns,
                lines: input.text.lines().count(),
            });
        }
        if let Some(path) = &args.lookup {
            return Ok(Self::Lookup(Input::read(path)?.entries(entry::parse_name)?));
        }
        Ok(match &args.command {
            Some(Command::Insert { lfn, pfn, attributes }) => {
                let mut entry = with_attributes(lfn, pfn, attributes)?;
                read_metadata(&args.meta, streams).complete(&mut entry);
                Self::Insert {
                    entries: vec![entry],
                    lines: 1,
                }
            }
            Some(Command::Delete { lfn, pfn, attributes }) => Self::Delete {
                patterns: vec![pattern(with_attributes(lfn, pfn, attributes)?)],
                lines: 1,
            },
            Some(Command::Remove { lfn }) => {
                let patterns = lfn.iter().map(|lfn| Pattern {
                    lfn: lfn.clone(),
                    ..Pattern::default()
                });
                Self::Delete {
                    patterns: patterns.collect(),
                    lines: lfn.len(),
                }
            }
            Some(Command::Lookup { lfn }) => Self::Lookup(lfn.clone()),
            Some(Command::List) | None => Self::List,
        })
    }

    fn run(
        self,
        catalog: &mut dyn Catalog,
        verbose: u8,
        streams: &mut Streams<'_>,
    ) -> Result<(), ProgramError> {
        let mut out = String::new();
        match self {
            Self::Insert { entries, lines } => {
                catalog.insert(&entries).map_err(ProgramError::Catalog)?;
                print_counts(streams, entries.len(), lines);
            }
            Self::Delete { patterns, lines } => {
                let removed = catalog.delete(&patterns).map_err(ProgramError::Catalog)?;
                if verbose > 0 {
                    let _ = writeln!(streams.stderr, "#Deleted {removed} locations");
                }
                print_counts(streams, patterns.len(), lines);
            }
            Self::Lookup(names) => {
                for name in names {
                    for entry in catalog.lookup(&name).map_err(ProgramError::Catalog)? {
                        let _ = writeln!(out, "{}", entry.to_line());
                    }
                }
            }
            Self::List => {
                for entry in catalog.list().map_err(ProgramError::Catalog)? {
                    let _ = writeln!(out, "{}", entry.to_line());
                }
            }
        }
        streams
            .stdout
            .write_all(out.as_bytes())
            .map_err(ProgramError::Output)
    }
}

/// Prints the closing lines of inserts and deletes.
fn print_counts(streams: &mut Streams<'_>, processed: usize, lines: usize) {
    let text = format!(
        "#Successfully worked on    : {processed} lines.\n#Worked on total number of : {lines} lines.\n"
    );
    let _ = streams.stderr.write_all(text.as_bytes());
}

fn pattern(entry: Entry) -> Pattern {
    Pattern {
        lfn: entry.lfn,
        pfn: Some(entry.pfn),
        site: entry.site,
    }
}

fn with_attributes(lfn: &str, pfn: &str, attributes: &[String]) -> Result<Entry, ProgramError> {
    let mut entry = Entry {
        lfn: lfn.to_owned(),
        pfn: pfn.to_owned(),
        ..Entry::default()
    };
    for attribute in attributes {
        let (key, value) = attribute
            .split_once('=')
            .ok_or_else(|| ProgramError::Attribute(attribute.clone()))?;
        if key == "site" || key == "pool" {
            entry.site = Some(value.to_owned());
        } else {
            entry.attributes.insert(key.to_owned(), value.to_owned());
        }
    }
    Ok(entry)
}

/// Reads the metadata files. One warning names the missing and malformed ones. Their files are registered
/// without metadata.
fn read_metadata(paths: &[PathBuf], streams: &mut Streams<'_>) -> Metadata {
    let mut metadata = Metadata::default();
    let mut failed = Vec::new();
    for path in paths.iter().filter(|path| !path.as_os_str().is_empty()) {
        if let Err(error) = metadata.load(path) {
            failed.push(format!("{} ({error})", path.display()));
        }
    }
    if !failed.is_empty() {
        streams.print_message(&format!(
            "warning: registering without the metadata in {}",
            failed.join(", ")
        ));
    }
    metadata
}

/// A file of lines.
struct Input {
    name: String,
    text: String,
}

impl Input {
    fn read(path: &Path) -> Result<Self, ProgramError> {
        let (name, bytes) = if path == Path::new("-") {
            (
                "stdin".to_owned(),
                pmc_files::read_at_most(io::stdin().lock(), MAX_LIST),
            )
        } else {
            let read = pmc_files::open_input(path).and_then(|file| pmc_files::read_rest(&file, MAX_LIST));
            (path.display().to_string(), read)
        };
        match bytes.map(String::from_utf8) {
            Err(source) => Err(ProgramError::Read { name, source }),
            Ok(Err(_)) => Err(ProgramError::NotText(name)),
            Ok(Ok(text)) => Ok(Self { name, text }),
        }
    }

    /// Parses all lines. The first invalid line is an error.
    fn entries<T>(
        &self,
        parse: impl Fn(&str) -> Result<Option<T>, LineError>,
    ) -> Result<Vec<T>, ProgramError> {
        let lines = self.text.lines().enumerate();
        let parsed = lines.filter_map(|(index, line)| {
            parse(line)
                .map_err(|source| ProgramError::Line {
                    name: self.name.clone(),
                    line: index + 1,
                    source,
                })
                .transpose()
        });
        parsed.collect()
    }
}
