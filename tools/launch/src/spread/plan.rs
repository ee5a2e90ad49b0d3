//! Which host gets what from whom.

use std::collections::{BTreeMap, BTreeSet};

use super::messages::{Needs, Source};

/// What is known of a host.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostState {
    /// Numbers of its programs.
    pub(crate) programs: Vec<u32>,
    /// Numbers of the files that it lacks.
    pub(crate) missing: Vec<u32>,
    pub(crate) has_room: bool,
}

/// What is to be done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Programs for which some host has no room: no host gets them.
    pub(crate) instead: BTreeSet<u32>,
    /// By host.
    pub(crate) sources: Vec<Vec<Source>>,
}

/// Places above one in a binary tree: the nearest first, the root last.
fn above(place: usize) -> impl Iterator<Item = usize> {
    let parent = |place: &usize| place.checked_sub(1).map(|before| before / 2);
    std::iter::successors(parent(&place), parent)
}

/// Makes the plan. The number of a program is its place in `needs`.
pub(crate) fn plan(hosts: &[HostState], needs: &[Needs]) -> Plan {
    let lacking = hosts.iter().filter(|host| !host.has_room);
    let instead: BTreeSet<u32> = lacking.flat_map(|host| host.programs.clone()).collect();
    let mut members: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (number, host) in (0..).zip(hosts) {
        let sent = host.programs.iter().filter(|program| !instead.contains(program));
        let sent = sent.filter_map(|program| needs.get(*program as usize));
        let files: BTreeSet<u32> = sent
            .flat_map(|needs| needs.parts.iter().map(|part| part.file))
            .collect();
        for file in files.iter().filter(|file| host.missing.contains(file)) {
            members.entry(*file).or_default().push(number);
        }
    }
    let mut sources: Vec<Vec<Source>> = vec![Vec::new(); hosts.len()];
    for (file, members) in members {
        for (place, host) in members.iter().enumerate() {
            let givers = above(place).filter_map(|giver| members.get(giver).copied());
            if let Some(sources) = sources.get_mut(*host as usize) {
                sources.push(Source {
                    file,
                    givers: givers.collect(),
                });
            }
        }
    }
    Plan { instead, sources }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::messages::{Kind, Part, RawPath};
    use super::*;

    fn needs(files: &[Vec<u32>]) -> Vec<Needs> {
        let part = |file: &u32| Part {
            kind: Kind::Library,
            name: RawPath(file.to_string().into_bytes()),
            file: *file,
        };
        let needs = |(program, files): (u32, &Vec<u32>)| Needs {
            program,
            parts: files.iter().map(part).collect(),
        };
        (0..).zip(files).map(needs).collect()
    }

    fn host(programs: &[u32], missing: &[u32], has_room: bool) -> HostState {
        HostState {
            programs: programs.to_vec(),
            missing: missing.to_vec(),
            has_room,
        }
    }

    #[test]
    fn a_file_goes_down_a_binary_tree() {
        let hosts = vec![host(&[0], &[0], true); 7];
        let plan = plan(&hosts, &needs(&[vec![0]]));
        let givers: Vec<&[u32]> = plan.sources.iter().map(|own| &*own[0].givers).collect();
        assert_eq!(givers, [&[][..], &[0], &[0], &[1, 0], &[1, 0], &[2, 0], &[2, 0]]);
    }

    #[test]
    fn one_host_without_room_keeps_a_program_from_all_but_no_other_program() {
        let hosts = [
            host(&[0, 1], &[0, 1, 2], true),
            host(&[0], &[0, 2], false),
            host(&[1], &[1, 2], true),
        ];
        let plan = plan(&hosts, &needs(&[vec![0, 2], vec![1, 2]]));
        assert_eq!(plan.instead, [0].into());
        let files: Vec<Vec<u32>> = plan
            .sources
            .iter()
            .map(|own| own.iter().map(|source| source.file).collect())
            .collect();
        assert_eq!(files, [vec![1, 2], vec![], vec![1, 2]]);
    }

    /// Some numbers below a limit.
    fn numbers(limit: u32, count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u32>> {
        prop::collection::vec(0..limit, count)
    }

    proptest! {
        #[test]
        fn who_gives_a_file_gets_it_before(
            hosts in prop::collection::vec(
                (numbers(3, 1..3), numbers(6, 0..6), prop::bool::weighted(0.9)),
                1..40,
            ),
            files in prop::collection::vec(numbers(6, 1..4), 3),
        ) {
            let hosts: Vec<HostState> = hosts.iter().map(|(p, m, room)| host(p, m, *room)).collect();
            let needs = needs(&files);
            let plan = plan(&hosts, &needs);
            for (number, own) in (0_u32..).zip(&plan.sources) {
                let host = &hosts[number as usize];
                for source in own {
                    prop_assert!(host.missing.contains(&source.file));
                    let is_sent = |program: &u32| {
                        !plan.instead.contains(program) && files[*program as usize].contains(&source.file)
                    };
                    prop_assert!(host.programs.iter().any(is_sent));
                    // So there is no circle, and the tree is flat.
                    prop_assert!(source.givers.iter().all(|giver| *giver < number));
                    prop_assert!(source.givers.len() <= 6);
                    for giver in &source.givers {
                        let given = &plan.sources[*giver as usize];
                        prop_assert!(given.iter().any(|known| known.file == source.file));
                    }
                }
                // What is missing comes, or is not sent at all.
                for program in host.programs.iter().filter(|program| !plan.instead.contains(program)) {
                    prop_assert!(host.has_room);
                    for file in files[*program as usize].iter().filter(|file| host.missing.contains(file)) {
                        prop_assert!(own.iter().any(|source| source.file == *file));
                    }
                }
            }
            for (file, _) in (0_u32..6).zip(0..) {
                let children = |giver: u32| plan.sources.iter().flatten()
                    .filter(|source| source.file == file && source.givers.first() == Some(&giver)).count();
                prop_assert!((0..hosts.len() as u32).all(|giver| children(giver) <= 2));
            }
        }
    }
}
