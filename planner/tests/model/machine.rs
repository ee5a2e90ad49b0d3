//! Executes a plan on simulated file systems: a file is an entry of a map.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proptest::prelude::*;

use crate::common::Plan;
use crate::recipe::Recipe;

/// Maximum jobs that run at the same time.
const MAX_RUNNING: usize = 5;

/// Content of a file: `None` while it is being written.
type Content = Option<u64>;

pub struct Machine<'a> {
    recipe: &'a Recipe,
    plan: &'a Plan,
    tasks: Vec<String>,
    /// Jobs of the workflow that each task runs, in order.
    jobs: Vec<Vec<usize>>,
    children: Vec<Vec<usize>>,
    waiting: Vec<usize>,
    /// Names of sites and their work directories.
    scratch: BTreeMap<&'static str, String>,
    storage: String,
    files: BTreeMap<String, Content>,
    directories: BTreeSet<String>,
    sizes: BTreeMap<String, u64>,
    /// Files of work directories that do not count: links and files that existed before the run.
    weightless: BTreeSet<String>,
    /// Names of files that existed before the run.
    placed: BTreeSet<String>,
    /// Number of failures of each task.
    failures: Vec<u32>,
    peaks: BTreeMap<&'static str, u64>,
}

/// Effects of a task on the file systems.
#[derive(Default)]
struct Effects {
    reads: Vec<String>,
    /// Path, and the source if it is a copy.
    writes: Vec<(String, Option<String>)>,
    links: Vec<String>,
    makes: Vec<String>,
    removes: Vec<String>,
    removes_all: Vec<String>,
}

fn path(url: &str) -> String {
    let path = url
        .strip_prefix("file://")
        .or_else(|| url.strip_prefix("symlink://"));
    path.unwrap_or(url).replace("/./", "/")
}

/// Maximum failures of a task.
const MAX_FAILURES: u32 = 2;
/// Content of a file that a failed task wrote.
const GARBAGE: Content = Some(0xdead);

/// Jobs of the workflow that a task runs, in a possible order.
fn jobs_of(plan: &Plan, task: &str) -> Vec<usize> {
    if let Some(number) = task.strip_prefix("work_J") {
        return vec![number.parse().expect("a number")];
    }
    if !task.starts_with("merge_") {
        return Vec::new();
    }
    let list = plan.file(&format!("00/00/{task}.in"));
    let number = |word: &str| -> usize { word.parse().expect("a number") };
    let jobs: Vec<usize> = list
        .lines()
        .filter(|line| line.starts_with("#@"))
        .filter_map(|line| line.split(' ').nth(3)?.strip_prefix('J').map(number))
        .collect();
    if !list.lines().any(|line| line.starts_with("TASK ")) {
        return jobs;
    }
    // A DAG may run in any order that its edges allow: prefer the last job.
    let mut edges: Vec<(usize, usize)> = list
        .lines()
        .filter_map(|line| line.strip_prefix("EDGE work_J")?.split_once(" work_J"))
        .map(|(parent, child)| (number(parent), number(child)))
        .collect();
    let (mut remaining, mut order) = (jobs, Vec::new());
    while let Some(at) = remaining
        .iter()
        .rposition(|job| edges.iter().all(|(_, child)| child != job))
    {
        let job = remaining.remove(at);
        edges.retain(|(parent, _)| *parent != job);
        order.push(job);
    }
    assert!(remaining.is_empty(), "{task} has a cycle");
    order
}

