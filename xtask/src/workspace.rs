//! The packages of this workspace, as cargo describes them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Returns the root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_owned()
}

/// A package of this workspace.
#[derive(Debug)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// The directory of its manifest.
    pub dir: PathBuf,
    /// Names of the packages that it depends on, as its code spells them.
    pub dependencies: BTreeSet<String>,
}

/// What cargo says about the workspace.
#[derive(Debug)]
pub struct Workspace {
    /// The packages of the workspace.
    pub packages: Vec<Package>,
    /// Packages that need a newer Rust than the workspace promises, with the version that they need.
    pub too_new: Vec<(String, String)>,
}

impl Workspace {
    /// Asks cargo about the workspace. Takes no network.
    ///
    /// # Errors
    /// Cargo fails, or its answer has another form than expected.
    pub fn read() -> Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(["metadata", "--format-version", "1", "--all-features", "--offline"])
            .current_dir(root())
            .output()
            .context("cannot start cargo")?;
        ensure!(
            output.status.success(),
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let metadata: Value = serde_json::from_slice(&output.stdout)?;
        let packages = metadata["packages"].as_array().context("no packages")?;
        let promised = packages
            .iter()
            .find(|package| package["name"] == "pegasus-mpi-cluster")
            .and_then(|package| package["rust_version"].as_str())
            .context("the workspace has no rust-version")?;
        let mut workspace = Self {
            packages: Vec::new(),
            too_new: Vec::new(),
        };
        for package in packages {
            if package["source"].is_null() {
                workspace.packages.push(read_package(package)?);
            }
            if let Some(needed) = package["rust_version"].as_str()
                && version(needed) > version(promised)
            {
                let name = package["name"].as_str().unwrap_or_default();
                workspace.too_new.push((name.to_owned(), needed.to_owned()));
            }
        }
        Ok(workspace)
    }
}

fn read_package(package: &Value) -> Result<Package> {
    let manifest = package["manifest_path"].as_str().context("no manifest_path")?;
    let dir = Path::new(manifest)
        .parent()
        .context("a manifest lies in a directory")?;
    let dependencies = package["dependencies"].as_array().context("no dependencies")?;
    Ok(Package {
        name: package["name"].as_str().context("no name")?.to_owned(),
        dir: dir.to_owned(),
        dependencies: dependencies
            .iter()
            .filter_map(|dependency| dependency["rename"].as_str().or(dependency["name"].as_str()))
            .map(|name| name.replace('-', "_"))
            .collect(),
    })
}

/// The parts of a version, for comparison.
fn version(text: &str) -> Vec<u32> {
    text.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}
