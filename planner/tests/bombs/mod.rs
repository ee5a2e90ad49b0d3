//! Malicious inputs end in an error within bounds on memory and time: small ones that expand, and large
//! invalid ones.

use std::process::{Command, Output};

use crate::common::Case;

/// Limit on the planner's address space, in KiB.
const MAX_MEMORY_KIB: u32 = 500_000;
/// Limit on the planner's CPU time, in seconds. Wall time would be unreliable on a busy machine.
const MAX_CPU_SECONDS: u32 = 30;

const PLAIN: &str = "pegasus: \"5.0\"\nname: w\njobs:\n- {type: job, id: A, name: x}\n";

/// A workflow of one job with names of these lengths.
fn long(label: usize, id: usize, file: usize, argument: usize) -> String {
    let x = |n: usize| "x".repeat(n);
    format!(
        "pegasus: \"5.0\"\nname: {}\njobs:\n- type: job\n  id: {}\n  name: x\n  arguments: [{}]\n  uses:\n  - {{lfn: {}, \
         type: output}}\n",
        x(label),
        x(id),
        x(argument),
        x(file)
    )
}

fn aliases(key: &str) -> String {
    let mut text = format!("{key}: []\nx: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n");
    for n in 1..14 {
        text.push_str(&format!(
            "x{n}: &a{n} [{}]\n",
            vec![format!("*a{}", n - 1); 10].join(", ")
        ));
    }
    text
}

/// Plans with these files in place, within the limits.
fn plan(files: &[(&str, String)], line: &str) -> (Case, Output) {
    let case = Case::new(PLAIN);
    case.programs(&["x"]);
    for (name, text) in files {
        case.put(name, text);
    }
    let output = Command::new("/bin/sh")
        .arg("-c")
        .arg(format!(
            "ulimit -v {MAX_MEMORY_KIB}; ulimit -t {MAX_CPU_SECONDS}; exec \"$0\" --sites local --dir submit {line}"
        ))
        .arg(testutils::programs::path("pmc-plan"))
        .current_dir(case.path())
        .env("HOME", case.path())
        .output()
        .expect("the program runs");
    (case, output)
}

/// Plans with these files in place, which must fail. Returns standard error.
fn refused(files: &[(&str, String)], line: &str) -> String {
    let (case, output) = plan(files, line);
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    let head: String = printed.chars().take(2000).collect();
    assert!(
        matches!(output.status.code(), Some(1 | 2)),
        "{names:?} {line}: {}: {head}",
        output.status
    );
    assert!(
        printed.starts_with("pmc-plan: ") && printed.len() < 20_000,
        "{names:?}: {head}"
    );
    assert!(
        !case.path().join("submit").exists(),
        "{names:?}: something is left"
    );
    printed
}

#[test]
fn overlong_names_are_refused() {
    const MANY: usize = 2_000_000;
    for (workflow, part) in [
        (long(MANY, 1, 1, 1), "the name of the workflow"),
        (long(1, MANY, 1, 1), "the name of the job"),
        (long(1, 1, MANY, 1), "the file name"),
        (long(1, 1, 300, 1), "a part of a file name"),
        (long(1, 1, 1, MANY), "the limit for one argument"),
    ] {
        let printed = refused(&[("workflow.yml", workflow)], "");
        assert!(printed.contains(part), "{part}: {printed}");
    }
}

#[test]
fn entities_and_aliases_do_not_expand() {
    let entities: String = (0..14)
        .map(|n| format!("<!ENTITY e{} \"{}\">", n + 1, format!("&e{n};").repeat(10)))
        .collect();
    let dax = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE adag [<!ENTITY e0 \"0123456789\">{entities}]>\n<adag \
         version=\"3.6\" name=\"&e14;\"><job id=\"A\" name=\"x\"/></adag>\n"
    );
    let sites = dax
        .replace("<adag", "<sitecatalog")
        .replace("adag", "sitecatalog");
    assert!(refused(&[("workflow.yml", dax)], "").contains("DOCTYPE"));
    let printed = refused(&[("s.xml", sites)], "-Dpegasus.catalog.site.file=s.xml");
    assert!(printed.contains("DOCTYPE"), "{printed}");
    let printed = refused(&[("workflow.yml", aliases("jobs"))], "");
    assert!(printed.contains("aliases"), "{printed}");
    for (catalog, key) in [
        ("site", "sites"),
        ("transformation", "transformations"),
        ("replica", "replicas"),
    ] {
        let printed = refused(
            &[("c.yml", aliases(key))],
            &format!("-Dpegasus.catalog.{catalog}.file=c.yml"),
        );
        assert!(printed.contains("aliases"), "{catalog}: {printed}");
    }
    let references: String = (1..14)
        .map(|n| format!("a{n} = {}\n", format!("${{a{}}}", n - 1).repeat(10)))
        .collect();
    let printed = refused(&[("p", format!("a0 = 0123456789\n{references}"))], "--conf p");
    assert!(printed.contains("references"), "{printed}");
}

