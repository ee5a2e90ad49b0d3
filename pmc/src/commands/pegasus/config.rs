//! `pegasus-version` and `pegasus-config`: version, and directories in the layout of Pegasus.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use pmc_plan::COMPATIBLE_VERSION;

use super::SHIMS;
use crate::cli::pegasus;
use crate::exit;
use crate::failure::Failure;
use pmc_terminal::print;

/// Prints the version. Returns the exit code.
pub fn version(options: &pegasus::Version) -> Result<u8, Failure> {
    let own = env!("CARGO_PKG_VERSION");
    if options.version {
        print(&format!("PEGASUS version {COMPATIBLE_VERSION}\n"));
    } else if options.full || options.long {
        print(&format!("{COMPATIBLE_VERSION}-pmc-{own}\n"));
    } else {
        print(&format!("{COMPATIBLE_VERSION}\n"));
    }
    Ok(exit::SUCCESS)
}

/// Prints a directory. Returns the exit code.
pub fn config(options: &pegasus::Config) -> Result<u8, Failure> {
    let places = Places::find();
    let line = |path: &Path| format!("{}{}", path.display(), if options.noeoln { "" } else { "\n" });
    let text = if options.version {
        line(Path::new(COMPATIBLE_VERSION))
    } else if options.python_hash {
        places.list(|name, path| format!("pegasus_{name} = \"{path}\"\n"))
    } else if options.sh_dump {
        places.list(|name, path| {
            let name = format!("PEGASUS_{}", name.to_uppercase());
            format!("{name}=\"{path}\"\nexport {name}\n")
        })
    } else if options.bin {
        line(&places.bin)
    } else if options.conf {
        line(&places.conf)
    } else if options.schema {
        line(&places.schema)
    } else if options.python {
        line(&places.python)
    } else if options.python_externals {
        line(&places.python_externals)
    } else {
        let error = anyhow!("pegasus-config: no option says what to print; see pegasus-config --help");
        return Err(Failure::new(exit::TASKS_FAILED, error));
    };
    print(&text);
    Ok(exit::SUCCESS)
}

/// Directories of an installation. Only that of the programs need exist.
struct Places {
    bin: PathBuf,
    conf: PathBuf,
    python: PathBuf,
    python_externals: PathBuf,
    share: PathBuf,
    schema: PathBuf,
}

impl Places {
    /// Returns the directories around the scripts that stand for Pegasus' programs.
    fn find() -> Self {
        let bin = std::env::var_os(SHIMS).map(PathBuf::from);
        let bin = bin.or_else(|| Some(std::env::current_exe().ok()?.parent()?.to_owned()));
        let bin = bin.unwrap_or_default();
        let bin = bin.canonicalize().unwrap_or(bin);
        let home = bin.parent().unwrap_or(&bin).to_owned();
        Self {
            conf: home.join("etc"),
            python: home.join("lib/pegasus/python"),
            python_externals: home.join("lib/pegasus/externals/python"),
            schema: home.join("share/pegasus/schema"),
            share: home.join("share/pegasus"),
            bin,
        }
    }

    fn list(&self, line: impl Fn(&str, &str) -> String) -> String {
        [
            ("bin_dir", &self.bin),
            ("conf_dir", &self.conf),
            ("python_dir", &self.python),
            ("python_externals_dir", &self.python_externals),
            ("share_dir", &self.share),
            ("schema_dir", &self.schema),
        ]
        .iter()
        .map(|(name, path)| line(name, &path.display().to_string()))
        .collect()
    }
}