impl<'a> Machine<'a> {
    /// `is_moved`: the plan stages files. Otherwise its raw inputs are in the work directories.
    pub fn new(recipe: &'a Recipe, plan: &'a Plan, base: &Path, is_moved: bool) -> Self {
        let tasks = plan.tasks();
        let number: BTreeMap<&str, usize> = tasks.iter().enumerate().map(|(n, t)| (t.as_str(), n)).collect();
        let mut children = vec![Vec::new(); tasks.len()];
        let mut waiting = vec![0; tasks.len()];
        for (parent, child) in &plan.edges {
            children[number[parent.as_str()]].push(number[child.as_str()]);
            waiting[number[child.as_str()]] += 1;
        }
        let base = base.display().to_string();
        let run = plan
            .planned
            .submit_dir
            .file_name()
            .expect("a name")
            .to_string_lossy();
        let scratch = |name: &str| format!("{base}/{name}/tester/pegasus/random/{run}");
        let contents = recipe.contents();
        let raw = contents
            .iter()
            .filter(|(name, _)| name.starts_with("raw"))
            .map(|(name, content)| (format!("/data/{name}"), Some(*content)));
        let known = recipe
            .known()
            .into_iter()
            .map(|name| (format!("/store/{name}"), Some(contents[&name])));
        let jobs: Vec<Vec<usize>> = tasks.iter().map(|task| jobs_of(plan, task)).collect();
        let scratch: BTreeMap<&str, String> = [("local", scratch("scratch")), ("far", scratch("far"))].into();
        let mut files: BTreeMap<String, Content> = raw.chain(known).collect();
        let is_made = |name: &str| {
            let mut made = jobs.iter().flatten();
            made.any(|&n| (0..recipe.jobs[n].outputs.len()).any(|k| name == format!("f{n}_{k}")))
        };
        let mut placed = BTreeSet::new();
        let mut weightless = BTreeSet::new();
        for (name, content) in contents.iter().filter(|(name, _)| !is_moved && !is_made(name)) {
            placed.insert(name.clone());
            for directory in scratch.values() {
                weightless.insert(format!("{directory}/{name}"));
                files.insert(format!("{directory}/{name}"), Some(*content));
            }
        }
        Machine {
            recipe,
            plan,
            jobs,
            children,
            waiting,
            scratch,
            storage: format!("{base}/out"),
            files,
            weightless,
            placed,
            failures: vec![0; tasks.len()],
            directories: BTreeSet::new(),
            sizes: recipe.sizes(),
            peaks: BTreeMap::new(),
            tasks,
        }
    }

    fn effects(&self, number: usize) -> Effects {
        let mut effects = Effects::default();
        let task = self.tasks[number].as_str();
        for &n in &self.jobs[number] {
            let job = &self.recipe.jobs[n];
            let directory = &self.scratch[if job.far { "far" } else { "local" }];
            let reads = job.reads.iter().map(|f| format!("{directory}/{f}"));
            // Outputs of an earlier job of the task exist.
            let new: Vec<String> = reads
                .filter(|file| effects.writes.iter().all(|(made, _)| made != file))
                .collect();
            effects.reads.extend(new);
            let writes = (0..job.outputs.len()).map(|k| (format!("{directory}/f{n}_{k}"), None));
            effects.writes.extend(writes);
        }
        if !self.jobs[number].is_empty() {
            return effects;
        }
        if task.starts_with("register") {
            let text = self.plan.file(&format!("00/00/{task}.in"));
            let url = |line: &str| line.split(' ').nth(1).map(path);
            // An output that is registered without being staged out is registered in the work directory,
            // which is removed.
            let urls = text.lines().filter_map(url);
            effects.reads = urls.filter(|file| file.starts_with(&self.storage)).collect();
            return effects;
        }
        if task.starts_with("pegasus_concat") || task.starts_with("noop") {
            return effects;
        }
        for order in self.plan.orders(task).as_array().expect("a list") {
            let target = || path(order["target"]["url"].as_str().expect("a URL"));
            match order["type"].as_str() {
                Some("mkdir") => effects.makes.push(target()),
                Some("remove") if order["target"]["recursive"] == "True" => {
                    effects.removes_all.push(target())
                }
                Some("remove") => effects.removes.push(target()),
                _ => {
                    let url = |end: &str| path(order[end][0]["url"].as_str().expect("a URL"));
                    effects.reads.push(url("src_urls"));
                    let destination = order["dest_urls"][0]["url"].as_str();
                    if destination.is_some_and(|url| url.starts_with("symlink://")) {
                        effects.links.push(url("dest_urls"));
                    }
                    effects.writes.push((url("dest_urls"), Some(url("src_urls"))));
                }
            }
        }
        effects
    }

