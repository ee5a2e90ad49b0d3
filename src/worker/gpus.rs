//! The GPUs of a worker, and the variables that name the GPUs of a task.

use std::ffi::OsString;
use std::path::Path;

/// Variables that name the devices for CUDA and ROCm. Batch systems set them to the devices of the job.
const VARIABLES: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"];

/// Names of the devices, for each of [`VARIABLES`] that the worker has inherited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Devices {
    names: [Option<Vec<String>>; 2],
}

impl Devices {
    /// Reads the devices that the environment names.
    pub(super) fn from_environment(environment: &[(OsString, OsString)]) -> Self {
        let names = VARIABLES.map(|variable| {
            let entry = environment.iter().find(|(name, _)| name == variable);
            entry.map(|(_, value)| split_names(&value.to_string_lossy()))
        });
        Self { names }
    }

    /// Returns the number of devices: `configured` unless it is 0, else the number that the environment
    /// names, else the number in the system.
    pub(super) fn count(&self, configured: u32) -> u32 {
        if configured > 0 {
            return configured;
        }
        let named = self.names.iter().flatten().map(Vec::len).max();
        let count = named.unwrap_or_else(|| count_devices(Path::new("/dev")));
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Returns the variables of a task with these devices, which count from 0.
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

/// Splits a value into names, up to the first invalid one, as CUDA does.
fn split_names(value: &str) -> Vec<String> {
    let names = value.split(',').map(str::trim);
    let is_device = |name: &&str| !name.is_empty() && !name.starts_with('-') && *name != "NoDevFiles";
    names.take_while(is_device).map(str::to_owned).collect()
}

/// Counts the NVIDIA GPUs of the system, or else those of AMD.
fn count_devices(devices: &Path) -> usize {
    let count = |folder: &Path, prefix: &str| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let is_gpu = |name: &String| {
            let number = name.strip_prefix(prefix);
            number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        };
        names.filter(is_gpu).count()
    };
    match count(devices, "nvidia") {
        0 if devices.join("kfd").exists() => count(&devices.join("dri"), "renderD"),
        nvidia => nvidia,
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
        Devices::from_environment(&owned)
    }

    #[test]
    fn tasks_get_some_of_the_names_of_the_worker() {
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
        assert_eq!(count_devices(folder.path()), 0);
        make("kfd");
        assert_eq!(count_devices(folder.path()), 2);
        ["nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"]
            .into_iter()
            .for_each(make);
        assert_eq!(count_devices(folder.path()), 3);
        assert_eq!(count_devices(&folder.path().join("none")), 0);
    }
}
