//! Which rank runs which program, and on which host.

use crate::error::LaunchError;
use crate::loadfile::{Line, MAX_RANKS, Ranks};

/// A host that a launch may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) name: String,
    /// Ranks that it has room for.
    pub(crate) slots: u32,
}

/// What the command line says of ranks and hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) ranks: Option<u32>,
    pub(crate) nodes: Option<u32>,
    pub(crate) per_node: Option<u32>,
    /// Only these hosts; empty for any.
    pub(crate) on: Vec<String>,
}

/// A rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Number of its host.
    pub(crate) host: u32,
    /// Number of its line.
    pub(crate) program: u32,
    /// Its number among the ranks of the line.
    pub(crate) offset: u32,
}

/// All ranks of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct World {
    /// Hosts that have ranks.
    pub(crate) hosts: Vec<Host>,
    /// By rank.
    pub(crate) ranks: Vec<Place>,
    /// Program and arguments of each line.
    pub(crate) programs: Vec<Vec<Vec<u8>>>,
}

impl World {
    /// Spreads the ranks of these lines over hosts. A line of a command line has no number of its own.
    ///
    /// # Errors
    /// There is not enough room, or the lines contradict each other.
    pub(crate) fn new(
        hosts: &[Host],
        wanted: &Wanted,
        lines: Vec<Line>,
        is_file: bool,
    ) -> Result<Self, LaunchError> {
        let room = Room::new(hosts, wanted)?;
        let numbers = match is_file {
            true => numbers_of(&lines, wanted, &room)?,
            false => {
                let ranks = room.total(wanted)?;
                room.check(ranks.into(), "the program")?;
                (0..ranks).map(|offset| (0, offset)).collect()
            }
        };
        room.check(numbers.len() as u64, "the load file")?;
        room.place(hosts, &numbers, lines)
    }

    /// The ranks of a host, ascending.
    pub(crate) fn ranks_of(&self, host: u32) -> impl Iterator<Item = (u32, &Place)> {
        (0..)
            .zip(&self.ranks)
            .filter(move |(_, place)| place.host == host)
    }

    /// Which ranks share a host, in the words of PMI: `(vector,(FIRST HOST,HOSTS,RANKS OF EACH),…)`.
    pub(crate) fn mapping(&self) -> String {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for place in &self.ranks {
            match runs.last_mut() {
                Some((host, count)) if *host == place.host => *count += 1,
                _ => runs.push((place.host, 1)),
            }
        }
        let mut blocks: Vec<(u32, u32, u32)> = Vec::new();
        for (host, count) in runs {
            match blocks.last_mut() {
                Some((first, hosts, each)) if *each == count && *first + *hosts == host => *hosts += 1,
                _ => blocks.push((host, 1, count)),
            }
        }
        let blocks = blocks
            .iter()
            .map(|(first, hosts, each)| format!(",({first},{hosts},{each})"));
        format!("(vector{})", blocks.collect::<String>())
    }
}

/// The number of the host of each of `size` ranks, from what [`World::mapping`] returns. `None` if it is
/// something else.
pub(crate) fn hosts_of(mapping: &str, size: u32) -> Option<Vec<u32>> {
    let blocks = mapping.strip_prefix("(vector")?.strip_suffix(')')?;
    let mut hosts = Vec::new();
    for block in blocks.split(",(").skip(1) {
        let numbers = block.trim_end_matches(')').split(',').map(str::parse::<u32>);
        let numbers: Result<Vec<u32>, _> = numbers.collect();
        let Ok(&[first, count, each]) = numbers.as_deref() else {
            return None;
        };
        let room = (size as usize).checked_sub(hosts.len())?;
        if u64::from(count) * u64::from(each) > room as u64 {
            return None;
        }
        let end = first.checked_add(count)?;
        hosts.extend((first..end).flat_map(|host| (0..each).map(move |_| host)));
    }
    (hosts.len() == size as usize).then_some(hosts)
}

/// Room for ranks on the hosts that may be used.
struct Room {
    /// Number of the host, and its slots, in the order in which they are used.
    slots: Vec<(usize, u32)>,
}

