//! Random workflows in both syntaxes give equal models. Random bytes cause no panic.

use std::fmt::Write as _;
use std::path::Path;

use proptest::prelude::*;

use super::super::{dax::ReaderMode, read_in};
use super::{ReadOptions, read_text};
use crate::model::{Arguments, Words, Workflow};

#[derive(Clone, Debug)]
struct SomeUse {
    file: usize,
    output: bool,
    optional: bool,
    transfer: bool,
    register: bool,
    size: Option<u64>,
}

#[derive(Clone, Debug)]
struct SomeJob {
    name: String,
    namespace: Option<String>,
    arguments: Vec<String>,
    profiles: Vec<(String, String)>,
    metadata: Option<String>,
    uses: Vec<SomeUse>,
    /// Depends on the previous job.
    chained: bool,
}

fn word() -> impl Strategy<Value = String> {
    "[a-zA-Zé&<>'\"=:#@%*!|{}\\[\\],.-][a-zA-Z0-9é&<>'\"=:#.-]{0,8}"
}

prop_compose! {
    fn some_use()(
        file in 0_usize..20,
        output: bool,
        optional: bool,
        transfer: bool,
        register: bool,
        size in prop::option::of(0_u64..1_000_000),
    ) -> SomeUse {
        SomeUse { file, output, optional, transfer, register, size }
    }
}

prop_compose! {
    fn some_job()(
        name in "[a-z][a-z0-9.]{0,6}",
        namespace in prop::option::of("[a-z]{1,4}"),
        arguments in prop::collection::vec(word(), 0..5),
        profiles in prop::collection::vec(("[A-Z]{1,3}", word()), 0..3),
        metadata in prop::option::of(word()),
        uses in prop::collection::vec(some_use(), 0..5),
        chained: bool,
    ) -> SomeJob {
        SomeJob { name, namespace, arguments, profiles, metadata, uses, chained }
    }
}

