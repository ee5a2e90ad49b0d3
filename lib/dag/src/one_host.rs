//! Tasks over several hosts where there is only one.

use rustc_hash::FxHashMap;

use crate::dag::Dag;
use crate::gang::{Gang, GangId, Layout};

impl Dag {
    /// Puts all ranks of each task that may have several hosts on one host with this number of CPUs, whatever
    /// hosts it names. If they request more CPUs than that, they get the whole host and share its CPUs.
    /// Linear in the number of sets of options.
    pub fn gather_on_one_host(&mut self, cpus: u32) {
        let mut gathered = Vec::new();
        let mut known: FxHashMap<(GangId, bool), GangId> = FxHashMap::default();
        for set in &mut self.options {
            let Some(rare) = set.rare.as_mut() else { continue };
            let Some(gang) = rare
                .gang_id
                .and_then(|id| Some((id, self.gangs.get(id.index())?)))
            else {
                continue;
            };
            let (id, gang) = gang;
            let ranks = gang.layout.ranks();
            let each = cpus / ranks.max(1);
            let shares = set.cpus > each;
            set.cpus = set.cpus.min(each);
            // There are at most twice as many as before.
            let next = GangId(gathered.len() as u32);
            let new = *known.entry((id, shares)).or_insert(next);
            if new == next {
                gathered.push(Gang {
                    layout: Layout::Spread { nodes: 1, ranks },
                    exclusive: gang.exclusive || shares,
                    on: Vec::new(),
                });
            }
            rare.gang_id = Some(new);
        }
        self.gangs = gathered;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;

    #[test]
    fn all_ranks_are_on_one_host_and_share_its_cpus_if_there_are_too_few() {
        let text = "TASK a -c 2 -m 10 -N 2 --on n[1-2] /bin/true\n\
                    TASK b -m 10 -N 2 --ranks-per-node 4 /bin/true\n\
                    TASK c --ranks 8 -g 1 /bin/true\n\
                    TASK d -c 8 /bin/true\n\
                    TASK e -c 1 -N 2 --on n[1-2] /bin/true\n";
        let mut dag = Dag::parse(text.as_bytes().to_vec()).unwrap();
        dag.gather_on_one_host(6);
        let seen = |name: &str| {
            let task = dag.find(name.as_bytes()).unwrap();
            let Request {
                cpus,
                memory_mb,
                gpus,
                ..
            } = dag.request(task);
            let gang = dag
                .gang(task)
                .map(|gang| (gang.layout, gang.exclusive, gang.on.len()));
            (cpus, memory_mb, gpus, gang)
        };
        let on_one = |ranks| Layout::Spread { nodes: 1, ranks };
        assert_eq!(seen("a"), (2, 10, 0, Some((on_one(2), false, 0))));
        assert_eq!(seen("b"), (0, 10, 0, Some((on_one(8), true, 0))));
        assert_eq!(seen("c"), (0, 0, 1, Some((on_one(8), true, 0))));
        assert_eq!(seen("d"), (8, 0, 0, None));
        assert_eq!(seen("e"), (1, 0, 0, Some((on_one(2), false, 0))));
    }
}
