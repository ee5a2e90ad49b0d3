//! Keeps Open MPI from loading libraries of networks that this host does not have.
//!
//! Open MPI loads the libraries of all networks that it was built for, and then searches for the hardware.
//! The libraries of Omni-Path and its predecessor measure the clock when they are loaded, which takes a tenth
//! of a second each. With Debian's Open MPI that is half the time of a program that does nothing. Without a
//! device none of them would be chosen, so leaving them out does not change how messages travel.

use std::ffi::OsString;
use std::path::Path;

/// Open MPI's setting for libraries whose network matches messages itself.
const SETTING: &str = "OMPI_MCA_mtl";

/// Excludes the libraries for Omni-Path and its predecessor, and the one that loads both.
const EXCLUSIONS: &str = "^psm2,psm,ofi";

/// Folders of such devices below `/sys/class`.
const DEVICE_CLASSES: [&str; 5] = ["infiniband", "infiniband_verbs", "cxi", "hfi1", "usnic_verbs"];

/// Prefixes of their names below `/dev`.
const DEVICE_PREFIXES: [&str; 5] = ["hfi", "ipath", "cxi", "kgni", "infiniband"];

/// Returns the variable to set before Open MPI starts. `None` if the user has set it, or if there is a
/// device.
pub(super) fn setting(environment: &[(OsString, OsString)]) -> Option<(&'static str, &'static str)> {
    let is_set = environment.iter().any(|(name, _)| name == SETTING);
    (!is_set && are_missing(Path::new("/sys/class"), Path::new("/dev"))).then_some((SETTING, EXCLUSIONS))
}

/// Returns whether there is certainly no device.
fn are_missing(classes: &Path, devices: &Path) -> bool {
    let Ok(mut devices) = devices.read_dir() else {
        return false;
    };
    // Without this folder, devices may be hidden.
    if !classes.is_dir() || DEVICE_CLASSES.iter().any(|class| classes.join(class).exists()) {
        return false;
    }
    devices.all(|entry| {
        entry.is_ok_and(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            !DEVICE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_excluded_only_without_a_device() {
        let root = tempfile::tempdir().unwrap();
        let (classes, devices) = (root.path().join("class"), root.path().join("dev"));
        assert!(!are_missing(&classes, &devices), "devices may be hidden");
        std::fs::create_dir_all(classes.join("net")).unwrap();
        std::fs::create_dir_all(&devices).unwrap();
        std::fs::write(devices.join("null"), "").unwrap();
        assert!(are_missing(&classes, &devices));
        std::fs::write(devices.join("hfi1_0"), "").unwrap();
        assert!(!are_missing(&classes, &devices));
        std::fs::remove_file(devices.join("hfi1_0")).unwrap();
        std::fs::create_dir(classes.join("infiniband")).unwrap();
        assert!(!are_missing(&classes, &devices));
    }

    #[test]
    fn setting_of_the_user_is_kept() {
        assert_eq!(setting(&[(SETTING.into(), "ofi".into())]), None);
    }
}
