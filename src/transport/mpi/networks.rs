//! Networks that this host does not have, and what Open MPI need not do because of that.
//!
//! Open MPI loads the libraries of all networks that it was built for, and then looks for the hardware. Those
//! of Omni-Path and of its predecessor measure the clock as soon as they are loaded, which takes a
//! tenth of a second each: with Debian's Open MPI half of the time of a program that does nothing. Without
//! a device none of them would be chosen, so leaving them out does not change how messages travel.

use std::ffi::OsString;
use std::path::Path;

/// The setting: which libraries may carry messages that the network itself matches.
const SETTING: &str = "OMPI_MCA_mtl";

/// Libraries for Omni-Path, for its predecessor, and the one that has both of them loaded.
const LEFT_OUT: &str = "^psm2,psm,ofi";

/// Where the system lists devices of such networks, below `/sys/class`.
const CLASSES: [&str; 5] = ["infiniband", "infiniband_verbs", "cxi", "hfi1", "usnic_verbs"];

/// How their names begin, below `/dev`.
const DEVICES: [&str; 5] = ["hfi", "ipath", "cxi", "kgni", "infiniband"];

/// What to set for Open MPI before it starts; nothing if the user has set it, or if there is a device.
pub(super) fn setting(environment: &[(OsString, OsString)]) -> Option<(&'static str, &'static str)> {
    let chosen = environment.iter().any(|(name, _)| name == SETTING);
    (!chosen && are_missing(Path::new("/sys/class"), Path::new("/dev"))).then_some((SETTING, LEFT_OUT))
}

/// Whether there is certainly no device.
fn are_missing(classes: &Path, devices: &Path) -> bool {
    let Ok(mut devices) = devices.read_dir() else {
        return false;
    };
    // Without this folder nobody can tell.
    if !classes.is_dir() || CLASSES.iter().any(|class| classes.join(class).exists()) {
        return false;
    }
    devices.all(|entry| {
        entry.is_ok_and(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            !DEVICES.iter().any(|start| name.starts_with(start))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_keeps_everything() {
        let root = tempfile::tempdir().unwrap();
        let (classes, devices) = (root.path().join("class"), root.path().join("dev"));
        assert!(!are_missing(&classes, &devices), "nothing can be known");
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
    fn what_the_user_has_set_stays() {
        assert_eq!(setting(&[(SETTING.into(), "ofi".into())]), None);
    }
}
