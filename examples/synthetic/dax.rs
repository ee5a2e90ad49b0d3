//! Reads jobs, their files, sizes and run times from a DAX file.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

/// A job of the workflow.
#[derive(Debug, Default, PartialEq)]
pub struct Job {
    /// Identifier.
    pub id: String,
    /// Namespace of the transformation.
    pub namespace: Option<String>,
    /// Name of the transformation.
    pub name: String,
    /// Version of the transformation.
    pub version: Option<String>,
    /// Run time of the real program in seconds; 0 if unknown.
    pub runtime: f64,
    /// Inputs and their sizes in bytes.
    pub inputs: Vec<(String, u64)>,
    /// Outputs and their sizes in bytes.
    pub outputs: Vec<(String, u64)>,
    /// Outputs that the workflow keeps.
    pub kept: Vec<String>,
}

/// Reads the jobs of a DAX file, versions 2.1 to 3.6, in document order.
pub fn read(path: &Path) -> Result<Vec<Job>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
    parse(&text).with_context(|| format!("{}", path.display()))
}

fn parse(text: &str) -> Result<Vec<Job>> {
    let mut reader = Reader::from_str(text);
    let mut jobs: Vec<Job> = Vec::new();
    let mut in_job = false;
    loop {
        let line = |reader: &Reader<&[u8]>| {
            let end = usize::try_from(reader.buffer_position())
                .unwrap_or(usize::MAX)
                .min(text.len());
            text.as_bytes()[..end]
                .iter()
                .filter(|&&byte| byte == b'\n')
                .count()
                + 1
        };
        match reader.read_event() {
            Ok(Event::Start(element)) if element.name().as_ref() == "job" => {
                jobs.push(job(&element).with_context(|| format!("line {}", line(&reader)))?);
                in_job = true;
            }
            Ok(Event::Empty(element)) if element.name().as_ref() == "job" => {
                jobs.push(job(&element).with_context(|| format!("line {}", line(&reader)))?);
            }
            Ok(Event::End(element)) if element.name().as_ref() == "job" => in_job = false,
            Ok(Event::Start(element) | Event::Empty(element))
                if in_job && element.name().as_ref() == "uses" =>
            {
                if let Some(job) = jobs.last_mut() {
                    uses(&element, job).with_context(|| format!("line {}", line(&reader)))?;
                }
            }
            Ok(Event::Eof) => break,
            Ok(_) => {}
            Err(error) => bail!("line {}: {error}", line(&reader)),
        }
    }
    if jobs.is_empty() {
        bail!("no job in it; is it a DAX file?");
    }
    Ok(jobs)
}

fn attributes(element: &BytesStart<'_>) -> Result<BTreeMap<String, String>> {
    let mut map = BTreeMap::new();
    for attribute in element.attributes() {
        let attribute = attribute?;
        let key = attribute.key.as_ref().to_owned();
        map.insert(
            key,
            attribute.normalized_value(XmlVersion::Explicit1_0)?.into_owned(),
        );
    }
    Ok(map)
}

fn job(element: &BytesStart<'_>) -> Result<Job> {
    let mut map = attributes(element)?;
    let runtime = match map.get("runtime") {
        Some(text) => text.parse().with_context(|| format!("runtime \"{text}\""))?,
        None => 0.0,
    };
    Ok(Job {
        id: map.remove("id").context("job without id")?,
        namespace: map.remove("namespace").filter(|text| !text.is_empty()),
        name: map.remove("name").context("job without name")?,
        version: map.remove("version").filter(|text| !text.is_empty()),
        runtime,
        ..Job::default()
    })
}

fn uses(element: &BytesStart<'_>, job: &mut Job) -> Result<()> {
    let mut map = attributes(element)?;
    let file = map
        .remove("file")
        .or_else(|| map.remove("name"))
        .context("uses without file")?;
    let size = match map.get("size") {
        Some(text) => text
            .trim()
            .parse()
            .with_context(|| format!("size \"{text}\" of {file}"))?,
        None => 0,
    };
    if map.get("executable").is_some_and(|text| text == "true") {
        return Ok(());
    }
    let list = match map.get("link").map(String::as_str) {
        Some("input") => &mut job.inputs,
        Some("output") => &mut job.outputs,
        Some("inout" | "checkpoint") => {
            job.inputs.push((file.clone(), size));
            &mut job.outputs
        }
        _ => return Ok(()),
    };
    if !list.iter().any(|(name, _)| *name == file) {
        list.push((file.clone(), size));
    }
    let output = job.outputs.last().is_some_and(|(name, _)| *name == file);
    if output && map.get("transfer").is_none_or(|text| text != "false") {
        job.kept.push(file);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_dialects_give_the_same_jobs() {
        let old = r#"<adag version="2.1"><job id="A" namespace="n" name="t" version="1.0" runtime="2.5">
            <uses file="x" link="input" size="10"/><uses file="y &amp; z" link="output" size="20"/></job></adag>"#;
        let new = r#"<adag version="3.6"><job id="A" namespace="n" name="t" version="1.0" runtime="2.5">
            <uses name="x" link="input" size="10"></uses><uses name="y &amp; z" link="output" size="20"/></job></adag>"#;
        let jobs = parse(old).expect("old dialect");
        assert_eq!(jobs, parse(new).expect("new dialect"));
        assert_eq!(jobs[0].inputs, [("x".to_owned(), 10)]);
        assert_eq!(jobs[0].outputs, [("y & z".to_owned(), 20)]);
        assert_eq!(jobs[0].kept, ["y & z"]);
    }

    #[test]
    fn errors_name_the_line() {
        let error = parse("<adag>\n<job id=\"A\" name=\"t\">\n<uses file=\"x\" link=\"input\" size=\"many\"/>\n</job></adag>")
            .expect_err("no number");
        assert_eq!(
            format!("{error:#}"),
            "line 3: size \"many\" of x: invalid digit found in string"
        );
        assert!(parse("jobs: []").is_err());
    }
}