impl Room {
    fn new(hosts: &[Host], wanted: &Wanted) -> Result<Self, LaunchError> {
        let mut slots = Vec::new();
        let named: Vec<usize> = match wanted.on.is_empty() {
            true => (0..hosts.len()).collect(),
            false => find_all(hosts, &wanted.on)?,
        };
        for number in named {
            let own = hosts.get(number).map_or(0, |host| host.slots);
            slots.push((number, wanted.per_node.map_or(own, |most| own.min(most))));
        }
        if let Some(nodes) = wanted.nodes {
            let nodes = nodes as usize;
            if nodes > slots.len() {
                return Err(LaunchError::TooManyNodes {
                    given: nodes,
                    there: slots.len(),
                });
            }
            slots.truncate(nodes);
        }
        let mut room = Self { slots };
        if let (Some(nodes), Some(ranks), None) = (wanted.nodes, wanted.ranks, wanted.per_node) {
            room.spread(nodes, ranks)?;
        }
        Ok(room)
    }

    /// Leaves each host only its share of the ranks.
    fn spread(&mut self, nodes: u32, ranks: u32) -> Result<(), LaunchError> {
        if ranks < nodes {
            return Err(LaunchError::EmptyNodes {
                nodes: nodes as usize,
                ranks: ranks.into(),
            });
        }
        for (number, (_, slots)) in (0..).zip(&mut self.slots) {
            let share = ranks / nodes + u32::from(number < ranks % nodes);
            *slots = share.min(*slots);
        }
        Ok(())
    }

    /// Checks that there is room for so many ranks.
    fn check(&self, given: u64, what: &str) -> Result<(), LaunchError> {
        let there = self.all();
        match given > there {
            true => Err(LaunchError::TooManyRanks {
                what: what.to_owned(),
                given,
                there,
                hosts: self.slots.len(),
            }),
            false => Ok(()),
        }
    }

    /// Checks the ranks of a load file, before anything is made of them.
    fn check_all(&self, given: u64) -> Result<(), LaunchError> {
        self.check(given, "the load file")?;
        match given > u64::from(MAX_RANKS) {
            true => Err(LaunchError::Usage(format!(
                "a launch has from 1 to {MAX_RANKS} ranks"
            ))),
            false => Ok(()),
        }
    }

    fn all(&self) -> u64 {
        self.slots.iter().map(|(_, slots)| u64::from(*slots)).sum()
    }

    /// Number of all ranks, if no load file says it.
    fn total(&self, wanted: &Wanted) -> Result<u32, LaunchError> {
        let has_room = self.slots.iter().all(|(_, slots)| *slots < u32::MAX);
        let default = match (wanted.nodes, wanted.per_node) {
            // Without a task, nothing says how many ranks a host has room for.
            (_, None) if !has_room => 1,
            _ => self.all(),
        };
        let ranks = wanted.ranks.map_or(default, u64::from);
        u32::try_from(ranks)
            .ok()
            .filter(|ranks| (1..=MAX_RANKS).contains(ranks))
            .ok_or_else(|| LaunchError::Usage(format!("a launch has from 1 to {MAX_RANKS} ranks")))
    }

    /// Gives each rank a host. `numbers` has the line of each rank, and its number there.
    fn place(
        mut self,
        hosts: &[Host],
        numbers: &[(u32, u32)],
        lines: Vec<Line>,
    ) -> Result<World, LaunchError> {
        let mut own: Vec<Vec<usize>> = Vec::with_capacity(lines.len());
        for line in &lines {
            own.push(find_all(hosts, &line.hosts)?);
        }
        let (mut next, mut chosen) = (0, Vec::with_capacity(numbers.len()));
        for (program, offset) in numbers {
            let listed = own.get(*program as usize).map_or(&[][..], Vec::as_slice);
            let host = match listed.is_empty() {
                true => {
                    while self.slots.get(next).is_some_and(|(_, slots)| *slots == 0) {
                        next += 1;
                    }
                    self.take(next)
                }
                // In turn.
                false => (0..listed.len()).find_map(|turn| {
                    let host = listed.get((*offset as usize + turn) % listed.len())?;
                    let at = self.slots.iter().position(|(number, _)| number == host)?;
                    self.take(at)
                }),
            };
            let host = host.ok_or_else(|| {
                LaunchError::Failed(format!("there is no room for the ranks of line {}", program + 1))
            })?;
            chosen.push((host, *program, *offset));
        }
        Ok(World::of(hosts, &chosen, lines))
    }

