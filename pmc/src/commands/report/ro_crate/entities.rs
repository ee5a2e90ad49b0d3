//! Entities of the crate in JSON-LD, as RO-Crate 1.1 and the profiles of Workflow Run RO-Crate 0.5 define
//! them.


use chrono::{DateTime, SecondsFormat};
use monitord_compat::record_reader::Record;
use pmc_monitor::history::{History, Phase};
use serde_json::{Value, json};

use super::encode;
use super::files::{DataFile, Files};

/// Profiles of the crate: URI, name, version.
const PROFILES: [(&str, &str, &str); 3] = [
    (
        "https://w3id.org/ro/wfrun/process/0.5",
        "Process Run Crate",
        "0.5",
    ),
    (
        "https://w3id.org/ro/wfrun/workflow/0.5",
        "Workflow Run Crate",
        "0.5",
    ),
    (
        "https://w3id.org/workflowhub/workflow-ro-crate/1.0",
        "Workflow RO-Crate",
        "1.0",
    ),
];
const WORKFLOW_PROFILE: &str = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE";
const LANGUAGE: &str = "https://pegasus.isi.edu/";
const LICENSE: &str = "#license";
const COMPLETED: &str = "http://schema.org/CompletedActionStatus";
const FAILED: &str = "http://schema.org/FailedActionStatus";
/// Media types by the last part of a name.
const MEDIA_TYPES: [(&str, &str); 14] = [
    ("yml", "application/yaml"),
    ("yaml", "application/yaml"),
    ("xml", "application/xml"),
    ("dax", "application/xml"),
    ("json", "application/json"),
    ("txt", "text/plain"),
    ("csv", "text/csv"),
    ("html", "text/html"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("pdf", "application/pdf"),
    ("fits", "application/fits"),
    ("gz", "application/gzip"),
    ("zip", "application/zip"),
];

/// Returns the context of the metadata.
pub fn context() -> Value {
    json!("https://w3id.org/ro/crate/1.1/context")
}

/// Returns a value for references: RO-Crate wants no list around a single one.
pub fn references<'a>(ids: impl IntoIterator<Item = &'a str>) -> Value {
    let mut all: Vec<Value> = ids.into_iter().map(|id| json!({ "@id": id })).collect();
    match all.len() {
        1 => all.remove(0),
        _ => all.into(),
    }
}

/// Returns the entity that describes the metadata file itself.
pub fn descriptor(name: &str) -> Value {
    json!({
        "@id": name,
        "@type": "CreativeWork",
        "about": { "@id": "./" },
        "conformsTo": [
            { "@id": "https://w3id.org/ro/crate/1.1" },
            { "@id": "https://w3id.org/workflowhub/workflow-ro-crate/1.0" },
        ],
    })
}

/// Returns the profiles that the crate follows.
pub fn profiles() -> impl Iterator<Item = Value> {
    PROFILES.iter().map(
        |(id, name, version)| json!({ "@id": id, "@type": "CreativeWork", "name": name, "version": version }),
    )
}

/// Returns the license of the crate, which a run does not know.
pub fn license() -> Value {
    json!({
        "@id": LICENSE,
        "@type": "CreativeWork",
        "name": "No license stated",
        "description": "The run states no license. Replace this entity before you publish the crate.",
    })
}

/// Returns the language of the workflow.
pub fn language(workflow: &str) -> Value {
    let name = if media_type(workflow) == "application/xml" {
        "Pegasus DAX (XML)"
    } else {
        "Pegasus workflow (YAML)"
    };
    json!({
        "@id": LANGUAGE,
        "@type": "ComputerLanguage",
        "name": name,
        "url": { "@id": LANGUAGE },
    })
}

/// Returns a person.
pub fn person(user: &str) -> Value {
    json!({ "@id": person_id(user), "@type": "Person", "name": user })
}

fn person_id(user: &str) -> String {
    format!("#user-{}", encode(user))
}

