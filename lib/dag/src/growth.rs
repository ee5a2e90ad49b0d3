//! DAGs that get more tasks while they run, and the files in which they do.
//!
//! The first line of such a file says that each addition ends with a line of its own. What follows the last
//! of these lines was cut off while it was written, and no reader takes it: so an addition is in the file as
//! a whole, or not at all.

use rustc_hash::FxHashMap;

use crate::dag::{Dag, Growth};
use crate::gang::{Gang, GangId};
use crate::options::Options;
use crate::{TaskId, names};

/// First line of a DAG file that grows.
pub const FIRST_LINE: &str = "#+ Each addition to this file ends with the line \"#+ added\".\n";

/// Last line of an addition.
pub const LAST_LINE: &str = "#+ added\n";

/// Removes an addition that was cut off, if the first line says that there are any.
pub(crate) fn remove_torn_addition(text: &mut Vec<u8>) {
    if !text.starts_with(FIRST_LINE.as_bytes()) {
        return;
    }
    let last = LAST_LINE.as_bytes();
    let found = memchr::memmem::rfind_iter(text, last).find(|at| text[..*at].ends_with(b"\n"));
    text.truncate(found.map_or(FIRST_LINE.len(), |at| at + last.len()));
}

/// The options as the line of a task has them, without what the whole file adds.
fn as_written(options: &Options) -> Options {
    let mut options = Options {
        category: None,
        ..options.clone()
    };
    if let Some(rare) = &mut options.rare {
        rare.gang_id = None;
    }
    options
}

impl Dag {
    /// Length of the text of the file, without an addition that was cut off.
    #[must_use]
    pub fn text_len(&self) -> u64 {
        self.text.len() as u64
    }

    /// Adds the tasks of another DAG, and edges to them: pairs of parent and child, each pair once, with the
    /// numbers that they have here. The tasks get the next numbers, in their order. Edges, categories,
    /// sub-workflows and inputs of the other DAG do not count. The caller has made sure that the names are
    /// new, and that together there are fewer than 2³² − 1 tasks.
    ///
    /// Linear in what is added; the first time, also in the sets of options.
    pub fn append(&mut self, added: &Dag, edges: &[(TaskId, TaskId)]) {
        let start = self.text.len();
        self.text.extend_from_slice(&added.text);
        let sets: Vec<u32> = added
            .options
            .iter()
            .map(|set| self.intern(set, &added.gangs))
            .collect();
        for entry in &added.entries {
            let mut entry = *entry;
            entry.name += start;
            entry.options = sets[entry.options as usize];
            let task = TaskId(self.entries.len() as u32);
            self.names.insert(names::hash(entry.name(&self.text)), task);
            self.entries.push(entry);
            self.first_child.push(self.children.len() as u32);
            self.parent_counts.push(0);
        }
        for (parent, child) in edges {
            let earlier =
                self.first_child[parent.index()] as usize..self.first_child[parent.index() + 1] as usize;
            let growth = self.growth.get_or_insert_default();
            let children = growth.children.entry(*parent);
            let children = children.or_insert_with(|| self.children[earlier].to_vec());
            children.push(*child);
            growth.edges += 1;
            self.parent_counts[child.index()] += 1;
        }
    }

