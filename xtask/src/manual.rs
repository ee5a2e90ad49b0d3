//! Files below `share/`: manual pages and shell completions, made from the option tables of the programs, and
//! the scripts that stand for programs of Pegasus.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::programs;

/// The page about the properties and profiles of the planner, below the root of the repository.
pub const KEYS_PAGE: &str = "docs/manual/pmc-plan-keys.md";

/// Returns the content of each file below `share/`, by its path there.
///
/// # Errors
/// A page cannot be made.
pub fn files() -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for command in programs::all() {
        add_pages(&mut files, &command, None)?;
        add_completions(&mut files, command);
    }
    for (name, text) in pmc::pegasus_scripts() {
        files.insert(Path::new(SHIMS).join(name), text.into_bytes());
    }
    Ok(files)
}

/// Writes the files below the directory `share` and removes what no program has any more.
///
/// # Errors
/// A file cannot be written.
pub fn write(share: &Path) -> Result<()> {
    let files = files()?;
    for path in existing(share)? {
        if !files.contains_key(&path) {
            fs::remove_file(share.join(&path))?;
        }
    }
    for (path, content) in files {
        let path = share.join(path);
        fs::create_dir_all(path.parent().context("a file below share")?)?;
        fs::write(&path, content).with_context(|| path.display().to_string())?;
        if path.parent().is_some_and(|folder| folder.ends_with(SHIMS)) {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}

/// Returns the files below `share` that [`write()`] would change, add or remove.
///
/// # Errors
/// A page cannot be made.
pub fn stale(share: &Path) -> Result<Vec<PathBuf>> {
    let files = files()?;
    let mut stale: Vec<PathBuf> = existing(share)?
        .into_iter()
        .filter(|path| !files.contains_key(path))
        .collect();
    for (path, content) in files {
        if fs::read(share.join(&path)).ok() != Some(content) {
            stale.push(path);
        }
    }
    Ok(stale)
}

/// Folders below `share` that hold nothing but generated files.
const FOLDERS: [&str; 5] = [
    "man/man1",
    "bash-completion/completions",
    "zsh/site-functions",
    "fish/vendor_completions.d",
    SHIMS,
];

/// Folder of the scripts that stand for programs of Pegasus. Its name ends in `bin`: the Python client takes
/// the parent of that folder for the directory of an installation.
const SHIMS: &str = "pegasus-shims/bin";

fn existing(share: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        let Ok(entries) = fs::read_dir(share.join(folder)) else {
            continue;
        };
        for entry in entries {
            found.push(Path::new(folder).join(entry?.file_name()));
        }
    }
    Ok(found)
}

/// Adds the page of a program, and one for each of its subcommands.
fn add_pages(files: &mut BTreeMap<PathBuf, Vec<u8>>, command: &Command, parent: Option<&str>) -> Result<()> {
    let name = match parent {
        Some(parent) => format!("{parent}-{}", command.get_name()),
        None => command.get_name().to_owned(),
    };
    let mut command = command.clone().disable_help_subcommand(true);
    command.build();
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        add_pages(files, subcommand, Some(&name))?;
    }
    let mut page = Vec::new();
    Man::new(command.display_name(name.clone()))
        .title(name.to_uppercase())
        // The date of a build would make every build differ.
        .date("")
        .source(format!("pmc {}", env!("CARGO_PKG_VERSION")))
        .manual("Workflows as one batch job")
        .render(&mut page)?;
    files.insert(Path::new(FOLDERS[0]).join(format!("{name}.1")), page);
    Ok(())
}

fn add_completions(files: &mut BTreeMap<PathBuf, Vec<u8>>, command: Command) {
    let name = command.get_name().to_owned();
    for (shell, folder, file) in [
        (Shell::Bash, FOLDERS[1], name.clone()),
        (Shell::Zsh, FOLDERS[2], format!("_{name}")),
        (Shell::Fish, FOLDERS[3], format!("{name}.fish")),
    ] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command.clone(), &name, &mut text);
        files.insert(Path::new(folder).join(file), text);
    }
}