    fn take(&mut self, at: usize) -> Option<usize> {
        let (host, slots) = self.slots.get_mut(at)?;
        *slots = slots.checked_sub(1)?;
        Some(*host)
    }
}

impl World {
    /// Numbers the hosts that have ranks, in the order of these.
    fn of(hosts: &[Host], chosen: &[(usize, u32, u32)], lines: Vec<Line>) -> Self {
        let mut numbers: Vec<Option<u32>> = vec![None; hosts.len()];
        let mut used = Vec::new();
        let mut ranks = Vec::with_capacity(chosen.len());
        for (host, program, offset) in chosen {
            let (Some(number), Some(known)) = (numbers.get_mut(*host), hosts.get(*host)) else {
                continue;
            };
            let host = *number.get_or_insert_with(|| {
                used.push(known.clone());
                used.len() as u32 - 1
            });
            ranks.push(Place {
                host,
                program: *program,
                offset: *offset,
            });
        }
        Self {
            hosts: used,
            ranks,
            programs: lines.into_iter().map(|line| line.words).collect(),
        }
    }
}

/// Numbers of the hosts with these names.
fn find_all(hosts: &[Host], names: &[String]) -> Result<Vec<usize>, LaunchError> {
    let find = |name: &String| {
        let found = hosts.iter().position(|host| host.name == *name);
        found.ok_or_else(|| {
            let known: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
            LaunchError::UnknownHost(name.clone(), pmc_hosts::compress(&known))
        })
    };
    names.iter().map(find).collect()
}

/// The line of each rank, and its number there.
fn numbers_of(lines: &[Line], wanted: &Wanted, room: &Room) -> Result<Vec<(u32, u32)>, LaunchError> {
    let mut numbers = Vec::new();
    let is_numbered = lines.iter().any(|line| !matches!(line.ranks, Ranks::Number(_)));
    if !is_numbered {
        let counts = lines.iter().map(|line| match line.ranks {
            Ranks::Number(count) => u64::from(count),
            _ => 0,
        });
        room.check_all(counts.sum())?;
        for (program, line) in (0..).zip(lines) {
            if let Ranks::Number(count) = line.ranks {
                numbers.extend((0..count).map(|offset| (program, offset)));
            }
        }
        let given = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        return match wanted.ranks.filter(|ranks| *ranks != given) {
            Some(ranks) => Err(LaunchError::Usage(format!(
                "-n says {ranks} ranks, and the load file has {given}"
            ))),
            None => Ok(numbers),
        };
    }
    let named = lines.iter().filter_map(|line| match &line.ranks {
        Ranks::These(ranges) => ranges.iter().map(|range| u64::from(*range.end()) + 1).max(),
        _ => None,
    });
    let has_others = lines.iter().any(|line| line.ranks == Ranks::Others);
    let total = match wanted.ranks {
        Some(ranks) => u64::from(ranks),
        None if has_others => u64::from(room.total(wanted)?),
        None => named.max().unwrap_or(0),
    };
    room.check_all(total)?;
    let mut taken: Vec<Option<(u32, u32)>> = vec![None; usize::try_from(total).unwrap_or(0)];
    for (program, line) in (0..).zip(lines) {
        let Ranks::These(ranges) = &line.ranks else {
            continue;
        };
        for (rank, offset) in ranges.iter().cloned().flatten().zip(0..) {
            let place = taken.get_mut(rank as usize);
            let place = place.ok_or_else(|| {
                LaunchError::Usage(format!(
                    "the load file has a rank {rank}, and there are {total} ranks"
                ))
            })?;
            if place.replace((program, offset)).is_some() {
                return Err(LaunchError::Usage(format!(
                    "the load file has the rank {rank} twice"
                )));
            }
        }
    }
    let others = lines.iter().position(|line| line.ranks == Ranks::Others);
    let mut offset = 0;
    for (rank, place) in taken.iter_mut().enumerate() {
        if place.is_none() {
            let others = others
                .ok_or_else(|| LaunchError::Usage(format!("no line of the load file has the rank {rank}")))?;
            *place = Some((others as u32, offset));
            offset += 1;
        }
    }
    Ok(taken.into_iter().flatten().collect())
}

