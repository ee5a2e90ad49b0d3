//! Finds circles of imports in a crate.
//!
//! A *unit* of a folder is a folder directly below it, with the file of the same name, or a single file
//! there. Units of one folder may import each other in one direction only. The file of the folder itself,
//! `mod.rs` or the file of the same name, is none of its units: it declares them, and may hold what they
//! share.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context as _, Result};
use regex::Regex;
use walkdir::WalkDir;

/// A module, by the names on the way to it from the root of the crate.
type Module = Vec<String>;

/// Names that a module imports from others for those who import it.
type Exports = BTreeMap<(Module, String), Module>;

static START: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\b(?:crate|super|self)::").expect("a valid pattern"));
static EXPORT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m)^pub(?:\([a-z ]+\))? use ").expect("a valid pattern"));

/// Units of one folder that import each other in a circle.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Knot {
    /// The folder, below `src`.
    pub folder: String,
    /// Names of the units.
    pub units: Vec<String>,
    /// Imports between them: unit, unit that it imports, file.
    pub imports: Vec<(String, String, String)>,
}

/// Returns the circles in all folders of the crate whose sources are in `src`, the root included.
///
/// # Errors
/// A file cannot be read.
pub fn knots(src: &Path) -> Result<Vec<Knot>> {
    let mut files: BTreeMap<Module, (String, String)> = BTreeMap::new();
    for entry in WalkDir::new(src).sort_by_file_name() {
        let entry = entry?;
        let name = entry.path().strip_prefix(src)?.to_string_lossy().into_owned();
        let Some(stem) = name.strip_suffix(".rs") else {
            continue;
        };
        // Programs are crates of their own.
        if stem.starts_with("bin/") || stem == "main" || stem.ends_with("tests") || stem.contains("tests/") {
            continue;
        }
        let text = fs::read_to_string(entry.path()).with_context(|| name.clone())?;
        let module = stem.strip_suffix("/mod").unwrap_or(stem);
        let module = match module {
            "lib" => Module::new(),
            module => module.split('/').map(str::to_owned).collect(),
        };
        files.insert(module, (name.clone(), code(&text)));
    }
    let known: BTreeSet<&Module> = files.keys().collect();
    let mut exports = Exports::new();
    for (module, (_, text)) in &files {
        for found in EXPORT.find_iter(text) {
            for path in paths(&text[found.end()..]) {
                // `use child::Name` is the same as `use self::child::Name`.
                let from = resolve(module, &path, &known, &exports);
                if let (Some(name), true) = (path.last(), from != *module) {
                    exports.insert((module.clone(), name.clone()), from);
                }
            }
        }
    }
    let mut imports: BTreeMap<String, BTreeMap<String, BTreeMap<String, String>>> = BTreeMap::new();
    for (module, (name, text)) in &files {
        for found in START.find_iter(text) {
            for path in paths(&text[found.start()..]) {
                let target = resolve(module, &path, &known, &exports);
                let same = module.iter().zip(&target).take_while(|(a, b)| a == b).count();
                if let (Some(from), Some(to)) = (module.get(same), target.get(same)) {
                    let folder = imports.entry(module[..same].join("/")).or_default();
                    let targets = folder.entry(from.clone()).or_default();
                    targets.entry(to.clone()).or_insert_with(|| name.clone());
                }
            }
        }
    }
    Ok(imports
        .iter()
        .flat_map(|(folder, imports)| knots_of(folder, imports))
        .collect())
}

/// Returns the sets of units that reach each other.
fn knots_of(folder: &str, imports: &BTreeMap<String, BTreeMap<String, String>>) -> Vec<Knot> {
    let reached: BTreeMap<&String, BTreeSet<&String>> = imports
        .keys()
        .map(|unit| (unit, reached(unit, imports)))
        .collect();
    let mut knots = Vec::new();
    let mut done = BTreeSet::new();
    for (unit, others) in &reached {
        let is_back = |other: &&&String| reached.get(**other).is_some_and(|back| back.contains(unit));
        let units: Vec<String> = others
            .iter()
            .filter(is_back)
            .map(|unit| (*unit).clone())
            .collect();
        if units.len() < 2 || !done.insert(units.clone()) {
            continue;
        }
        let inside = imports.iter().filter(|(from, _)| units.contains(from));
        let inside = inside.flat_map(|(from, targets)| {
            let targets = targets.iter().filter(|(to, _)| units.contains(to));
            targets.map(|(to, file)| (from.clone(), to.clone(), file.clone()))
        });
        knots.push(Knot {
            folder: folder.to_owned(),
            imports: inside.collect(),
            units,
        });
    }
    knots
}

