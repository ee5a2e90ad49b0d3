//! The program without its process: command line and messages.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use clap::{ArgAction, Parser, Subcommand};

use crate::catalog::{self, Catalog, OpenDatabase, Pattern};
use crate::entry::{self, Entry};
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
    /// Start of the names of the properties that describe the catalog
    #[arg(long, value_name = "NAME", default_value = "pegasus.catalog.replica")]
    prefix: String,
    /// Insert the entries in FILE: lines LFN PFN site="SITE" KEY="VALUE" … ("-" for stdin)
    #[arg(short, long, value_name = "FILE")]
    insert: Option<PathBuf>,
    /// Delete the entries in FILE: lines LFN [PFN [site="SITE"]]
    #[arg(short, long, value_name = "FILE")]
    delete: Option<PathBuf>,
    /// Look up the logical names in FILE, one a line
    #[arg(short, long, value_name = "FILE")]
    lookup: Option<PathBuf>,
    /// Add to inserted entries what these metadata files of jobs know about their logical names
    #[arg(long, value_name = "FILE,…", value_delimiter = ',')]
    meta: Vec<PathBuf>,
    /// Say more; repeatable
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
        /// site=SITE: only on that site
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
    /// The files that are read, if this is a change whose lines come from a file.
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

/// Where an invocation writes to.
pub struct Streams<'a> {
    /// Entries that were looked up.
    pub stdout: &'a mut dyn Write,
    /// Messages.
    pub stderr: &'a mut dyn Write,
}

impl Streams<'_> {
    fn complain(&mut self, message: &str) {
        // There is no other place to report that stderr is gone.
        let _ = self
            .stderr
            .write_all(format!("pegasus-rc-client: {message}\n").as_bytes());
    }
}

/// Does what was asked for; whether it succeeded. Why not is told.
pub fn run(args: &Args, database: &mut OpenDatabase, streams: &mut Streams<'_>) -> bool {
    let done = carry_out(args, database, streams);
    if let Err(message) = &done {
        // Whatever is wrong with it, the next one shall not inherit that.
        *database = OpenDatabase::default();
        streams.complain(message);
    }
    done.is_ok()
}

fn carry_out(args: &Args, database: &mut OpenDatabase, streams: &mut Streams<'_>) -> Result<(), String> {
    let jobs = [
        args.insert.is_some(),
        args.delete.is_some(),
        args.lookup.is_some(),
        args.command.is_some(),
    ];
    if jobs.iter().filter(|job| **job).count() != 1 {
        return Err(
            "exactly one of --insert, --delete, --lookup or a command is needed; see --help".to_owned(),
        );
    }
    let properties = properties(args)?;
    // The input is read before the catalog is opened: wrong input must not leave an empty catalog behind.
    let job = Job::read(args, streams)?;
    let mut catalog = catalog::open(&properties, &args.prefix, database).map_err(|error| match error {
        catalog::CatalogError::Configuration(message) => format!("{}: {message}", args.conf.display()),
        other => other.to_string(),
    })?;
    job.run(catalog.as_mut(), args.verbose, streams)
}

