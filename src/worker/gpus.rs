//! The GPUs of a worker, and the variables that name the GPUs of a task.
//!
//! Batch systems and users name the devices of a job in one or more variables. A task gets its part of what
//! the worker has inherited. On AMD's GPUs, the variables are two filters, one behind the other:
//! `ROCR_VISIBLE_DEVICES` takes some of the devices, and the others, among them CUDA's, count in what it has
//! left. So only the first one may name the devices, and the others number what is left.

use std::ffi::OsString;
use std::path::Path;

const CUDA: &str = "CUDA_VISIBLE_DEVICES";
const ROCR: &str = "ROCR_VISIBLE_DEVICES";
/// For AMD's GPUs: filters behind [`ROCR`].
const BEHIND_ROCR: [&str; 3] = ["HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", CUDA];
/// For Intel's GPUs: devices, or parts of them such as `0.1`.
const LEVEL_ZERO: &str = "ZE_AFFINITY_MASK";
/// All of them.
const VARIABLES: [&str; 5] = [CUDA, ROCR, BEHIND_ROCR[0], BEHIND_ROCR[1], LEVEL_ZERO];

/// Whose GPUs they are. It decides which variables a task needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Maker {
    /// NVIDIA, or unknown: AMD's programs also respect CUDA's variable.
    #[default]
    Nvidia,
    Amd,
    Intel,
}

/// Names of the devices in the variables that the worker has inherited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Devices {
    maker: Maker,
    named: Vec<(&'static str, Vec<String>)>,
}

impl Devices {
    /// Reads the devices that the environment names.
    pub(super) fn from_environment(environment: &[(OsString, OsString)]) -> Self {
        Self::on(Path::new("/dev"), environment)
    }

    /// The same on a machine with this folder of devices.
    fn on(devices: &Path, environment: &[(OsString, OsString)]) -> Self {
        let inherited = VARIABLES.into_iter().filter_map(|variable| {
            let (_, value) = environment.iter().find(|(name, _)| name == variable)?;
            Some((variable, split_names(&value.to_string_lossy())))
        });
        let mut all = Self {
            maker: Maker::default(),
            named: inherited.collect(),
        };
        let is_named = |variable: &str| all.names(variable).is_some();
        let is_amd = is_named(ROCR) || BEHIND_ROCR[..2].iter().any(|variable| is_named(variable));
        all.maker = match (is_named(CUDA), is_amd, is_named(LEVEL_ZERO)) {
            (true, false, _) => Maker::Nvidia,
            (false, true, _) => Maker::Amd,
            (false, false, true) => Maker::Intel,
            // One filter behind the other.
            (true, true, _)
                if all
                    .names(ROCR)
                    .is_some_and(|names| all.names(CUDA) != Some(names)) =>
            {
                Maker::Amd
            }
            // The same in all of them, as Slurm has it by default; or none.
            (true, true, _) | (false, false, false) => maker(devices),
        };
        all
    }

    /// The devices that a variable names, if it names any.
    fn names(&self, variable: &str) -> Option<&[String]> {
        let (_, names) = self.named.iter().find(|(name, _)| *name == variable)?;
        Some(names.as_slice()).filter(|names| !names.is_empty())
    }

    /// The filter behind [`ROCR`] that is in force.
    fn behind_rocr(&self) -> Option<&[String]> {
        BEHIND_ROCR.into_iter().find_map(|variable| self.names(variable))
    }

