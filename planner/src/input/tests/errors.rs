//! Exact messages for invalid workflows.

use super::{read, refused};

#[test]
fn illegal_and_unsupported_keys_are_reported() {
    assert_eq!(
        refused(
            "name: x\nprofiles: {}\njobs:\n- type: job\n  id: A\n  name: t\n  argument: [a]\n  uses:\n  - {lfn: f, type: input, executable: true, version: 1}\n"
        ),
        "w:2:1: Unsupported key profiles for element workflow\n  \
         hint: legal keys are pegasus, name, x-pegasus, metadata, siteCatalog, replicaCatalog, \
         transformationCatalog, hooks, jobs, jobDependencies\n\
         w:7:3: Illegal key argument for element jobs\n  \
         hint: did you mean `arguments`? legal keys are type, id, name, namespace, version, file, arguments, \
         stdin, stdout, stderr, uses, profiles, metadata, hooks, nodeLabel\n\
         w:9:27: Illegal key executable for element uses\n  \
         hint: legal keys are lfn, type, stageOut, registerReplica, optional, bypass, size, forPlanning, metadata\n\
         w:9:45: Unsupported key version for element uses\n  \
         hint: legal keys are lfn, type, stageOut, registerReplica, optional, bypass, size, forPlanning, metadata"
    );
}

#[test]
fn wrong_values_are_reported() {
    assert_eq!(
        refused(
            "name: x\njobs:\n\
             - {type: task, id: A, name: t}\n\
             - {id: B, name: t}\n\
             - {type: job, name: t}\n\
             - {type: job, id: C}\n\
             - {type: pegasusWorkflow, id: D}\n\
             - {type: job, id: E, name: t, uses: [{type: input}, {lfn: f}, {lfn: f, type: in}, {lfn: f, type: input, optional: maybe, size: big}]}\n\
             - {type: job, id: F, name: t, profiles: {pegasus: {memory: 2 XB}, envs: {A: b}}}\n\
             - {type: job, id: A, name: t, hooks: {shell: [{_on: fail, cmd: x}, {cmd: x}]}}\n\
             - text\n"
        ),
        "w:3:10: `task` is not a type of job\n  hint: types are job, pegasusWorkflow, condorWorkflow\n\
         w:4:3: job B has no type\n\
         w:5:3: job t has no id\n\
         w:6:3: job C has no name, which says the transformation it runs\n\
         w:7:3: job D has no file, which says the workflow it runs\n\
         w:8:38: an entry of uses needs the key lfn\n\
         w:8:53: an entry of uses needs the key type\n\
         w:8:78: `in` is not a type of file use\n  hint: types are input, output, inout, checkpoint\n\
         w:8:115: optional must be true or false, not `maybe`\n\
         w:8:128: size must be a whole number, not `big`\n\
         w:9:60: the profile pegasus::memory must be a whole number of MiB, not `2 XB`\n\
         w:9:67: `envs` is no namespace of profiles\n  \
         hint: did you mean env? namespaces are pegasus, env, dagman, condor, globus, selector, hints, metadata, stat\n\
         w:10:3: the job id A is used twice, first in line 3\n\
         w:10:53: `fail` is not an event of a hook\n  \
         hint: events are never, start, on_success, success, on_error, error, at_end, end, all\n\
         w:10:68: a shell hook needs the keys _on and cmd\n\
         w:11:3: a job must be a mapping, not text"
    );
}

#[test]
fn unknown_ids_in_dependencies_are_reported() {
    assert_eq!(
        refused(
            "name: x\njobs: [{type: job, id: first, name: t}]\njobDependencies:\n- id: first\n  children: [fist, other]\n- id: none\n  children:\n  - first\n"
        ),
        "w:5:14: the dependency first -> fist names the job fist, which does not exist\n  \
         hint: did you mean first?\n\
         w:5:20: the dependency first -> other names the job other, which does not exist\n\
         w:8:5: the dependency none -> first names the job none, which does not exist"
    );
}

#[test]
fn empty_workflows_are_refused() {
    assert_eq!(
        refused("name: x\njobs: []"),
        "w: the workflow has no jobs to plan"
    );
    assert_eq!(
        refused("jobs: [{type: job, id: A, name: t}]"),
        "w: the workflow has no name"
    );
    assert_eq!(
        refused("- a"),
        "w:1:1: not a workflow: expected a mapping with the keys name and jobs\n  \
         hint: a workflow is YAML in the format of Pegasus 5, or DAX XML"
    );
    assert_eq!(
        refused("name: ..\njobs: []"),
        "w:1:7: `..` cannot be the name of a workflow"
    );
}

#[test]
fn files_with_two_producers_are_refused() {
    let job = |id: &str| format!("- {{type: job, id: {id}, name: t, uses: [{{lfn: f, type: output}}]}}\n");
    assert_eq!(
        refused(&format!("name: x\njobs:\n{}{}", job("A"), job("B"))),
        "w:4:3: the file f is an output of two jobs, t_A and t_B\n  \
         hint: give each output a different name"
    );
    assert_eq!(
        refused(&format!(
            "name: x\njobs:\n{}{}{}{}",
            job("A"),
            job("B"),
            job("C"),
            job("D")
        )),
        "w:4:3: the file f is an output of 4 jobs, t_A, t_B and 2 more\n  \
         hint: give each output a different name"
    );
}

