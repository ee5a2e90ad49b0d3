//! Golden cases between their two forms: a folder, which is recorded, and an archive, which is kept.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use testutils::golden;
use testutils::txtar::Archive;

/// Makes `tests/golden/KIND/NAME.txtar` of a recorded folder `NAME`. Returns the path of the archive.
///
/// # Errors
/// The folder is no recorded case, has content that an archive cannot have, or the archive cannot be
/// written.
pub fn pack(folder: &Path) -> Result<PathBuf> {
    let folder = fs::canonicalize(folder).with_context(|| folder.display().to_string())?;
    let name = folder.file_name().and_then(OsStr::to_str);
    let name = name.with_context(|| format!("{} has no name in UTF-8", folder.display()))?;
    let archive = golden::pack(&folder)?;
    let path = golden::directory()
        .join(kind(&archive, &folder)?)
        .join(format!("{name}.txtar"));
    fs::write(&path, archive.to_string()).with_context(|| format!("cannot write {}", path.display()))?;
    fs::canonicalize(&path).with_context(|| path.display().to_string())
}

/// Returns the kind of a case: the directory of `tests/golden` that it belongs to.
fn kind(archive: &Archive, folder: &Path) -> Result<&'static str> {
    let has_below = |directory| archive.below(directory).next().is_some();
    let has_condor = |setup: &str| setup.lines().any(|word| word.trim() == "condor");
    Ok(if archive.get("np").is_some() && has_below("expected") {
        "executor"
    } else if has_below("input") && has_below("expected") {
        let has_part =
            |text: &str| text.contains("type: pegasusWorkflow") || text.contains("type: condorWorkflow");
        match archive.get("setup") {
            _ if archive
                .below("expected")
                .any(|(path, _)| path.ends_with(".dag.condor.sub")) =>
            {
                "planner-condor"
            }
            _ if archive.below("input").any(|(_, file)| has_part(&file.content)) => "planner-subworkflow",
            Some(setup) if has_condor(setup) => "planner-condor",
            Some(_) => "planner-lite",
            None => "planner",
        }
    } else if has_below("executed") && archive.get("expected.json").is_some() {
        "stampede"
    } else {
        bail!(
            "{} is no recorded golden case. A case of the executor has np and expected/, one of the planner \
             input/ and expected/, one of the database executed/ and expected.json.",
            folder.display()
        )
    })
}

/// Writes the files of an archive into a new folder.
///
/// # Errors
/// The archive is malformed, the folder exists, or it cannot be written.
pub fn unpack(archive: &Path, folder: &Path) -> Result<()> {
    let named = || archive.display().to_string();
    let text = fs::read_to_string(archive).with_context(named)?;
    let content = Archive::parse(&text).with_context(named)?;
    if folder.exists() {
        bail!("{} exists already; name a new folder", folder.display());
    }
    golden::unpack(&content, folder).with_context(|| format!("cannot write {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_is_of_its_kind() {
        for expected in [
            "executor",
            "planner",
            "planner-condor",
            "planner-subworkflow",
            "stampede",
        ] {
            for case in golden::Case::read_all(expected) {
                let found = kind(&case.archive, Path::new(&case.name)).expect("a case");
                assert_eq!(found, expected, "{}", case.name);
            }
        }
        let empty = kind(&Archive::default(), Path::new("x")).expect_err("no case");
        assert!(empty.to_string().starts_with("x is no recorded golden case."));
    }
}