    /// Returns the number of devices: `configured` unless it is 0, else the number that the environment
    /// names, else the number in the system.
    pub(super) fn count(&self, configured: u32) -> u32 {
        if configured > 0 {
            return configured;
        }
        let lists: &[Option<&[String]>] = match self.maker {
            Maker::Nvidia => &[self.names(CUDA)],
            Maker::Amd => &[self.names(ROCR), self.behind_rocr()],
            Maker::Intel => &[self.names(LEVEL_ZERO)],
        };
        let named = lists.iter().flatten().map(|names| names.len()).min();
        let count = match named {
            Some(count) => count,
            None if self.named.is_empty() => count_devices(Path::new("/dev")),
            // The variables name none.
            None => 0,
        };
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Returns the variables of a task with these devices, which count from 0.
    pub(super) fn variables(&self, granted: &[u32]) -> Vec<(&'static str, String)> {
        let own = |variable| {
            let name = |number: &u32| nth(self.names(variable), *number);
            join(granted.iter().map(name))
        };
        if self.maker == Maker::Amd {
            return self.variables_of_amd(granted);
        }
        let needed = match self.maker {
            Maker::Intel => LEVEL_ZERO,
            _ => CUDA,
        };
        let is_set = |variable: &&str| *variable == needed || self.names(variable).is_some();
        let set = VARIABLES.into_iter().filter(is_set);
        set.map(|variable| (variable, own(variable))).collect()
    }

    fn variables_of_amd(&self, granted: &[u32]) -> Vec<(&'static str, String)> {
        let (first, behind) = (self.names(ROCR), self.behind_rocr());
        let name = |number: &u32| {
            let name = nth(behind.or(first), *number);
            let position = name.parse::<usize>().ok().filter(|_| behind.is_some());
            // Some sites set all variables to the same names.
            let named = first.and_then(|first| first.get(position?));
            named.cloned().unwrap_or(name)
        };
        let names = join(granted.iter().map(name));
        let is_inherited = |variable: &&str| self.names(variable).is_some();
        let inherited = BEHIND_ROCR.into_iter().filter(is_inherited);
        if first.is_none() && behind.is_some() {
            return inherited.map(|variable| (variable, names.clone())).collect();
        }
        let numbers = join((0..granted.len()).map(|number| number.to_string()));
        let others = inherited.map(|variable| (variable, numbers.clone()));
        std::iter::once((ROCR, names.clone())).chain(others).collect()
    }
}

/// The name of a device, or its number if there is no name.
fn nth(names: Option<&[String]>, number: u32) -> String {
    let name = names.and_then(|names| names.get(number as usize));
    name.cloned().unwrap_or_else(|| number.to_string())
}

fn join(names: impl Iterator<Item = String>) -> String {
    names.collect::<Vec<_>>().join(",")
}

/// Splits a value into names, up to the first invalid one, as CUDA does.
fn split_names(value: &str) -> Vec<String> {
    let names = value.split(',').map(str::trim);
    let is_device = |name: &&str| !name.is_empty() && !name.starts_with('-') && *name != "NoDevFiles";
    names.take_while(is_device).map(str::to_owned).collect()
}

/// Returns who made the GPUs of a system.
fn maker(devices: &Path) -> Maker {
    if count(devices, "nvidia") > 0 {
        Maker::Nvidia
    } else if devices.join("kfd").exists() {
        Maker::Amd
    } else {
        Maker::default()
    }
}

/// Counts the NVIDIA GPUs of the system, or else those of AMD.
fn count_devices(devices: &Path) -> usize {
    match maker(devices) {
        Maker::Amd => count(&devices.join("dri"), "renderD"),
        _ => count(devices, "nvidia"),
    }
}

/// Counts entries with this beginning and a number.
fn count(folder: &Path, prefix: &str) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_gpu = |name: &String| {
        let number = name.strip_prefix(prefix);
        number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    names.filter(is_gpu).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a machine without GPUs, whose variables decide.
    fn devices(variables: &[(&str, &str)]) -> Devices {
        on(Path::new("/nonexistent"), variables)
    }

    fn on(machine: &Path, variables: &[(&str, &str)]) -> Devices {
        let owned: Vec<(OsString, OsString)> = variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        Devices::on(machine, &owned)
    }

    fn set(devices: &Devices, granted: &[u32]) -> String {
        let variables = devices.variables(granted).into_iter();
        let text = variables.map(|(name, value)| format!("{name}={value}"));
        text.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn tasks_get_some_of_the_names_of_the_worker() {
        let four = devices(&[(CUDA, "4, 6,GPU-ab,7,-1,9")]);
        assert_eq!((four.count(0), four.count(2)), (4, 2));
        assert_eq!(set(&four, &[0, 2]), "CUDA_VISIBLE_DEVICES=4,GPU-ab");
        assert_eq!(set(&devices(&[]), &[1]), "CUDA_VISIBLE_DEVICES=1");
        for variable in VARIABLES {
            assert_eq!(devices(&[(variable, "")]).count(0), 0, "{variable}");
        }
    }

    #[test]
    fn gpus_of_amd_have_no_list_for_cuda_that_contradicts() {
        for (variables, count, second) in [
            (&[(ROCR, "4,5,6,7")][..], 4, "ROCR_VISIBLE_DEVICES=5"),
            (&[("HIP_VISIBLE_DEVICES", "2,3")], 2, "HIP_VISIBLE_DEVICES=3"),
            (&[("GPU_DEVICE_ORDINAL", "2,3")], 2, "GPU_DEVICE_ORDINAL=3"),
            (
                &[(ROCR, "4,5,6,7"), (CUDA, "NoDevFiles")],
                4,
                "ROCR_VISIBLE_DEVICES=5",
            ),
            (
                &[(ROCR, "4,5,6,7"), (CUDA, "0,1,2,3")],
                4,
                "ROCR_VISIBLE_DEVICES=5 CUDA_VISIBLE_DEVICES=0",
            ),
            // The second filter counts in what the first one has left.
            (
                &[(ROCR, "4,5,6,7"), ("HIP_VISIBLE_DEVICES", "2,3")],
                2,
                "ROCR_VISIBLE_DEVICES=7 HIP_VISIBLE_DEVICES=0",
            ),
            (
                &[(ROCR, "4,5"), ("HIP_VISIBLE_DEVICES", "4,5")],
                2,
                "ROCR_VISIBLE_DEVICES=5 HIP_VISIBLE_DEVICES=0",
            ),
        ] {
            let devices = devices(variables);
            assert_eq!(devices.count(0), count, "{variables:?}");
            assert_eq!(set(&devices, &[1]), second, "{variables:?}");
        }
    }

    #[test]
    fn the_machine_decides_if_all_variables_are_set() {
        let folder = tempfile::tempdir().unwrap();
        let all = [(CUDA, "0,1"), (ROCR, "0,1"), (LEVEL_ZERO, "0,1")];
        let unknown = set(&on(folder.path(), &all), &[1]);
        assert_eq!(
            unknown,
            "CUDA_VISIBLE_DEVICES=1 ROCR_VISIBLE_DEVICES=1 ZE_AFFINITY_MASK=1"
        );
        std::fs::write(folder.path().join("kfd"), "").unwrap();
        assert_eq!(
            set(&on(folder.path(), &all), &[1]),
            "ROCR_VISIBLE_DEVICES=1 CUDA_VISIBLE_DEVICES=0"
        );
        assert_eq!(set(&on(folder.path(), &[]), &[1]), "ROCR_VISIBLE_DEVICES=1");
    }

    #[test]
    fn gpus_of_intel_are_named_by_their_mask() {
        let tiles = devices(&[(LEVEL_ZERO, "0.0,0.1,1.0,1.1")]);
        assert_eq!(tiles.count(0), 4);
        assert_eq!(set(&tiles, &[1, 2]), "ZE_AFFINITY_MASK=0.1,1.0");
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