    /// Returns the number of a set of options of another DAG, which has these gangs.
    fn intern(&mut self, set: &Options, gangs: &[Gang]) -> u32 {
        if self.growth.is_none() {
            let known = self.options.iter().map(as_written).zip(0..);
            // Limits of categories may have made two sets of one.
            let mut known_sets = FxHashMap::default();
            for (set, number) in known {
                known_sets.entry(set).or_insert(number);
            }
            self.growth = Some(Box::new(Growth {
                known_sets,
                ..Growth::default()
            }));
        }
        let growth = self.growth.get_or_insert_default();
        let written = as_written(set);
        if let Some(known) = growth.known_sets.get(&written) {
            return *known;
        }
        let number = self.options.len() as u32;
        growth.known_sets.insert(written.clone(), number);
        let mut new = written;
        let gang = set
            .rare
            .as_ref()
            .and_then(|rare| gangs.get(rare.gang_id?.index()));
        if let (Some(rare), Some(gang)) = (&mut new.rare, gang) {
            let known = self.gangs.iter().position(|known| known == gang);
            let at = known.unwrap_or_else(|| {
                self.gangs.push(gang.clone());
                self.gangs.len() - 1
            });
            rare.gang_id = Some(GangId(at as u32));
        }
        self.options.push(new);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appends lines of tasks and edges, as the file that holds them would have them.
    fn append(dag: &mut Dag, tasks: &str, edges: &[(&str, &str)]) {
        let added = Dag::parse(tasks.into()).unwrap();
        let first = dag.len();
        let find = |name: &str| match added.find(name.as_bytes()) {
            Some(task) => TaskId(task.0 + first as u32),
            None => dag.find(name.as_bytes()).unwrap(),
        };
        let edges: Vec<_> = edges.iter().map(|(a, b)| (find(a), find(b))).collect();
        dag.append(&added, &edges);
    }

    fn lines(dag: &Dag) -> Vec<String> {
        let name = |task: TaskId| String::from_utf8_lossy(dag.name(task)).into_owned();
        dag.ids()
            .map(|id| {
                let children: Vec<_> = dag.children(id).iter().map(|child| name(*child)).collect();
                let found = dag.find(dag.name(id)) == Some(id);
                let (task, transformation) = (dag.task(id), dag.transformation(id));
                let (parents, gang) = (dag.parent_count(id), dag.gang(id));
                format!("{task:?} {transformation:?} {children:?} {parents} {gang:?} {found}")
            })
            .collect()
    }

    #[test]
    fn a_dag_that_has_grown_is_the_one_that_its_file_gives() {
        let first = "TASK a -c 2 /bin/true\nTASK b /bin/true\nEDGE a b\n";
        let second = "#@ 3 echo c \nTASK c -c 2 /bin/echo c\nTASK d -m 7 -N 2 /bin/true\n";
        let third = "TASK e -m 7 -N 2 /bin/true\nTASK f -c 3 /bin/true\n";
        let mut dag = Dag::parse(first.into()).unwrap();
        append(&mut dag, second, &[("a", "c"), ("c", "d"), ("b", "d")]);
        append(&mut dag, third, &[("a", "f"), ("c", "e")]);
        let edges = "EDGE a c\nEDGE c d\nEDGE b d\n";
        let text = format!("{first}{second}{edges}{third}EDGE a f\nEDGE c e\n");
        let read = Dag::parse(text.into()).unwrap();
        assert_eq!(lines(&dag), lines(&read));
        assert_eq!(dag.edge_count(), read.edge_count());
        assert_eq!(
            dag.option_sets().collect::<Vec<_>>(),
            read.option_sets().collect::<Vec<_>>()
        );
        assert_eq!(dag.gangs(), read.gangs());
    }

    #[test]
    fn an_addition_that_was_cut_off_is_not_read() {
        let whole =
            format!("{FIRST_LINE}TASK 1 /bin/true\n{LAST_LINE}TASK 2 /bin/echo '#+ added'\n{LAST_LINE}");
        let tasks = |text: &[u8]| Dag::parse(text.into()).unwrap().len();
        let first = whole.find("TASK 2").unwrap();
        for end in FIRST_LINE.len()..=whole.len() {
            let expected = match end {
                end if end == whole.len() => 2,
                end if end >= first => 1,
                _ => 0,
            };
            assert_eq!(tasks(&whole.as_bytes()[..end]), expected, "{end}");
        }
        assert_eq!(
            Dag::parse(whole.clone().into()).unwrap().text_len(),
            whole.len() as u64
        );
        // A file that announces nothing is taken as it is.
        assert_eq!(tasks(b"TASK 1 /bin/true\nTASK 2 /bin/true"), 2);
    }
}
