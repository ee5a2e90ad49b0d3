//! Replaces what differs from run to run: times, identifiers, the user, directories.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::{Captures, Regex};

use super::super::text::{is_name, regex, replace_where};
use super::Tree;

/// The modification time of the inputs, in two forms. Other times are those of the run.
const FIXED_ISO: &str = "2024-05-06T07:08:09";
const FIXED_COMPACT: &str = "20240506T070809";

pub struct Normalizer {
    base: PathBuf,
    /// Texts and what stands in their place, in this order.
    places: Vec<(String, &'static str)>,
    user: String,
}

impl Normalizer {
    pub fn new(base: &Path, home: &Path, pegasus_home: &Path, path: String) -> Self {
        let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
        let shown = |path: &Path| path.display().to_string();
        Self {
            base: base.to_owned(),
            places: vec![
                (format!("{}/bin:{path}", shown(pegasus_home)), "@PATH@"),
                (path, "@PATH@"),
                (shown(&base.with_file_name("condor/bin")), "@CONDOR_BIN@"),
                (shown(base), "@BASE@"),
                (shown(home), "@HOME@"),
                (shown(pegasus_home), "@PEGASUS_HOME@"),
            ],
            user: user.map_or_else(|| "unknown".to_owned(), |user| user.name),
        }
    }

    /// Normalizes any text.
    pub fn text(&self, text: &str) -> String {
        let places = self.places.iter();
        let text = places.fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
        let iso = regex!(r"\b(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)([^\w:]|$)");
        let text = iso.replace_all(&text, |found: &Captures| {
            let time = if &found[1] == FIXED_ISO {
                "@MTIME@"
            } else {
                "@TIME@"
            };
            format!("{time}{}", &found[2])
        });
        self.name(&text)
    }

    /// Normalizes the path of a file.
    fn name(&self, text: &str) -> String {
        let text = regex!(r"\bpegasus\.\d+\.properties\b").replace_all(text, "pegasus.@N@.properties");
        let uuid = regex!(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b");
        let text = uuid.replace_all(&text, "@UUID@");
        let compact = regex!(r"\b(\d{8}T\d{6})(?:[+-]\d{4}|Z)");
        let text = compact.replace_all(&text, |found: &Captures| {
            if &found[1] == FIXED_COMPACT {
                "@CMTIME@"
            } else {
                "@CTIME@"
            }
        });
        // The user's directory is above the one of the group, `pegasus`.
        let (from, to) = (format!("{}/pegasus/", self.user), "@USER@/pegasus/");
        replace_where(&text, &from, to, |previous, _| {
            !previous.is_some_and(|c| is_name(c) || c == '@')
        })
    }

    /// Normalizes the content of a file.
    fn content(&self, name: &str, text: &str) -> String {
        let text = self.text(text);
        if name.ends_with(".sub") {
            let version = regex!(r#"(pegasus_version *= *)"[^"]*""#);
            let text = version.replace_all(&text, r#"$1"@PLANNER_VERSION@""#);
            let package = regex!(r"pegasus-worker-[\w.-]+?\.tar\.gz");
            let text = package.replace_all(&text, "pegasus-worker-@PLATFORM@.tar.gz");
            return text.replace(" USER=tester ", " USER=@USER@ ");
        }
        if name.ends_with(".bp") {
            return regex!(r"(?m)^ts=\S+").replace_all(&text, "ts=@TS@").into_owned();
        }
        if name.ends_with(".properties") {
            let date = regex!(r"(?m)^#\w{3} \w{3} \d\d \d\d:\d\d:\d\d \S+ \d{4}[ \t]*$");
            return date.replace_all(&text, "#@DATE@").into_owned();
        }
        if name.ends_with("braindump.yml") {
            let user = format!(r#"(?m)^user: "?{}"?[ \t]*$"#, regex::escape(&self.user));
            let user = Regex::new(&user).expect("a regular expression");
            return user.replace_all(&text, "user: \"@USER@\"").into_owned();
        }
        text
    }

    /// Reads and normalizes all text files below the work directory but the inputs.
    pub fn tree(&self, inputs: &[String]) -> Tree {
        let mut tree = Tree::new();
        let mut directories = vec![self.base.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).expect("a directory").flatten() {
                let path = entry.path();
                let kind = entry.file_type().expect("a file");
                let relative = path.strip_prefix(&self.base).expect("a path below");
                let relative = relative.to_string_lossy().into_owned();
                if kind.is_dir() {
                    directories.push(path);
                } else if kind.is_file() && !inputs.contains(&relative) && !relative.ends_with(".db") {
                    // Other files are no texts.
                    if let Ok(text) = fs::read_to_string(&path) {
                        let name = self.name(&relative);
                        let content = self.content(&name, &text);
                        tree.insert(name, content);
                    }
                }
            }
        }
        number_cleanup_jobs(tree)
    }
}

/// The original gives the jobs of the constraint cleanup random numbers: they are replaced by numbers in the
/// order of what the jobs remove.
fn number_cleanup_jobs(tree: Tree) -> Tree {
    let random = regex!(r"\bclean_up_\d{3,}\b");
    let mut removed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, text) in &tree {
        for job in random.find_iter(name) {
            let urls = removed.entry(job.as_str().to_owned()).or_default();
            if name.ends_with(".in") {
                let found = regex!(r#""url": *"([^"]*)""#).captures_iter(text);
                *urls = found.map(|url| url[1].to_owned()).collect();
                urls.sort();
            }
        }
    }
    let order: BTreeSet<(Vec<String>, String)> = removed.into_iter().map(|(job, urls)| (urls, job)).collect();
    let numbers: BTreeMap<String, usize> = order.into_iter().map(|(_, job)| job).zip(0..).collect();
    let rename = |text: &str| {
        random
            .replace_all(text, |found: &Captures| match numbers.get(&found[0]) {
                Some(number) => format!("clean_up_R{number}"),
                None => found[0].to_owned(),
            })
            .into_owned()
    };
    tree.iter()
        .map(|(name, text)| (rename(name), rename(text)))
        .collect()
}