/// Returns an input or output of the workflow as a parameter.
pub fn parameter(file: &DataFile, id: &str) -> Value {
    json!({
        "@id": id,
        "@type": "FormalParameter",
        "additionalType": "File",
        "name": file.name,
        "workExample": { "@id": file.id },
    })
}

/// Returns a file.
pub fn file(file: &DataFile, parameter: Option<&str>) -> Value {
    let mut entity = json!({
        "@id": file.id,
        "@type": "File",
        "name": file.name,
        "alternateName": file.name,
        "encodingFormat": media_type(&file.name),
        "contentSize": file.size.to_string(),
    });
    if let Some(parameter) = parameter {
        entity["exampleOfWork"] = json!({ "@id": parameter });
    }
    entity
}

/// Returns a file that is not in the crate: it was used between jobs.
pub fn intermediate(lfn: &str, id: &str) -> Value {
    json!({
        "@id": id,
        "@type": "CreativeWork",
        "name": lfn,
        "description": "File between jobs, which the crate does not hold",
    })
}

fn media_type(name: &str) -> &'static str {
    let last = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    let known = MEDIA_TYPES.iter().find(|(suffix, _)| *suffix == last);
    known.map_or("application/octet-stream", |(_, media_type)| media_type)
}

/// Returns the identifier of the program in a record: its URL on the host.
pub fn program_id(record: &Record) -> String {
    match &record.main.executable {
        Some(path) => format!("file://{}", encode(path)),
        None => format!(
            "#program-{}",
            encode(record.transformation.as_deref().unwrap_or_default())
        ),
    }
}

/// Returns a program.
pub fn program(id: &str, transformation: &str) -> Value {
    json!({ "@id": id, "@type": "SoftwareApplication", "name": transformation })
}

/// Returns the execution of a program, with references to what it read and wrote.
pub fn execution(id: &str, record: &Record, program: &str, files: (Value, Value)) -> Value {
    let transformation = record.transformation.as_deref().unwrap_or("program");
    let job = record.derivation.as_deref().unwrap_or_default();
    let words = record.main.executable.iter().chain(&record.main.arguments);
    let command: Vec<&str> = words.map(String::as_str).collect();
    let mut entity = json!({
        "@id": id,
        "@type": "CreateAction",
        "name": format!("{transformation} {job}").trim_end(),
        "description": command.join(" "),
        "instrument": { "@id": program },
        "object": files.0,
        "result": files.1,
    });
    let start = record.main.start;
    let end = start
        .zip(record.main.duration)
        .map(|(start, duration)| start + duration);
    for (key, time) in [("startTime", start), ("endTime", end)] {
        if let Some(time) = time {
            entity[key] = seconds(time).into();
        }
    }
    if let Some(user) = &record.user {
        entity["agent"] = json!({ "@id": person_id(user) });
    }
    if let Some(host) = &record.host_name {
        entity["location"] = host.as_str().into();
    }
    match record.main.raw_status {
        Some(0) => entity["actionStatus"] = COMPLETED.into(),
        status => {
            entity["actionStatus"] = FAILED.into();
            let status = status.map_or("unknown".to_owned(), |status| status.to_string());
            entity["error"] = format!("wait status {status}").into();
        }
    }
    entity
}

/// Returns a time in ISO 8601, given seconds since the epoch.
fn seconds(time: f64) -> String {
    micros((time * 1e6) as i64)
}

/// Returns a time in ISO 8601, given microseconds since the epoch.
fn micros(time: i64) -> String {
    let time = DateTime::from_timestamp_micros(time).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Millis, false)
}

/// The run as a whole.
pub struct Run<'a> {
    history: &'a History,
    main: &'a DataFile,
    /// Who ran it.
    pub user: String,
}

impl<'a> Run<'a> {
    /// Describes a run of the workflow `main`.
    pub fn new(history: &'a History, main: &'a DataFile) -> Self {
        let user = history.dir.braindump.get("user");
        Self {
            history,
            main,
            user: user.map_or("unknown", String::as_str).to_owned(),
        }
    }

