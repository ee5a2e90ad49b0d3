//! Properties of a plan, as its submit directory records them.

use std::path::{Path, PathBuf};

use monitord_compat::properties;
use pmc_monitor::dir::RunDir;

/// Maximum bytes of the properties that are read.
const MAX_PROPERTIES: u64 = 16 << 20;

/// A property, and the file that has it.
#[derive(Debug)]
pub struct Recorded {
    /// Text behind the equals sign.
    pub value: String,
    /// Path of the file.
    pub file: PathBuf,
}

/// Returns a property of the plan. A plan that was moved, or is not ours, may have none.
pub fn property(dir: &RunDir, key: &str) -> Option<Recorded> {
    let name = dir.braindump.get("properties")?;
    let file = dir.dir.join(Path::new(name).file_name().unwrap_or_default());
    let text = pmc_files::read_to_string(&file, MAX_PROPERTIES).ok()?;
    let mut all = properties::settings(&text).into_iter().flatten();
    let setting = all.rfind(|setting| setting.key == key)?;
    Some(Recorded {
        value: setting.value.trim().to_owned(),
        file,
    })
}
