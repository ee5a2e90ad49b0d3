//! The environment of a rank: that of the front end, but for what this host and this rank have of their own.

use std::collections::BTreeMap;

use crate::frames::{Bytes, Load};

/// Variables that say something about a host, or about the part of a task that it has. A rank gets those of
/// its host.
const OF_THE_HOST: [&[u8]; 14] = [
    b"HOSTNAME",
    b"SLURMD_NODENAME",
    b"SLURM_TOPOLOGY_ADDR",
    b"TMPDIR",
    b"PMC_MEMORY",
    b"PMC_CPUS",
    b"PMC_RANK",
    b"PMC_HOST_RANK",
    b"PMC_AFFINITY",
    b"CUDA_VISIBLE_DEVICES",
    b"ROCR_VISIBLE_DEVICES",
    b"HIP_VISIBLE_DEVICES",
    b"GPU_DEVICE_ORDINAL",
    b"ZE_AFFINITY_MASK",
];

/// Beginnings of variables by which another launcher has started the front end.
const OF_LAUNCHERS: [&[u8]; 4] = [b"PMI_", b"PMIX_", b"MPI_LOCALRANKID", b"MPI_LOCALNRANKS"];

/// A rank, for its variables.
pub(super) struct Numbers {
    pub(super) rank: u32,
    /// Its number among those of this host.
    pub(super) local: u32,
}

/// Returns the variables of a rank, by name. `own` are those of this process; `pmi` is the descriptor of the
/// rank, if it has one.
pub(super) fn of_rank(
    load: &Load,
    own: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
    numbers: &Numbers,
    pmi: Option<i32>,
) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut all: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for Bytes(variable) in &load.environment {
        let Some(end) = variable.iter().position(|byte| *byte == b'=') else {
            continue;
        };
        let (name, value) = variable.split_at(end);
        let is_dropped =
            OF_THE_HOST.contains(&name) || OF_LAUNCHERS.iter().any(|start| name.starts_with(start));
        if !is_dropped {
            all.insert(name.to_vec(), value.get(1..).unwrap_or_default().to_vec());
        }
    }
    let of_host = own
        .into_iter()
        .filter(|(name, _)| OF_THE_HOST.contains(&name.as_slice()));
    all.extend(of_host);
    let mut set = |name: &str, value: u32| {
        all.insert(name.into(), value.to_string().into_bytes());
    };
    let here = u32::try_from(load.ranks.len()).unwrap_or(u32::MAX);
    set("PMC_LAUNCH_RANK", numbers.rank);
    set("PMC_LAUNCH_SIZE", load.size);
    set("PMC_LAUNCH_LOCAL_RANK", numbers.local);
    set("PMC_LAUNCH_LOCAL_SIZE", here);
    set("PMC_LAUNCH_NODE", load.node);
    if load.sets_torch {
        set("RANK", numbers.rank);
        set("WORLD_SIZE", load.size);
        set("LOCAL_RANK", numbers.local);
        set("LOCAL_WORLD_SIZE", here);
    }
    if let Some(descriptor) = pmi {
        set("PMI_FD", descriptor.unsigned_abs());
        set("PMI_RANK", numbers.rank);
        set("PMI_SIZE", load.size);
        set("MPI_LOCALRANKID", numbers.local);
        set("MPI_LOCALNRANKS", here);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{Input, LocalRank};

    #[test]
    fn a_rank_has_what_is_of_its_host_and_its_own() {
        let text = |text: &str| Bytes(text.as_bytes().to_vec());
        let mut load = Load {
            node: 1,
            ranks: vec![LocalRank {
                rank: 5,
                program: 0,
                words: None,
            }],
            programs: Vec::new(),
            size: 6,
            mapping: String::new(),
            name: String::new(),
            environment: [
                "A=b=c",
                "TMPDIR=/front",
                "CUDA_VISIBLE_DEVICES=0",
                "PMI_FD=9",
                "none",
            ]
            .map(text)
            .into(),
            directory: text("/"),
            umask: 0,
            has_pmi: true,
            pmix: None,
            binds: false,
            input: Input::None,
            traces: false,
            sets_torch: false,
            holds: false,
            strace: None,
        };
        let own = [("TMPDIR", "/host"), ("B", "own")];
        let own = own.map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()));
        let all = of_rank(&load, own.clone(), &Numbers { rank: 5, local: 0 }, Some(3));
        let value = |name: &str| {
            all.get(name.as_bytes())
                .map(|value| String::from_utf8_lossy(value))
        };
        assert_eq!(value("A").unwrap(), "b=c");
        assert_eq!(value("TMPDIR").unwrap(), "/host");
        assert_eq!((value("CUDA_VISIBLE_DEVICES"), value("B")), (None, None));
        assert_eq!(value("PMI_FD").unwrap(), "3");
        assert_eq!(value("PMI_RANK").unwrap(), "5");
        assert_eq!(value("PMC_LAUNCH_SIZE").unwrap(), "6");
        let silent = of_rank(&load, own.clone(), &Numbers { rank: 5, local: 0 }, None);
        assert!(!silent.contains_key(&b"PMI_FD"[..]) && !silent.contains_key(&b"RANK"[..]));
        load.sets_torch = true;
        let torch = of_rank(&load, own, &Numbers { rank: 5, local: 0 }, None);
        let names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];
        let values = names.map(|name| String::from_utf8_lossy(&torch[name.as_bytes()]).into_owned());
        assert_eq!(values, ["5", "6", "0", "1"]);
    }
}