fn properties(args: &Args) -> Result<Properties, String> {
    let mut properties = match std::fs::read(&args.conf) {
        Ok(text) => Properties::parse(&String::from_utf8_lossy(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !args.define.is_empty() => {
            Properties::default()
        }
        Err(error) => return Err(format!("{}: {error}", args.conf.display())),
    };
    for define in &args.define {
        let (key, value) = define.split_once('=').unwrap_or((define, "true"));
        properties.set(key, value);
    }
    Ok(properties)
}

/// What to do, all input read.
enum Job {
    Insert { entries: Vec<Entry>, lines: usize },
    Delete { patterns: Vec<Pattern>, lines: usize },
    Lookup(Vec<String>),
    List,
}

impl Job {
    fn read(args: &Args, streams: &mut Streams<'_>) -> Result<Self, String> {
        if let Some(path) = &args.insert {
            let input = Input::read(path)?;
            let mut entries = input.entries(entry::parse)?;
            let metadata = metadata(&args.meta, streams);
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
                metadata(&args.meta, streams).complete(&mut entry);
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

    fn run(self, catalog: &mut dyn Catalog, verbose: u8, streams: &mut Streams<'_>) -> Result<(), String> {
        let mut out = String::new();
        match self {
            Self::Insert { entries, lines } => {
                catalog.insert(&entries).map_err(|error| error.to_string())?;
                report(streams, entries.len(), lines);
            }
            Self::Delete { patterns, lines } => {
                let removed = catalog.delete(&patterns).map_err(|error| error.to_string())?;
                if verbose > 0 {
                    let _ = writeln!(streams.stderr, "#Deleted {removed} locations");
                }
                report(streams, patterns.len(), lines);
            }
            Self::Lookup(names) => {
                for name in names {
                    for entry in catalog.lookup(&name).map_err(|error| error.to_string())? {
                        let _ = writeln!(out, "{}", entry.to_line());
                    }
                }
            }
            Self::List => {
                for entry in catalog.list().map_err(|error| error.to_string())? {
                    let _ = writeln!(out, "{}", entry.to_line());
                }
            }
        }
        streams
            .stdout
            .write_all(out.as_bytes())
            .map_err(|error| format!("cannot write the result: {error}"))
    }
}

/// The closing lines of inserts and deletes.
fn report(streams: &mut Streams<'_>, worked: usize, lines: usize) {
    let text = format!(
        "#Successfully worked on    : {worked} lines.\n#Worked on total number of : {lines} lines.\n"
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

fn with_attributes(lfn: &str, pfn: &str, attributes: &[String]) -> Result<Entry, String> {
    let mut entry = Entry {
        lfn: lfn.to_owned(),
        pfn: pfn.to_owned(),
        ..Entry::default()
    };
    for attribute in attributes {
        let (key, value) = attribute
            .split_once('=')
            .ok_or_else(|| format!("'{attribute}' is not KEY=VALUE"))?;
        if key == "site" || key == "pool" {
            entry.site = Some(value.to_owned());
        } else {
            entry.attributes.insert(key.to_owned(), value.to_owned());
        }
    }
    Ok(entry)
}

/// Loads the metadata files there are. One warning names those that are missing or of no use: the files are
/// registered all the same, without their checksums.
fn metadata(paths: &[PathBuf], streams: &mut Streams<'_>) -> Metadata {
    let mut metadata = Metadata::default();
    let mut useless = Vec::new();
    for path in paths.iter().filter(|path| !path.as_os_str().is_empty()) {
        if let Err(error) = metadata.load(path) {
            useless.push(format!("{} ({error})", path.display()));
        }
    }
    if !useless.is_empty() {
        streams.complain(&format!(
            "warning: registering without the metadata in {}",
            useless.join(", ")
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
    fn read(path: &Path) -> Result<Self, String> {
        let mut bytes = Vec::new();
        let (name, result) = if path == Path::new("-") {
            ("stdin".to_owned(), io::stdin().lock().read_to_end(&mut bytes))
        } else {
            let read = std::fs::read(path).map(|content| {
                bytes = content;
                bytes.len()
            });
            (path.display().to_string(), read)
        };
        result.map_err(|error| format!("{name}: {error}"))?;
        let text = String::from_utf8(bytes).map_err(|_| format!("{name}: not UTF-8 text"))?;
        Ok(Self { name, text })
    }

    /// What the lines mean; the first line that cannot be understood is an error, and nothing is done.
    fn entries<T>(
        &self,
        parse: impl Fn(&str) -> Result<Option<T>, entry::LineError>,
    ) -> Result<Vec<T>, String> {
        let lines = self.text.lines().enumerate();
        let parsed = lines.filter_map(|(index, line)| {
            parse(line)
                .map_err(|error| format!("{}:{}: {error}", self.name, index + 1))
                .transpose()
        });
        parsed.collect()
    }
}