#[test]
fn cycles_are_named() {
    let text = "name: x\njobs:\n\
        - {type: job, id: Z, name: t}\n\
        - {type: job, id: A, name: t}\n\
        - {type: job, id: B, name: u, uses: [{lfn: f, type: output}]}\n\
        - {type: job, id: C, name: v, uses: [{lfn: f, type: input}]}\n\
        - {type: job, id: D, name: v}\n\
        jobDependencies: [{id: C, children: [A]}, {id: A, children: [B, D]}, {id: Z, children: [A]}]\n";
    assert_eq!(
        refused(text),
        "w:4:3: Abstract Workflow has cycles: t_A -> u_B -> v_C -> t_A\n  \
         hint: each of these jobs depends on the one before it, through a dependency or a file"
    );
}

#[test]
fn files_outside_the_work_directory_are_refused() {
    assert_eq!(
        refused(
            "name: x\njobs: [{type: job, id: A, name: t, uses: [{lfn: ../f, type: input}, {lfn: \"a\\nb\", type: input}, {lfn: '', type: input}, {lfn: a..b, type: input}]}]"
        ),
        "w:2:49: the file name `../f` leads out of the work directory\n\
         w:2:75: the file name `a\\nb` contains a control character\n\
         w:2:103: a file name is empty"
    );
}

#[test]
fn unknown_profile_keys_cause_warnings() {
    let workflow = read(
        "name: x\njobs:\n- {type: job, id: A, name: t, profiles: {pegasus: {pmc_request_cpu: 2, foo.expr: 1}}}\n\
         - {type: job, id: B, name: t, profiles: {pegasus: {pmc_request_cpu: 2}}}",
    );
    let warnings: Vec<String> = workflow.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "w:3:69: the profile pegasus::pmc_request_cpu is not known and has no effect\n  \
          hint: did you mean pegasus::pmc_request_cpus?",
            "w:3:82: the profile pegasus::foo.expr has no effect: there is no such expression"
        ]
    );
}

#[test]
fn broken_yaml_is_located() {
    assert_eq!(
        refused("name: bad\njobs:\n- type: job\n  name: [one\n  id: E1\n"),
        "w:5:5: Exception while parsing yaml file /w: illegal placement of ':' indicator"
    );
    assert_eq!(
        refused("name: x\n---\nname: y"),
        "w:2:1: Exception while parsing yaml file /w: a second document starts here"
    );
}

#[test]
fn broken_xml_is_located() {
    assert_eq!(
        refused("<?xml version=\"1.0\"?>\n<adag name=\"x\" version=\"3.6\">\n <job id=\"a\" name=\"t\">\n"),
        "w:4:1: Exception while parsing xml file /w: the file ends inside the element of line 3"
    );
    assert_eq!(
        refused("<adag name=\"x\" version=\"3.6\"><job></adag>"),
        "w:1:35: Exception while parsing xml file /w: ill-formed document: expected `</job>`, but `</adag>` was found"
    );
    assert_eq!(
        refused("<!DOCTYPE adag [<!ENTITY a \"&b;&b;\">]><adag name=\"x\" version=\"3.6\">&a;</adag>"),
        "w:1:1: Exception while parsing xml file /w: a document type (<!DOCTYPE>) is not accepted, remove it"
    );
    assert_eq!(
        refused("<adag name=\"x\" version=\"3.6\">\n&a;</adag>"),
        "w:2:1: Exception while parsing xml file /w: the entity &a; is not defined"
    );
    assert_eq!(
        refused(&"<a>".repeat(100)).split(": ").last(),
        Some("expected the element adag, not a")
    );
    assert_eq!(
        refused(&format!("<adag name=\"x\" version=\"3.6\">{}", "<a>".repeat(100))),
        "w:1:219: Exception while parsing xml file /w: elements are nested more than 64 deep"
    );
}

#[test]
fn too_many_attributes_are_refused() {
    let attributes: String = (0..1000).map(|n| format!(" a{n}=\"\"")).collect();
    assert_eq!(
        refused(&format!("<adag name=\"x\"{attributes}/>")),
        "w:1:1: Exception while parsing xml file /w: the element has more than 100 attributes"
    );
}

#[test]
fn wrong_dax_elements_are_reported() {
    assert_eq!(
        refused(
            "<adag name=\"x\" version=\"3.6\">\n<job id=\"A\"><use name=\"f\"/></job>\n\
             <job id=\"B\" name=\"t\"><uses link=\"in\"/><uses name=\"f\" link=\"input\" transfer=\"perhaps\"/></job>\n\
             <dax id=\"C\"/>\n<child ref=\"A\"><parent ref=\"X\"/></child>\n<job name=\"t\"/>\n</adag>"
        ),
        "w:2:1: job A needs the attribute name\n\
         w:2:13: Illegal element use in element job\n  \
         hint: legal elements are argument, profile, metadata, stdin, stdout, stderr, uses, invoke\n\
         w:3:22: `in` is not a link of a file\n  hint: links are input, output, inout, checkpoint, none\n\
         w:3:22: the element uses needs the attribute name\n\
         w:3:39: the attribute transfer must be true, false or optional, not `perhaps`\n\
         w:4:1: job C needs the attribute file\n\
         w:5:16: the dependency X -> A names the job X, which does not exist\n\
         w:6:1: job t has no id"
    );
    assert_eq!(
        refused("<adag name=\"x\" version=\"4.0\"><job id=\"A\" name=\"t\"/></adag>"),
        "w:1:1: DAX version 4.0 cannot be read, only versions 2.0 to 3.6"
    );
}