#[test]
fn deep_nesting_is_refused() {
    const DEEP: usize = 100_000;
    let xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
    for (name, text, line) in [
        ("workflow.yml", format!("name: w\njobs: {}", "[".repeat(DEEP)), ""),
        (
            "workflow.yml",
            format!(
                "{xml}<adag version=\"3.6\" name=\"w\">{}",
                "<job id=\"A\" name=\"x\">".repeat(DEEP)
            ),
            "",
        ),
        (
            "s.yml",
            format!("sites: {}", "[".repeat(DEEP)),
            "-Dpegasus.catalog.site.file=s.yml",
        ),
        (
            "tc.yml",
            format!("transformations: {}", "[".repeat(DEEP)),
            "-Dpegasus.catalog.transformation.file=tc.yml",
        ),
        (
            "rc.yml",
            format!("replicas:\n{}", "- ".repeat(DEEP)),
            "-Dpegasus.catalog.replica.file=rc.yml",
        ),
        (
            "p",
            format!("a = {}", "${".repeat(DEEP)),
            "--conf p -Dpegasus.transfer.refiner=None",
        ),
        (
            "s.xml",
            format!(
                "{xml}<sitecatalog version=\"4.0\">{}",
                "<site handle=\"a\">".repeat(DEEP)
            ),
            "-Dpegasus.catalog.site.file=s.xml",
        ),
        // One line, so that columns become large numbers.
        (
            "tc.txt",
            format!("tr a {}", "{ site b ".repeat(DEEP)),
            "-Dpegasus.catalog.transformation.file=tc.txt",
        ),
        (
            "rc.txt",
            format!("f /f {}", "site=\"a\" ".repeat(DEEP)) + "site",
            "-Dpegasus.catalog.replica.file=rc.txt",
        ),
    ] {
        refused(&[(name, text)], line);
    }
}

/// Messages about words of millions of letters stay readable.
#[test]
fn overlong_words_are_refused_with_a_readable_message() {
    let large = "x".repeat(2_000_000);
    let xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
    for (name, text, line) in [
        ("workflow.yml", format!("{PLAIN}{large}: 1\n"), ""),
        (
            "workflow.yml",
            PLAIN.replace("name: x", &format!("name: {large}")),
            "",
        ),
        (
            "workflow.yml",
            PLAIN.replace("type: job", &format!("type: {large}")),
            "",
        ),
        (
            "workflow.yml",
            format!("{xml}<adag version=\"3.6\" name=\"w\"><{large}/></adag>"),
            "",
        ),
        (
            "workflow.yml",
            format!("{xml}<adag version=\"{large}\" name=\"w\"><job id=\"A\" name=\"x\"/></adag>"),
            "",
        ),
        (
            "s.yml",
            format!("pegasus: \"5.0\"\nsites: [{{name: local, {large}: 1}}]\n"),
            "-Dpegasus.catalog.site.file=s.yml",
        ),
        (
            "s.xml",
            format!(
                "{xml}<sitecatalog version=\"4.0\"><site handle=\"a\"><directory type=\"{large}\"/></site></sitecatalog>"
            ),
            "-Dpegasus.catalog.site.file=s.xml",
        ),
        (
            "tc.yml",
            format!(
                "pegasus: \"5.0\"\ntransformations: [{{name: t, sites: [{{name: a, type: {large}, pfn: /x}}]}}]\n"
            ),
            "-Dpegasus.catalog.transformation.file=tc.yml",
        ),
        (
            "tc.txt",
            format!("tr a {{ site b {{ {large} \"1\" }} }}"),
            "-Dpegasus.catalog.transformation.file=tc.txt",
        ),
        (
            "rc.yml",
            format!("pegasus: \"5.0\"\nreplicas: [{{lfn: a, {large}: 1}}]\n"),
            "-Dpegasus.catalog.replica.file=rc.yml",
        ),
        (
            "rc.txt",
            format!("f /f {large}"),
            "-Dpegasus.catalog.replica.file=rc.txt",
        ),
        ("p", format!("pegasus.transfer.refiner = {large}\n"), "--conf p"),
    ] {
        refused(&[(name, text)], line);
    }
}

#[test]
fn what_has_many_parts_costs_what_it_is_long() {
    const MANY: usize = 60_000;
    let workflow = |uses: &str| {
        format!("pegasus: \"5.0\"\nname: w\njobs:\n- type: job\n  id: A\n  name: x\n  uses:\n{uses}")
    };
    // Optional inputs that are missing.
    let missing = |n| format!("  - {{lfn: f{n}, type: input, optional: true}}\n");
    let missing: String = (0..MANY).map(missing).collect();
    // A file with much metadata, in the workflow and in the replica catalog.
    let metadata = |prefix: &str, indent: &str| -> String {
        (0..MANY / 2)
            .map(|n| format!("{indent}{prefix}{n}: v\n"))
            .collect()
    };
    let file = format!(
        "  - lfn: f\n    type: input\n    metadata:\n{}",
        metadata("a", "      ")
    );
    let replicas = format!(
        "pegasus: \"5.0\"\nreplicas:\n- lfn: f\n  pfns:\n  - {{site: local, pfn: /d/f}}\n  metadata:\n{}",
        metadata("b", "    ")
    );
    for (uses, more) in [(missing, None), (file, Some(("replicas.yml", replicas)))] {
        let files: Vec<(&str, String)> = [("workflow.yml", workflow(&uses))]
            .into_iter()
            .chain(more)
            .collect();
        let (_, output) = plan(&files, "");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{}: {}",
            output.status,
            said.chars().take(2000).collect::<String>()
        );
    }
}
