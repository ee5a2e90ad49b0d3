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

/// Imports between units, each with one file that has it.
pub type Imports = BTreeMap<String, BTreeMap<String, String>>;

static PATH: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\bcrate::(\{|[a-z_0-9]+)").expect("a valid pattern"));

/// Reads the imports between the units of the crate whose sources are in `src`.
///
/// # Errors
/// A file cannot be read.
pub fn read(src: &Path) -> Result<Imports> {
    let mut imports = Imports::new();
    for entry in WalkDir::new(src).sort_by_file_name() {
        let entry = entry?;
        if entry.path().extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let name = entry.path().strip_prefix(src)?.to_string_lossy().into_owned();
        let text = fs::read_to_string(entry.path()).with_context(|| name.clone())?;
        let unit = unit_of(&name);
        for target in targets(without_tests(&text)) {
            if target != unit && is_unit(src, &target) {
                imports
                    .entry(unit.clone())
                    .or_default()
                    .entry(target)
                    .or_insert_with(|| name.clone());
            }
        }
    }
    // The root declares the units; it does not count.
    for root in ["lib", "main"] {
        imports.remove(root);
    }
    Ok(imports)
}

/// Returns a circle of units, the first one again at its end, or nothing.
#[must_use]
pub fn find_circle(imports: &Imports) -> Option<Vec<String>> {
    let mut finished = BTreeSet::new();
    for unit in imports.keys() {
        if let Some(circle) = walk(imports, unit, &mut Vec::new(), &mut finished) {
            return Some(circle);
        }
    }
    None
}

fn walk<'a>(
    imports: &'a Imports,
    unit: &'a str,
    path: &mut Vec<&'a str>,
    finished: &mut BTreeSet<&'a str>,
) -> Option<Vec<String>> {
    if let Some(start) = path.iter().position(|step| *step == unit) {
        let circle = path[start..].iter().chain([&unit]);
        return Some(circle.map(|step| (*step).to_owned()).collect());
    }
    if finished.contains(unit) {
        return None;
    }
    path.push(unit);
    for target in imports.get(unit).into_iter().flatten() {
        if let Some(circle) = walk(imports, target.0, path, finished) {
            return Some(circle);
        }
    }
    path.pop();
    finished.insert(unit);
    None
}

/// The unit of a file, named by its path below `src`.
fn unit_of(name: &str) -> String {
    let first = name.split('/').next().unwrap_or(name);
    first.strip_suffix(".rs").unwrap_or(first).to_owned()
}

fn is_unit(src: &Path, name: &str) -> bool {
    src.join(name).is_dir() || src.join(format!("{name}.rs")).is_file()
}

/// The text before the tests of a file.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod ").next().unwrap_or(text)
}

/// The first module of every path that begins with `crate::`. Comments count only as far as links need the
/// module.
fn targets(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    for capture in PATH.captures_iter(&code) {
        let Some(first) = capture.get(1) else { continue };
        if first.as_str() == "{" {
            found.extend(names_in_group(&code[first.end()..]));
        } else {
            found.insert(first.as_str().to_owned());
        }
    }
    found
}

/// The first names of the paths in a group, whose opening brace has been read.
fn names_in_group(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut depth = 1;
    let mut name = String::new();
    let mut at_start = true;
    for character in text.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => at_start = true,
            c if depth == 1 && at_start && (c.is_alphanumeric() || c == '_') => name.push(c),
            c if c.is_whitespace() => {}
            _ => at_start = false,
        }
        if !name.is_empty() && (depth != 1 || !at_start || character == ',') {
            names.push(std::mem::take(&mut name));
        }
        if depth == 0 {
            break;
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_paths_and_groups() {
        let text =
            "use crate::a::B;\nuse crate::{c, d::{E, f::G}, h::I};\nfn x() { crate::j::k() }\n// crate::z\n";
        let found: Vec<_> = targets(text).into_iter().collect();
        assert_eq!(found, ["a", "c", "d", "h", "j"]);
    }

    #[test]
    fn finds_a_circle_and_none_in_a_tree() {
        let imports = |pairs: &[(&str, &str)]| {
            let mut imports = Imports::new();
            for (from, to) in pairs {
                let targets = imports.entry((*from).to_owned()).or_default();
                targets.insert((*to).to_owned(), "x.rs".to_owned());
            }
            imports
        };
        assert_eq!(find_circle(&imports(&[("a", "b"), ("a", "c"), ("b", "c")])), None);
        let circle = find_circle(&imports(&[("a", "b"), ("b", "c"), ("c", "b")]));
        assert_eq!(circle.unwrap(), ["b", "c", "b"]);
    }
}
