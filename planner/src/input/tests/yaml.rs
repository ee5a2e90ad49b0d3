use super::{edges, parse, read, refused, words};
use crate::model::{FileKind, JobKind, Link, TransferFlag};
use crate::profiles::Namespace;

const COMPLETE: &str = r#"
jobDependencies:
- id: A
  children: [B, B]
x-pegasus: {apiLang: python, createdBy: me}
pegasus: 5.0.4
name: a lab/el
metadata: {author: "me", year: 2020}
hooks:
  shell:
  - {_on: end, cmd: /bin/mail -s done}
jobs:
- type: job
  id: A
  namespace: ns
  name: tool
  version: "1.0"
  nodeLabel: first
  stdin: in
  stdout: out
  stderr: err
  arguments: [1.50, 007, 1e3, true, null, ~, "", 'it''s', "tab\there", "-", two words]
  profiles:
    pegasus: {Memory: 100, runtime: 1.50}
    env: {A: "b", EMPTY: ""}
  metadata: {k: v}
  hooks: {shell: [{_on: error, cmd: x}]}
  uses:
  - {lfn: in, type: input, optional: true, bypass: true, forPlanning: true, size: 12}
  - {lfn: out, type: output, stageOut: false, registerReplica: false, metadata: {m: 1}}
  - {lfn: out, type: output}
  - {lfn: both, type: input}
  - {lfn: both, type: output, registerReplica: false}
  - {lfn: check, type: checkpoint}
- {type: job, id: B, name: tool, uses: [{lfn: out, type: input}]}
- {type: pegasusWorkflow, id: C, file: sub.yml, arguments: [--force]}
- {type: condorWorkflow, id: D, file: sub.dag}
"#;

#[test]
fn every_key_is_read() {
    let workflow = read(COMPLETE);
    assert_eq!(workflow.label, "a_lab_el");
    assert_eq!(
        (workflow.index.as_str(), workflow.version.as_str()),
        ("0", "5.0.4")
    );
    let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
    assert_eq!(
        workflow.metadata,
        [
            pair("author", "me"),
            pair("year", "2020"),
            pair("wf.api", "python")
        ]
    );
    assert_eq!(workflow.hooks.len(), 1);
    assert_eq!(workflow.hooks[0].command, "/bin/mail -s done");
    let a = &workflow.jobs[0];
    assert_eq!(a.transformation.to_string(), "ns::tool:1.0");
    assert_eq!((a.position.line, a.position.column), (13, 3));
    let name = |id: Option<crate::model::FileId>| id.map(|id| workflow.files.name(id));
    assert_eq!(
        (name(a.stdin), name(a.stdout), name(a.stderr)),
        (Some("in"), Some("out"), Some("err"))
    );
    assert_eq!(
        words(&workflow, 0),
        [
            "1.50",
            "007",
            "1e3",
            "true",
            "null",
            "~",
            "",
            "it's",
            "tab\there",
            "-",
            "two words"
        ]
    );
    assert_eq!(a.profiles.pegasus("memory"), Some("100"));
    assert_eq!(a.profiles.pegasus("runtime"), Some("1.50"));
    assert_eq!(a.profiles.get(Namespace::Env, "EMPTY"), Some(""));
    assert_eq!((a.metadata.len(), a.hooks.len()), (1, 1));
    assert_eq!(
        workflow.jobs.iter().map(|j| j.kind).collect::<Vec<_>>(),
        [
            JobKind::Compute,
            JobKind::Compute,
            JobKind::SubWorkflow,
            JobKind::SubDag
        ]
    );
    assert_eq!(workflow.jobs[2].file, workflow.files.find("sub.yml"));
    assert_eq!(workflow.jobs[2].transformation.name, "pegasus-plan");
    assert_eq!(workflow.jobs[3].transformation.name, "dagman");
    assert_eq!(edges(&workflow), ["A>B"]);
}

#[test]
fn uses_of_one_file_are_merged() {
    let workflow = read(COMPLETE);
    let uses = &workflow.jobs[0].uses;
    let names: Vec<&str> = uses.iter().map(|u| workflow.files.name(u.file)).collect();
    assert_eq!(names, ["in", "out", "both", "check"]);
    let [input, out, both, check] = uses.as_slice() else {
        panic!("four uses");
    };
    assert!(input.optional && input.bypass && input.for_planning);
    assert_eq!((input.link, input.size), (Link::Input, Some(12)));
    assert_eq!(
        (out.link, out.transfer, out.register),
        (Link::Output, TransferFlag::Not, false)
    );
    assert_eq!(out.metadata, [("m".to_owned(), "1".to_owned())]);
    assert_eq!((both.link, both.register), (Link::InOut, false));
    assert_eq!(
        (check.link, check.kind, check.optional),
        (Link::Checkpoint, FileKind::Checkpoint, true)
    );
}

