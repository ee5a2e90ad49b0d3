//! The GPUs of a worker, and how a task learns which of them it may use.

use std::ffi::OsString;
use std::path::Path;

/// Variables with which CUDA and ROCm are told which devices to use. Batch systems set them to the
/// devices of the job.
const VARIABLES: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"];

/// Names of the devices, for each of the variables that the worker has inherited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Devices {
    names: [Option<Vec<String>>; 2],
}

impl Devices {
    /// Those that the environment names.
    pub(super) fn named(environment: &[(OsString, OsString)]) -> Self {
        let names = VARIABLES.map(|variable| {
            let found = environment.iter().find(|(name, _)| name == variable);
            found.map(|(_, value)| list(&value.to_string_lossy()))
        });
        Self { names }
    }

    /// How many there are: `wanted` if it is not 0, else as many as the environment names, else as
    /// many as the system has.
    pub(super) fn count(&self, wanted: u32) -> u32 {
        if wanted > 0 {
            return wanted;
        }
        let named = self.names.iter().flatten().map(Vec::len).max();
        let count = named.unwrap_or_else(|| found(Path::new("/dev")));
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Variables for a task that was granted these devices, counted from 0.
    pub(super) fn variables(&self, granted: &[u32]) -> impl Iterator<Item = (&'static str, String)> {
        VARIABLES.into_iter().zip(&self.names).map(|(variable, names)| {
            let name = |number: &u32| {
                let name = names.as_ref().and_then(|names| names.get(*number as usize));
                name.cloned().unwrap_or_else(|| number.to_string())
            };
            let names: Vec<String> = granted.iter().map(name).collect();
            (variable, names.join(","))
        })
    }
}

/// Devices up to the first one that is none: that is how CUDA reads its variable.
fn list(value: &str) -> Vec<String> {
    let names = value.split(',').map(str::trim);
    let is_device = |name: &&str| !name.is_empty() && !name.starts_with('-') && *name != "NoDevFiles";
    names.take_while(is_device).map(str::to_owned).collect()
}

/// Number of GPUs of NVIDIA, or else of AMD, among the devices of the system.
fn found(devices: &Path) -> usize {
    let count = |folder: &Path, start: &str| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let is_one = |name: &String| {
            let number = name.strip_prefix(start);
            number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        };
        names.filter(is_one).count()
    };
    match count(devices, "nvidia") {
        0 if devices.join("kfd").exists() => count(&devices.join("dri"), "renderD"),
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(variables: &[(&str, &str)]) -> Devices {
        let owned: Vec<(OsString, OsString)> = variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        Devices::named(&owned)
    }

    #[test]
    fn tasks_get_names_out_of_those_of_the_worker() {
        let four = devices(&[("CUDA_VISIBLE_DEVICES", "4, 6,GPU-ab,7,-1,9")]);
        assert_eq!((four.count(0), four.count(2)), (4, 2));
        let variables: Vec<_> = four.variables(&[0, 2]).collect();
        assert_eq!(variables[0], ("CUDA_VISIBLE_DEVICES", "4,GPU-ab".to_owned()));
        assert_eq!(variables[1], ("ROCR_VISIBLE_DEVICES", "0,2".to_owned()));
        assert_eq!(devices(&[("ROCR_VISIBLE_DEVICES", "")]).count(0), 0);
    }

    #[test]
    fn devices_of_the_system_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| std::fs::write(folder.path().join(name), "").unwrap();
        std::fs::create_dir(folder.path().join("dri")).unwrap();
        ["dri/renderD128", "dri/renderD129", "dri/card0"]
            .into_iter()
            .for_each(make);
        assert_eq!(found(folder.path()), 0);
        make("kfd");
        assert_eq!(found(folder.path()), 2);
        ["nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"]
            .into_iter()
            .for_each(make);
        assert_eq!(found(folder.path()), 3);
        assert_eq!(found(&folder.path().join("none")), 0);
    }
}