    /// Returns the identifier of the run.
    pub fn id(&self) -> String {
        match self.history.dir.braindump.get("wf_uuid") {
            Some(uuid) => format!("urn:uuid:{uuid}"),
            None => "#run".to_owned(),
        }
    }

    fn label(&self) -> &str {
        &self.history.dir.label
    }

    /// Returns the workflow.
    pub fn workflow(&self, files: &Files) -> Value {
        let mut entity = file(self.main, None);
        let parameters = |files: &[DataFile]| {
            let ids: Vec<String> = files.iter().map(DataFile::parameter_id).collect();
            references(ids.iter().map(String::as_str))
        };
        entity["@type"] = json!(["File", "SoftwareSourceCode", "ComputationalWorkflow"]);
        entity["name"] = self.label().into();
        entity["conformsTo"] = json!({ "@id": WORKFLOW_PROFILE });
        entity["programmingLanguage"] = json!({ "@id": LANGUAGE });
        entity["input"] = parameters(&files.inputs);
        entity["output"] = parameters(&files.outputs);
        entity
    }

    /// Returns the execution of the workflow.
    pub fn action(&self, files: &Files) -> Value {
        let refer = |files: &[DataFile]| references(files.iter().map(|file| file.id.as_str()));
        let mut entity = json!({
            "@id": self.id(),
            "@type": "CreateAction",
            "name": format!("Run of {}", self.label()),
            "description": format!("Planned and run by pmc {}", env!("CARGO_PKG_VERSION")),
            "instrument": { "@id": self.main.id },
            "agent": { "@id": person_id(&self.user) },
            "object": refer(&files.inputs),
            "result": refer(&files.outputs),
        });
        let runs = &self.history.runs;
        if let Some(first) = runs.first() {
            entity["startTime"] = micros(first.start).into();
        }
        if let Some((end, _)) = runs.last().and_then(|run| run.end) {
            entity["endTime"] = micros(end).into();
        }
        match self.history.phase() {
            Phase::Ended(0) => entity["actionStatus"] = COMPLETED.into(),
            Phase::Ended(_) | Phase::CutOff => {
                entity["actionStatus"] = FAILED.into();
                entity["error"] = "not all tasks succeeded".into();
            }
            Phase::NotStarted | Phase::Running => {}
        }
        entity
    }

    /// Returns the crate itself.
    pub fn root(&self, files: &Files, actions: &[String]) -> Value {
        let parts = std::iter::once(self.main)
            .chain(&files.inputs)
            .chain(&files.outputs);
        let published = self.history.runs.last().map_or(0, |run| run.last);
        json!({
            "@id": "./",
            "@type": "Dataset",
            "name": format!("Run of {}", self.label()),
            "description": format!("Provenance of a run of the workflow {}", self.label()),
            "datePublished": micros(published),
            "license": { "@id": LICENSE },
            "author": { "@id": person_id(&self.user) },
            "conformsTo": references(PROFILES.iter().map(|(id, ..)| *id)),
            "mainEntity": { "@id": self.main.id },
            "hasPart": references(parts.map(|file| file.id.as_str())),
            "mentions": references(actions.iter().map(String::as_str)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_have_no_special_characters() {
        assert_eq!(encode("a b/c#d%é"), "a%20b/c%23d%25%C3%A9");
    }

    #[test]
    fn executions_have_times_and_status() {
        let text = "- invocation: True\n  transformation: \"work\"\n  derivation: \"ID1\"\n  mainjob:\n    \
                    start: 2026-11-22T19:13:52.500+00:00\n    duration: 1.25\n    status:\n      raw: 256\n";
        let (record, error) = Record::read(text);
        assert_eq!(error, None);
        let entity = execution("#x", &record, "#p", (json!([]), json!([])));
        assert_eq!(entity["startTime"], "2026-11-22T19:13:52.500+00:00");
        assert_eq!(entity["endTime"], "2026-11-22T19:13:53.750+00:00");
        assert_eq!(entity["actionStatus"], FAILED);
        assert_eq!(
            (&entity["error"], &entity["name"]),
            (&"wait status 256".into(), &"work ID1".into())
        );
    }
}