/// Returns the units that a unit imports, directly or through others.
fn reached<'i>(
    unit: &'i String,
    imports: &'i BTreeMap<String, BTreeMap<String, String>>,
) -> BTreeSet<&'i String> {
    let mut reached = BTreeSet::new();
    let mut next = vec![unit];
    while let Some(unit) = next.pop() {
        let new = imports.get(unit).into_iter().flatten();
        next.extend(new.map(|(to, _)| to).filter(|to| reached.insert(*to)));
    }
    reached
}

/// Returns the module that a path in a module leads to.
fn resolve(module: &Module, path: &[String], known: &BTreeSet<&Module>, exports: &Exports) -> Module {
    let mut at = module.clone();
    for (n, name) in path.iter().enumerate() {
        match name.as_str() {
            "crate" if n == 0 => at.clear(),
            "self" => {}
            "super" => {
                at.pop();
            }
            name => {
                let mut child = at.clone();
                child.push(name.to_owned());
                if known.contains(&child) {
                    at = child;
                } else {
                    return exports.get(&(at.clone(), name.to_owned())).cloned().unwrap_or(at);
                }
            }
        }
    }
    at
}

/// Returns the text without comments and tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Returns the paths that begin with a text: one, or several if it has groups in braces.
fn paths(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    read_path(text, &mut Vec::new(), &mut found);
    found
}

/// Reads one path or group, and returns what follows it.
fn read_path<'t>(text: &'t str, before: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> &'t str {
    let depth = before.len();
    let mut rest = text.trim_start();
    loop {
        if let Some(mut group) = rest.strip_prefix('{') {
            loop {
                group = read_path(group, before, found).trim_start();
                match group.strip_prefix(',') {
                    Some(after) => group = after,
                    None => break,
                }
            }
            rest = group.strip_prefix('}').unwrap_or(group);
            break;
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
        if name.is_empty() {
            rest = rest.strip_prefix('*').unwrap_or(rest);
            break;
        }
        before.push(name.to_owned());
        rest = after;
        match after.strip_prefix("::") {
            Some(after) => rest = after,
            None => {
                found.push(before.clone());
                if let Some(alias) = rest.strip_prefix(" as ") {
                    let end = alias.find(|c: char| !c.is_alphanumeric() && c != '_');
                    rest = &alias[end.unwrap_or(alias.len())..];
                }
                break;
            }
        }
    }
    before.truncate(depth);
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_groups_are_read() {
        let read = |text: &str| -> Vec<String> { paths(text).iter().map(|path| path.join("::")).collect() };
        assert_eq!(read("super::a::f(x)"), ["super::a::f"]);
        assert_eq!(
            read("crate::a::{self, b::{C, d::E}, f as g, h};\nuse x::y"),
            [
                "crate::a::self",
                "crate::a::b::C",
                "crate::a::b::d::E",
                "crate::a::f",
                "crate::a::h"
            ]
        );
    }

    #[test]
    fn circles_of_files_inside_a_folder_are_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, text).expect("a file");
        };
        put("lib.rs", "mod f;\n");
        put(
            "f/mod.rs",
            "mod a;\nmod b;\nmod c;\npub(crate) use b::{B};\nuse a::A;\n",
        );
        put(
            "f/a.rs",
            "use super::B;\n#[cfg(test)]\nmod tests { use super::super::c::C; }\n",
        );
        put("f/b.rs", "fn x() { super::c::y() }\n// super::a\n");
        put("f/c.rs", "use super::D;\n");
        assert_eq!(knots(dir.path()).expect("readable"), []);
        put("f/c.rs", "use crate::f::{D, a};\n");
        let knots = knots(dir.path()).expect("readable");
        assert_eq!(knots.len(), 1);
        assert_eq!(
            (knots[0].folder.as_str(), &*knots[0].units),
            ("f", ["a", "b", "c"].map(String::from).as_slice())
        );
        assert_eq!(knots[0].imports[0], ("a".into(), "b".into(), "f/a.rs".into()));
    }
}