    /// Runs all tasks. The turns choose the task that starts, ends or fails next. When no task can run,
    /// failed tasks run again.
    pub fn run(&mut self, mut turns: impl Iterator<Item = u16>, fails: bool) -> Result<(), TestCaseError> {
        let mut ready: Vec<usize> = (0..self.tasks.len()).filter(|&t| self.waiting[t] == 0).collect();
        let mut running: Vec<(usize, Effects)> = Vec::new();
        let mut failed: Vec<usize> = Vec::new();
        let mut ended = 0;
        loop {
            if ready.is_empty() && running.is_empty() {
                if failed.is_empty() {
                    break;
                }
                ready.append(&mut failed);
            }
            let turn = usize::from(turns.next().unwrap_or_default());
            let starts =
                running.is_empty() || (running.len() < MAX_RUNNING && !ready.is_empty() && turn % 3 != 0);
            if starts {
                let task = ready.swap_remove(turn / 3 % ready.len());
                let effects = self.effects(task);
                self.start(task, &effects)?;
                running.push((task, effects));
                continue;
            }
            let (task, effects) = running.swap_remove(turn / 3 % running.len());
            if fails && turn % 4 == 1 && self.failures[task] < MAX_FAILURES {
                self.fail(task, &effects, turn / 4);
                failed.push(task);
                continue;
            }
            self.end(task, &effects)?;
            ended += 1;
            for child in self.children[task].clone() {
                self.waiting[child] -= 1;
                if self.waiting[child] == 0 {
                    ready.push(child);
                }
            }
        }
        prop_assert_eq!(ended, self.tasks.len(), "not all tasks ran");
        Ok(())
    }

    /// Fails a task that has applied a part of its effects, chosen by `turn`.
    fn fail(&mut self, task: usize, effects: &Effects, turn: usize) {
        self.failures[task] += 1;
        for (k, (file, _)) in effects.writes.iter().enumerate() {
            if (turn >> (k % 8)) & 1 == 0 {
                self.files.remove(file);
            } else {
                self.files.insert(file.clone(), GARBAGE);
            }
        }
        let part = |all: usize| turn % (all + 1);
        for file in &effects.removes[..part(effects.removes.len())] {
            self.files.remove(file);
        }
        self.directories
            .extend(effects.makes[..part(effects.makes.len())].iter().cloned());
        for directory in &effects.removes_all {
            let below = format!("{directory}/");
            let mut kept = turn;
            self.files.retain(|file, _| {
                kept += usize::from(file.starts_with(&below));
                !file.starts_with(&below) || kept.is_multiple_of(2)
            });
        }
    }

    fn has_directory(&self, file: &str) -> bool {
        self.scratch
            .values()
            .filter(|directory| file.starts_with(&format!("{directory}/")))
            .all(|directory| self.directories.contains(directory))
    }

    fn start(&mut self, task: usize, effects: &Effects) -> Result<(), TestCaseError> {
        let name = &self.tasks[task];
        for file in &effects.reads {
            let content = self.files.get(file);
            prop_assert!(
                matches!(content, Some(Some(_))),
                "{name} reads {file}: {content:?}"
            );
        }
        for (file, _) in &effects.writes {
            prop_assert!(self.has_directory(file), "{name} writes {file} nowhere");
            let before = self.files.insert(file.clone(), None);
            prop_assert!(
                before.is_none() || self.failures[task] > 0,
                "{name} writes {file} again"
            );
        }
        self.weightless.extend(effects.links.iter().cloned());
        for (&site, directory) in &self.scratch {
            let held = self
                .files
                .keys()
                .filter(|file| !self.weightless.contains(*file))
                .filter_map(|file| file.strip_prefix(directory.as_str())?.strip_prefix('/'))
                .map(|name| self.sizes[name])
                .sum::<u64>();
            let peak = self.peaks.entry(site).or_default();
            *peak = held.max(*peak);
        }
        Ok(())
    }