/// Gives each file one producer, the first that writes it. Readers come later, so there is no cycle.
fn remove_conflicts(jobs: &mut [SomeJob]) {
    let mut produced = std::collections::BTreeSet::new();
    for job in jobs {
        let mut seen = std::collections::BTreeSet::new();
        job.uses.retain(|used| seen.insert(used.file));
        for used in &mut job.uses {
            used.output &= produced.insert(used.file);
        }
        let mut keys = std::collections::BTreeSet::new();
        job.profiles.retain(|(key, _)| keys.insert(key.clone()));
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn yaml(jobs: &[SomeJob]) -> String {
    let mut out = String::from("name: random\npegasus: '5.0'\nx-pegasus: {apiLang: same}\njobs:\n");
    let mut edges = String::new();
    for (n, job) in jobs.iter().enumerate() {
        let _ = write!(out, "- type: job\n  id: ID{n}\n  name: {}\n", quoted(&job.name));
        if let Some(namespace) = &job.namespace {
            let _ = writeln!(out, "  namespace: {}", quoted(namespace));
        }
        out.push_str("  arguments:\n");
        for word in &job.arguments {
            let _ = writeln!(out, "  - {}", quoted(word));
        }
        if !job.profiles.is_empty() {
            out.push_str("  profiles:\n    env:\n");
            for (key, value) in &job.profiles {
                let _ = writeln!(out, "      {key}: {}", quoted(value));
            }
        }
        if let Some(value) = &job.metadata {
            let _ = writeln!(out, "  metadata:\n    key: {}", quoted(value));
        }
        out.push_str("  uses:\n");
        for used in &job.uses {
            let _ = write!(
                out,
                "  - lfn: file{}\n    type: {}\n    optional: {}\n    stageOut: {}\n    registerReplica: {}\n",
                used.file,
                if used.output { "output" } else { "input" },
                used.optional && !used.output,
                used.transfer,
                used.register
            );
            if let Some(size) = used.size {
                let _ = writeln!(out, "    size: {size}");
            }
        }
        if n > 0 && job.chained {
            let _ = write!(edges, "- id: ID{}\n  children:\n  - ID{n}\n", n - 1);
        }
    }
    let _ = write!(out, "jobDependencies:\n{edges}");
    out
}

fn escaped(text: &str) -> String {
    quick_xml::escape::escape(text).into_owned()
}

fn xml(jobs: &[SomeJob]) -> String {
    let mut out =
        String::from("<adag name=\"random\" version=\"3.6\">\n<metadata key=\"wf.api\">same</metadata>\n");
    let mut edges = String::new();
    for (n, job) in jobs.iter().enumerate() {
        let _ = write!(out, "<job id=\"ID{n}\" name=\"{}\"", escaped(&job.name));
        if let Some(namespace) = &job.namespace {
            let _ = write!(out, " namespace=\"{}\"", escaped(namespace));
        }
        let _ = write!(
            out,
            ">\n<argument>{}</argument>\n",
            escaped(&job.arguments.join(" "))
        );
        for (key, value) in &job.profiles {
            let _ = writeln!(
                out,
                "<profile namespace=\"env\" key=\"{key}\">{}</profile>",
                escaped(value)
            );
        }
        if let Some(value) = &job.metadata {
            let _ = writeln!(out, "<metadata key=\"key\">{}</metadata>", escaped(value));
        }
        for used in &job.uses {
            let _ = write!(
                out,
                "<uses name=\"file{}\" link=\"{}\" optional=\"{}\" transfer=\"{}\" register=\"{}\"",
                used.file,
                if used.output { "output" } else { "input" },
                used.optional && !used.output,
                used.transfer,
                used.register
            );
            if let Some(size) = used.size {
                let _ = write!(out, " size=\"{size}\"");
            }
            out.push_str("/>\n");
        }
        out.push_str("</job>\n");
        if n > 0 && job.chained {
            let _ = writeln!(
                edges,
                "<child ref=\"ID{n}\"><parent ref=\"ID{}\"/></child>",
                n - 1
            );
        }
    }
    let _ = writeln!(out, "{edges}</adag>");
    out
}

/// Returns the parts of a workflow that both syntaxes express, in comparable form.
fn comparable(mut workflow: Workflow) -> String {
    for job in &mut workflow.jobs {
        job.position = crate::model::Position::default();
        if let Arguments::Words(words) = &job.arguments {
            let joined = words.iter().collect::<Vec<_>>().join(" ");
            job.arguments = Arguments::Raw(joined);
        }
    }
    format!(
        "{} {:?} {:#?} {:?}",
        workflow.label, workflow.metadata, workflow.jobs, workflow.edges
    )
}

fn read(text: &str) -> Workflow {
    let options = ReadOptions {
        split_arguments: false,
        ..ReadOptions::default()
    };
    match read_text(Path::new("w"), text, &options).map(|parsed| parsed.workflow) {
        Ok(workflow) => workflow,
        Err(errors) => panic!("{errors}\n{text}"),
    }
}

proptest! {
    #[test]
    fn both_syntaxes_give_the_same_workflow(mut jobs in prop::collection::vec(some_job(), 1..8)) {
        remove_conflicts(&mut jobs);
        let (from_yaml, from_xml) = (read(&yaml(&jobs)), read(&xml(&jobs)));
        for (job, read) in jobs.iter().zip(&from_yaml.jobs) {
            let expected: Words = job.arguments.iter().collect();
            prop_assert_eq!(&read.arguments, &Arguments::Words(expected));
        }
        prop_assert_eq!(comparable(from_yaml), comparable(from_xml));
    }

    #[test]
    fn fast_and_full_reader_give_the_same_workflow(
        mut jobs in prop::collection::vec(some_job(), 1..6),
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(
            vec!["", "<", ">", "&", "\"", "'", "/", "=", " ", "\n", "\r", "\t", "é", "a", "..", "/>", "</job>", "<!-- -->",
                "<!-- <job id='C' name='c'><stdout name='o'/><uses name='c0' link='output'/></job> -->", "<!--", "-->", "&amp;",
                "<![CDATA[<job id=\"D\" name=\"d\"/>]]>", "<![CDATA[", "]]>", "<job id='ID9' name='late'>\n</job>",
                "<child ref='ID1'><!-- --><parent ref='ID0'/></child>",
                "<file name=\"f\"/>", "<file name='g'></file>", " name=\"f\"", " link='inout'", " type=\"executable\"", "J",
                "<stdout name=\"o\" link=\"output\"/>", "<profile namespace=\"pegasus\" key=\"runtime\">5</profile>",
                "<profile namespace=\"pegasus\" key=\"memory\">x</profile>", "<uses name=\"file1\" link=\"input\"/>"],
        )), 0..4),
    ) {
        remove_conflicts(&mut jobs);
        let mut text = xml(&jobs);
        for (index, piece) in changes {
            // Half of the pieces stand where an element may.
            let at = index.index(2 * text.len());
            let line = |at: usize| text.as_bytes()[..at].iter().rposition(|b| *b == b'\n');
            let at = at.checked_sub(text.len()).map_or(at, |at| line(at).map_or(0, |n| n + 1));
            if text.is_char_boundary(at) {
                text.insert_str(at, piece);
                if piece.is_empty() {
                    text.remove(at);
                }
            }
        }
        let read = |mode| match read_in(Path::new("w"), &text, &ReadOptions::default(), mode).map(|parsed| parsed.workflow) {
            Ok(workflow) => {
                let names: Vec<String> = (0..workflow.files.len())
                    .map(|n| workflow.files.name(crate::model::FileId::new(n)).to_owned())
                    .collect();
                format!("{names:?} {:?} {:#?} {:?} {:?}", workflow.metadata, workflow.jobs, workflow.edges, workflow.warnings)
            }
            Err(errors) => errors.to_string(),
        };
        let full = read(ReaderMode::Full);
        prop_assert_eq!(&read(ReaderMode::Fast), &full, "{}", text);
    }

    #[test]
    fn corrupted_files_cause_no_panic(
        mut jobs in prop::collection::vec(some_job(), 1..4),
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(
            vec!['\0', '<', '>', '&', '"', '\'', '[', '{', ']', '}', ':', '-', ' ', '\n', '\t', '*', '!', '|', '#', 'é', '%', '@'],
        )), 1..6),
        as_xml: bool,
    ) {
        remove_conflicts(&mut jobs);
        let text = if as_xml { xml(&jobs) } else { yaml(&jobs) };
        let mut text: Vec<char> = text.chars().collect();
        for (index, c) in changes {
            let at = index.index(text.len());
            text[at] = c;
        }
        let text: String = text.into_iter().collect();
        let _ = read_text(Path::new("w"), &text, &ReadOptions::default());
    }

    #[test]
    fn arbitrary_text_causes_no_panic(text in "(<adag|name: |jobs:\n|- |\\PC|[\\[\\]{}&*!|>'\"%@`#:,?\\-\n ]|<|/>|</|&#|;){0,60}") {
        let _ = read_text(Path::new("w"), &text, &ReadOptions::default());
    }
}