/// Replaces `%t` by the rank and `%o` by its number in the line, as `srun` does. `None` without either.
pub(crate) fn words_for(words: &[Vec<u8>], rank: u32, offset: u32) -> Option<Vec<Vec<u8>>> {
    let has_any = |word: &Vec<u8>| word.windows(2).any(|pair| pair == b"%t" || pair == b"%o");
    if !words.iter().any(has_any) {
        return None;
    }
    let replace = |word: &Vec<u8>| {
        let mut replaced = Vec::new();
        let mut rest = word.as_slice();
        while let Some((byte, others)) = rest.split_first() {
            match (byte, others.split_first()) {
                (b'%', Some((b't', after))) => {
                    replaced.extend_from_slice(rank.to_string().as_bytes());
                    rest = after;
                }
                (b'%', Some((b'o', after))) => {
                    replaced.extend_from_slice(offset.to_string().as_bytes());
                    rest = after;
                }
                _ => {
                    replaced.push(*byte);
                    rest = others;
                }
            }
        }
        replaced
    };
    Some(words.iter().map(replace).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::loadfile::parse;

    fn hosts(slots: &[u32]) -> Vec<Host> {
        let host = |(number, slots): (usize, &u32)| Host {
            name: format!("n{}", number + 1),
            slots: *slots,
        };
        slots.iter().enumerate().map(host).collect()
    }

    fn line() -> Vec<Line> {
        vec![Line {
            ranks: Ranks::Others,
            words: vec![b"a".to_vec()],
            hosts: Vec::new(),
        }]
    }

    fn each(slots: &[u32], wanted: &Wanted) -> Result<Vec<usize>, String> {
        let world = World::new(&hosts(slots), wanted, line(), false).map_err(|error| error.to_string())?;
        Ok((0..world.hosts.len())
            .map(|host| world.ranks_of(host as u32).count())
            .collect())
    }

    fn wanted(ranks: Option<u32>, nodes: Option<u32>, per_node: Option<u32>) -> Wanted {
        Wanted {
            ranks,
            nodes,
            per_node,
            on: Vec::new(),
        }
    }

    #[test]
    fn numbers_say_which_host_has_how_many_ranks() {
        assert_eq!(each(&[2, 2, 1], &wanted(None, None, None)), Ok(vec![2, 2, 1]));
        assert_eq!(each(&[4, 4, 4], &wanted(Some(6), None, None)), Ok(vec![4, 2]));
        assert_eq!(
            each(&[4, 4, 4], &wanted(Some(7), Some(3), None)),
            Ok(vec![3, 2, 2])
        );
        assert_eq!(each(&[4, 4, 4], &wanted(None, Some(2), Some(1))), Ok(vec![1, 1]));
        assert_eq!(each(&[u32::MAX], &wanted(None, None, None)), Ok(vec![1]));
        assert_eq!(each(&[u32::MAX], &wanted(Some(5), None, None)), Ok(vec![5]));
        let on = Wanted {
            on: vec!["n3".to_owned()],
            ..wanted(None, None, None)
        };
        assert_eq!(each(&[1, 1, 3], &on), Ok(vec![3]));
    }

    #[test]
    fn what_has_no_room_is_refused_with_both_numbers() {
        let refused = |slots: &[u32], wanted: &Wanted| each(slots, wanted).unwrap_err();
        assert_eq!(
            refused(&[2, 2], &wanted(Some(5), None, None)),
            "the program has 5 ranks, and the task has 4 on 2 hosts"
        );
        assert_eq!(
            refused(&[2, 2], &wanted(None, Some(3), None)),
            "it needs 3 nodes, and there are 2"
        );
        assert_eq!(
            refused(&[2, 2], &wanted(Some(1), Some(2), None)),
            "1 ranks are less than 2 nodes"
        );
        let on = Wanted {
            on: vec!["n9".to_owned()],
            ..wanted(None, None, None)
        };
        assert_eq!(refused(&[2, 2], &on), "n9 is no host of this task: it has n[1-2]");
    }

    fn of_file(slots: &[u32], text: &str, ranks: Option<u32>) -> Result<World, String> {
        let lines = parse(text.as_bytes()).unwrap();
        World::new(&hosts(slots), &wanted(ranks, None, None), lines, true).map_err(|error| error.to_string())
    }

    #[test]
    fn load_files_are_one_world() {
        let world = of_file(&[2, 2], "-sz 2 a\n-l n1 b", None);
        assert!(world.unwrap_err().contains("no room for the ranks of line 2"));
        let world = of_file(&[3, 2], "-l n[1-2] b\n-sz 2 a", None).unwrap();
        let places: Vec<(u32, u32)> = world
            .ranks
            .iter()
            .map(|place| (place.host, place.program))
            .collect();
        assert_eq!(places, [(0, 0), (1, 0), (0, 1), (0, 1)]);
        let world = of_file(&[2, 2], "1-2 a %t %o\n* b %o", None).unwrap();
        let programs: Vec<(u32, u32)> = world
            .ranks
            .iter()
            .map(|place| (place.program, place.offset))
            .collect();
        assert_eq!(programs, [(1, 0), (0, 0), (0, 1), (1, 1)]);
        let refused = |text: &str, ranks| of_file(&[4, 4], text, ranks).unwrap_err();
        assert_eq!(refused("0,0 a", None), "the load file has the rank 0 twice");
        assert_eq!(refused("1 a", None), "no line of the load file has the rank 0");
        assert_eq!(
            refused("0-3 a", Some(2)),
            "the load file has a rank 2, and there are 2 ranks"
        );
        assert_eq!(
            refused("-n 3 a", Some(2)),
            "-n says 2 ranks, and the load file has 3"
        );
        assert_eq!(
            refused("-n 9 a", None),
            "the load file has 9 ranks, and the task has 8 on 2 hosts"
        );
    }

    #[test]
    fn the_mapping_is_written_in_blocks() {
        let read_again = |world: &World| {
            let known: Vec<u32> = world.ranks.iter().map(|place| place.host).collect();
            assert_eq!(hosts_of(&world.mapping(), known.len() as u32), Some(known));
        };
        let mapping = |slots: &[u32]| {
            let world = World::new(&hosts(slots), &Wanted::default(), line(), false).unwrap();
            read_again(&world);
            world.mapping()
        };
        assert_eq!(mapping(&[2, 2, 2]), "(vector,(0,3,2))");
        assert_eq!(mapping(&[3, 2, 2]), "(vector,(0,1,3),(1,2,2))");
        let world = of_file(&[2, 2], "-l n[1-2] -sz 4 a", None).unwrap();
        assert_eq!(world.mapping(), "(vector,(0,2,1),(0,2,1))");
        read_again(&world);
        for other in [
            "",
            "(vector)",
            "(vector,(0,1))",
            "(vector,(0,1,x))",
            "(vector,(0,4294967295,4294967295))",
            "(vector,(4294967295,2,1))",
            "(vector,(0,1,1))",
        ] {
            assert_eq!(hosts_of(other, 2), None, "{other}");
        }
    }

    #[test]
    fn ranks_stand_in_words() {
        let words = |text: &str| vec![text.as_bytes().to_vec()];
        assert_eq!(words_for(&words("a%x"), 3, 1), None);
        assert_eq!(words_for(&words("%t-%o.%%t%"), 3, 1), Some(words("3-1.%3%")));
    }

    proptest! {
        #[test]
        fn no_host_has_more_ranks_than_room(
            slots in prop::collection::vec(0_u32..5, 1..6),
            ranks in prop::option::of(0_u32..12),
            nodes in prop::option::of(0_u32..7),
            per_node in prop::option::of(0_u32..4),
        ) {
            let all = hosts(&slots);
            if let Ok(world) = World::new(&all, &wanted(ranks, nodes, per_node), line(), false) {
                for (number, host) in (0..).zip(&world.hosts) {
                    let count = world.ranks_of(number).count() as u32;
                    prop_assert!(count > 0 && count <= host.slots.min(per_node.unwrap_or(u32::MAX)));
                }
                prop_assert!(ranks.is_none_or(|ranks| world.ranks.len() == ranks as usize));
                prop_assert!(nodes.is_none_or(|nodes| world.hosts.len() <= nodes as usize));
            }
        }
    }
}