#[test]
fn metadata_may_be_written_as_profiles() {
    let workflow = read(
        "name: x\njobs: [{type: job, id: A, name: t, metadata: {k: v}, profiles: {metadata: {k: w, l: 1}, env: {E: f}}}]",
    );
    let job = &workflow.jobs[0];
    let pairs: Vec<String> = job.metadata.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(pairs, ["k=v", "l=1"]);
    assert_eq!(job.profiles.len(), 1);
}

#[test]
fn jobs_with_the_same_transformation_share_its_name() {
    let workflow = read("name: x\njobs: [{type: job, id: A, name: t}, {type: job, id: B, name: t}]");
    assert!(std::sync::Arc::ptr_eq(
        &workflow.jobs[0].transformation,
        &workflow.jobs[1].transformation
    ));
}

#[test]
fn json_is_read_as_yaml() {
    let workflow =
        read(r#"{"name": "x", "jobs": [{"type": "job", "id": "A", "name": "t", "arguments": ["a", 1]}]}"#);
    assert_eq!(words(&workflow, 0), ["a", "1"]);
}

#[test]
fn embedded_catalogs_are_read() {
    let embedded = parse(
        "name: x\nsiteCatalog: {sites: [{name: here}]}\nreplicaCatalog: {replicas: [{lfn: f, pfns: [{site: here, pfn: /f}]}]}\n\
         transformationCatalog: {transformations: [{name: t, sites: [{name: here, pfn: /t}]}]}\n\
         jobs: [{type: job, id: A, name: t}]",
    )
    .embedded;
    assert!(embedded.sites.expect("sites").get("here").is_some());
    assert!(embedded.replicas.expect("replicas").knows("f"));
    assert_eq!(
        embedded.transformations.expect("transformations").entries.len(),
        1
    );
}

#[test]
fn anchors_and_aliases_are_resolved() {
    let workflow = read(
        "name: x\njobs:\n- &first\n  type: job\n  id: A\n  name: &n tool\n  arguments: &args [&a one, *a, two]\n  uses: &u []\n\
         - {type: job, id: B, name: *n, arguments: *args, uses: *u}",
    );
    assert_eq!(words(&workflow, 1), ["one", "one", "two"]);
    assert_eq!(workflow.jobs[1].transformation.name, "tool");
}

#[test]
fn alias_bombs_are_refused() {
    let mut text = String::from("name: x\nx-a: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n");
    for n in 1..12 {
        let item = format!("*a{}", n - 1);
        text.push_str(&format!("x-{n}: &a{n} [{}]\n", vec![item; 9].join(", ")));
    }
    assert_eq!(
        refused(&text).split(": ").last(),
        Some("the aliases of this file expand to more than 1000000 nodes")
    );
    assert_eq!(
        refused("x-a: &a [*a]"),
        "w:1:10: Exception while parsing yaml file /w: an alias is inside the node that it names"
    );
}

#[test]
fn deep_nesting_is_refused() {
    assert_eq!(
        refused(&format!("x-a: {}", "[".repeat(100_000))),
        "w:1:261: Exception while parsing yaml file /w: recursion limit exceeded"
    );
    assert_eq!(
        refused(&format!("x-a:\n{}", "- ".repeat(100_000))),
        "w:2:127: Exception while parsing yaml file /w: lists and mappings are nested more than 64 deep"
    );
}

#[test]
fn large_documents_are_refused() {
    let options = super::ReadOptions {
        document_megabytes: 0,
        ..super::ReadOptions::default()
    };
    let errors = super::read_text(std::path::Path::new("w"), "name: x", &options).expect_err("too large");
    assert_eq!(
        errors.to_string(),
        "w: the workflow has 0 MB, more than 0 MB\n  \
         hint: set the property pegasus.parser.document.size to more MB"
    );
}

#[test]
fn edges_follow_from_files_unless_switched_off() {
    let text = "name: x\njobs:\n\
        - {type: job, id: A, name: t, uses: [{lfn: f, type: output}, {lfn: g, type: output}]}\n\
        - {type: job, id: B, name: t, uses: [{lfn: f, type: input}, {lfn: g, type: input}]}\n\
        - {type: job, id: C, name: t, uses: [{lfn: h, type: inout}]}\n\
        jobDependencies: [{id: B, children: [C]}]\n";
    assert_eq!(edges(&read(text)), ["A>B", "B>C"]);
    let options = super::ReadOptions {
        data_dependencies: false,
        ..super::ReadOptions::default()
    };
    let workflow = super::read_text(std::path::Path::new("w"), text, &options)
        .expect("reads")
        .workflow;
    assert_eq!(edges(&workflow), ["B>C"]);
}