    fn end(&mut self, task: usize, effects: &Effects) -> Result<(), TestCaseError> {
        let name = &self.tasks[task];
        for file in &effects.reads {
            if !matches!(self.files.get(file), Some(Some(_))) {
                return Err(TestCaseError::fail(format!("{file} went while {name} read it")));
            }
        }
        let mut made: BTreeMap<String, Content> = BTreeMap::new();
        for &n in &self.jobs[task] {
            let job = &self.recipe.jobs[n];
            let directory = &self.scratch[if job.far { "far" } else { "local" }];
            let mut read = BTreeMap::new();
            for short in &job.reads {
                let file = format!("{directory}/{short}");
                let content = made.get(&file).or_else(|| self.files.get(&file));
                let Some(&Some(content)) = content else {
                    return Err(TestCaseError::fail(format!(
                        "{file} is not there for J{n} of {name}"
                    )));
                };
                read.insert(short.clone(), content);
            }
            for k in 0..job.outputs.len() {
                made.insert(format!("{directory}/f{n}_{k}"), Some(Recipe::made(n, k, &read)));
            }
        }
        for (file, copied) in &effects.writes {
            let content = match copied {
                Some(source) => self.files[source],
                None => made.get(file).copied().flatten(),
            };
            let before = self.files.insert(file.clone(), content);
            prop_assert_eq!(before, Some(None), "{} went while {} wrote it", file, name);
        }
        for directory in &effects.makes {
            self.directories.insert(directory.clone());
        }
        for file in &effects.removes {
            let before = self.files.remove(file);
            prop_assert!(
                matches!(before, Some(Some(_))) || self.failures[task] > 0,
                "{name} removes {file}: {before:?}"
            );
        }
        for directory in &effects.removes_all {
            prop_assert!(self.directories.remove(directory), "{name} removes no directory");
            self.files
                .retain(|file, _| !file.starts_with(&format!("{directory}/")));
        }
        Ok(())
    }

    pub fn peaks(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.peaks.iter().map(|(&site, &peak)| (site, peak))
    }

    /// Compares the remaining files with the outputs of the abstract workflow.
    pub fn compare_outputs(&self, delivered: bool, cleanup: &str) -> Result<(), TestCaseError> {
        let contents = self.recipe.contents();
        let below = |directory: &str| -> BTreeMap<String, u64> {
            self.files
                .iter()
                .filter_map(|(file, content)| {
                    let name = file.strip_prefix(directory)?.strip_prefix('/')?;
                    Some((name.to_owned(), (*content)?))
                })
                .collect()
        };
        let expected: BTreeMap<String, u64> = self
            .recipe
            .outputs()
            .filter(|(_, output)| output.wanted)
            .map(|(name, _)| (name.clone(), contents[&name]))
            .collect();
        let remaining: BTreeMap<String, u64> = self.scratch.values().flat_map(|d| below(d)).collect();
        if delivered {
            prop_assert_eq!(below(&self.storage), expected);
            prop_assert!(
                cleanup == "none" || remaining.is_empty(),
                "remaining: {remaining:?}"
            );
            return Ok(());
        }
        for (name, content) in &expected {
            let job: usize = name[1..]
                .split('_')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or_default();
            let runs = self.jobs.iter().any(|jobs| jobs.contains(&job));
            prop_assert!(
                !runs || remaining.get(name) == Some(content),
                "{name} is lost: {remaining:?}"
            );
            let stored = self.files.get(&format!("/store/{name}"));
            prop_assert!(runs || stored == Some(&Some(*content)), "{name} is nowhere");
        }
        if matches!(cleanup, "inplace" | "constraint") {
            for name in remaining.keys() {
                prop_assert!(
                    expected.contains_key(name) || self.placed.contains(name),
                    "{name} remains"
                );
            }
        }
        Ok(())
    }
}
