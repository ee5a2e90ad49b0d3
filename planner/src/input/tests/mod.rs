mod dax;
mod equal;
mod errors;
mod yaml;

use std::path::Path;

use super::{ParsedWorkflow, ReadOptions, read_text};
use crate::model::{Arguments, Workflow};

/// Reads a valid workflow.
fn read(text: &str) -> Workflow {
    parse(text).workflow
}

/// Reads a valid workflow with its catalogs. Arguments are literal words, so that tests see how each is read.
fn parse(text: &str) -> ParsedWorkflow {
    let options = ReadOptions {
        split_arguments: false,
        ..ReadOptions::default()
    };
    match read_text(Path::new("w"), text, &options) {
        Ok(parsed) => parsed,
        Err(errors) => panic!("{errors}"),
    }
}

/// Reads an invalid workflow and returns the message.
fn refused(text: &str) -> String {
    match read_text(Path::new("w"), text, &ReadOptions::default()) {
        Ok(_) => panic!("the text was read"),
        Err(errors) => {
            // Messages about syntax contain the absolute path.
            let path = std::path::absolute("w").expect("a working directory");
            errors.to_string().replace(&path.display().to_string(), "/w")
        }
    }
}

fn words(workflow: &Workflow, job: usize) -> Vec<&str> {
    match &workflow.jobs[job].arguments {
        Arguments::Words(words) | Arguments::Exact(words) => words.iter().collect(),
        Arguments::Raw(raw) => vec![raw],
    }
}

fn raw(workflow: &Workflow, job: usize) -> &str {
    match &workflow.jobs[job].arguments {
        Arguments::Raw(raw) => raw,
        Arguments::Words(_) | Arguments::Exact(_) => panic!("words"),
    }
}

/// Edges, by job ids.
fn edges(workflow: &Workflow) -> Vec<String> {
    workflow
        .edges
        .iter()
        .map(|(parent, child)| {
            let id = |n: crate::model::JobIndex| workflow.jobs[n].id.as_str();
            format!("{}>{}", id(*parent), id(*child))
        })
        .collect()
}
