//! Properties of site selection: `pegasus.selector.site` and what belongs to it. The user's document of
//! Pegasus calls some of them `pegasus.site.selector.…`; both are read.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::callout::{Callout, Keep};
use super::selection::SiteSelector;
use crate::diagnostic::Diagnostic;
use crate::error::near_spelling;
use crate::properties::Properties;
use crate::request::Request;

const KEY: &str = "pegasus.selector.site";
const OLD_KEY: &str = "pegasus.site.selector";
const NAMES: &[&str] = &["First", "Random", "RoundRobin", "Group", "Heft", "NonJavaCallout"];
/// What an external selector sees of the planner's environment.
const PASSED_ON: &[&str] = &["CLASSPATH", "JAVA_HOME", "USER", "LOGNAME", "HOME", "TMP", "TZ"];
/// Seconds that it has for a job.
const TIMEOUT: u64 = 300;

/// The selector that the properties ask for.
pub(crate) fn selector(
    properties: &Properties,
    request: &Request,
    problems: &mut Vec<Diagnostic>,
) -> SiteSelector {
    let Some((key, name)) = named(properties, "") else {
        return SiteSelector::default();
    };
    match name.to_ascii_lowercase().as_str() {
        "first" => SiteSelector::First,
        "random" => SiteSelector::Random,
        "roundrobin" => SiteSelector::RoundRobin,
        "group" => SiteSelector::Group,
        "heft" => SiteSelector::Heft,
        "nonjavacallout" => callout(properties, request, problems),
        _ => {
            let known = format!("site selectors are {}", NAMES.join(", "));
            let hint = match near_spelling(&name, NAMES.iter().copied()) {
                Some(near) => format!("did you mean {near}? {known}"),
                None => known,
            };
            problems.push(
                properties
                    .bad_value(&key, "must name a site selector")
                    .with_hint(hint),
            );
            SiteSelector::default()
        }
    }
}

/// Where chance begins: `--seed`, else the property, else 0. The word `random` gives another seed each time.
pub(crate) fn seed(properties: &Properties, request: &Request, problems: &mut Vec<Diagnostic>) -> u64 {
    let (key, text) = match (&request.seed, named(properties, ".seed")) {
        (Some(text), _) => (None, text.trim().to_owned()),
        (None, Some((key, text))) => (Some(key), text),
        (None, None) => return 0,
    };
    if text.eq_ignore_ascii_case("random") {
        // The identifier of the workflow is new for each plan.
        return super::random::below(0, &request.environment.uuid, 1 << 32) as u64;
    }
    text.parse().unwrap_or_else(|_| {
        let what = "must be a whole number or the word random";
        problems.push(match key {
            Some(key) => properties.bad_value(&key, what),
            None => Diagnostic::in_file("--seed".as_ref(), format!("{what}, not `{text}`")),
        });
        0
    })
}

/// Key and value of a property under its new name or the other one; empty ones do not count.
fn named(properties: &Properties, suffix: &str) -> Option<(String, String)> {
    [KEY, OLD_KEY].iter().find_map(|base| {
        let key = format!("{base}{suffix}");
        let value = properties.get(&key)?.trim().to_owned();
        (!value.is_empty()).then_some((key, value))
    })
}

fn callout(properties: &Properties, request: &Request, problems: &mut Vec<Diagnostic>) -> SiteSelector {
    if let Some(chosen) = &request.chosen_sites {
        return SiteSelector::Chosen(chosen.clone());
    }
    if !request.may_start_programs {
        problems.push(properties.bad_key(
            KEY,
            "NonJavaCallout starts a program, and looking starts none: make the plan and look at that, or \
             choose another selector",
        ));
    }
    let here = &request.environment.working_dir;
    let environment = &request.environment.variables;
    let path = match named(properties, ".path") {
        Some((key, path)) => {
            let path = here.join(path);
            if !is_program(&path) {
                problems.push(properties.bad_value(&key, "must name a program that can be executed"));
            }
            path
        }
        None => {
            problems.push(properties.bad_key(
                KEY,
                "NonJavaCallout needs the property pegasus.selector.site.path, the program to be asked",
            ));
            PathBuf::new()
        }
    };
    let mut timeout = Duration::from_secs(TIMEOUT);
    if let Some((key, text)) = named(properties, ".timeout") {
        match text.parse::<u32>() {
            Ok(seconds) if seconds > 0 => timeout = Duration::from_secs(u64::from(seconds)),
            _ => problems.push(properties.bad_value(&key, "must be a whole number of seconds, at least 1")),
        }
    }
    let mut keep = Keep::OnError;
    if let Some((key, text)) = named(properties, ".keep.tmp") {
        keep = match text.to_ascii_lowercase().as_str() {
            "onerror" => Keep::OnError,
            word => match crate::profiles::parse_bool(word) {
                Some(true) => Keep::Always,
                Some(false) => Keep::Never,
                None if word == "always" => Keep::Always,
                None if word == "never" => Keep::Never,
                None => {
                    problems.push(properties.bad_value(&key, "must be onerror, always or never"));
                    Keep::OnError
                }
            },
        };
    }
    let mut variables: BTreeMap<String, String> = PASSED_ON
        .iter()
        .filter_map(|&name| Some((name.to_owned(), environment.get(name)?.clone())))
        .collect();
    for base in [OLD_KEY, KEY] {
        for (name, value) in properties.with_prefix(&format!("{base}.env.")) {
            // Names and values that no environment can have.
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                let key = format!("{base}.env.{name}");
                problems.push(properties.bad_value(&key, "cannot be a variable of the environment"));
                continue;
            }
            variables.insert(name.to_owned(), value.to_owned());
        }
    }
    let temp_dir = environment.get("TMPDIR").filter(|dir| dir.starts_with('/'));
    SiteSelector::Callout(Callout {
        path,
        timeout,
        keep,
        environment: variables,
        temp_dir: temp_dir.map_or_else(|| "/tmp".into(), PathBuf::from),
    })
}

/// Whether the path is a file that may be executed.
fn is_program(path: &std::path::Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata()
        .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}
