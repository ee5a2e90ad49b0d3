use super::{ParsedWorkflow, edges, parse, raw, read};
use crate::model::{Arguments, FileKind, JobKind, Link, TransferFlag};
use crate::profiles::Namespace;

fn adag(version: &str, content: &str) -> String {
    format!("<adag name=\"x\" version=\"{version}\">{content}</adag>")
}

fn argument(version: &str, content: &str) -> String {
    let text = adag(
        version,
        &format!("<job id=\"A\" name=\"t\"><argument>{content}</argument></job>"),
    );
    raw(&read(&text), 0).to_owned()
}

#[test]
fn white_space_of_arguments_depends_on_the_version() {
    let text = "-a   \"q r\"\n       -i <file name=\"f.a\"/>   <file name=\"f.b\"/>  tail  ";
    assert_eq!(argument("3.6", text), "-a   \"q r\" -i f.a  f.b tail ");
    let adjacent = "<file name=\"f.b\"/><file name=\"f.c\"/>";
    assert_eq!(argument("3.6", adjacent), "f.bf.c");
    assert_eq!(argument("3.2", adjacent), "f.bf.c");
    assert_eq!(
        argument("3.1", "<filename file=\"b\"/><filename file=\"c\"/>"),
        "b c"
    );
    assert_eq!(
        argument("2.1", "-i <filename file=\"b\"/> -o <filename file=\"c\"/>"),
        "-i b -o c"
    );
    assert_eq!(argument("3.6", "<file name=\"b\"/> <file name=\"c\"/>"), "b c");
    assert_eq!(
        argument("3.6", " a &lt;b&gt; &amp; &#65;<![CDATA[ <c>]]>"),
        " a <b> & A <c>"
    );
    assert_eq!(argument("3.6", ""), "");
}

#[test]
fn line_breaks_end_words() {
    let text = adag(
        "3.6",
        "<job id=\"A\" name=\"t\"><argument> a\n  b </argument></job>",
    );
    let options = super::ReadOptions {
        preserve_linebreaks: true,
        ..super::ReadOptions::default()
    };
    let workflow = super::read_text(std::path::Path::new("w"), &text, &options)
        .expect("reads")
        .workflow;
    assert_eq!(workflow.jobs[0].arguments, Arguments::Raw(" a   b ".into()));
    let quoted = text.replace(" a\n  b ", "'a\n b'");
    let refused = super::read_text(std::path::Path::new("w"), &quoted, &options).expect_err("in quotes");
    assert_eq!(
        refused.to_string(),
        "w:1:30: the arguments of the job A contain a line break inside quotes or after a backslash, which a DAG cannot \
         express\n  hint: write the text to a file that the job reads"
    );
}

/// A workflow with every element of DAX 3.6.
const CURRENT_DIALECT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<!-- a comment -->
<adag xmlns="http://pegasus.isi.edu/schema/DAX" version="3.6" name="a.b c+d" index="2">
  <metadata key="purpose" type="string">sample &amp; test</metadata>
  <invoke when="at_end">/bin/echo done</invoke>
  <file name="inner"><pfn url="file:///d/inner" site="local"/><pfn url="/e/inner" site="undefined"/>
    <metadata key="k">v</metadata></file>
  <executable name="count" namespace="txt" version="2.0" arch="x86_64" os="LINUX" installed="false">
    <profile namespace="pegasus" key="cores">2</profile><metadata key="m">n</metadata>
    <pfn url="/usr/bin/wc" site="local"><profile namespace="pegasus" key="cores">3</profile></pfn>
  </executable>
  <transformation name="pipe"><uses name="count" namespace="txt" version="2.0" executable="true"/></transformation>
  <job id="A" name="t" namespace="n" version="1" node-label="l" level="1">
    <profile namespace="ENV" key="X">  spaced  </profile>
    <metadata key="a">b</metadata>
    <stdin name="inner" link="input"/><stdout name="o"/><stderr name="e"/>
    <uses name="inner" link="input" size="12"><metadata key="c">d</metadata></uses>
    <uses name="o" link="output" transfer="false" register="false"/>
    <uses name="e" link="output" optional="true"/>
    <uses name="x" link="output" transfer="optional"/>
    <uses name="c" link="checkpoint"/>
    <uses name="n" link="none"/>
    <uses name="helper" namespace="ns" version="1" link="input" executable="true"/>
    <invoke when="on_error">/bin/echo bad</invoke>
  </job>
  <dax id="B" file="sub.dax"><argument>--force</argument></dax>
  <dag id="C" file="sub.dag"/>
  <child ref="B"><parent ref="A" edge-label="l"/></child>
</adag>"#;

#[test]
#[expect(clippy::too_many_lines, reason = "one document with all that the dialect has")]
fn the_current_dialect_is_read() {
    let ParsedWorkflow { workflow, embedded } = parse(CURRENT_DIALECT);
    assert_eq!(
        (workflow.label.as_str(), workflow.index.as_str()),
        ("a_b_c_d", "2")
    );
    let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
    assert_eq!(
        workflow.metadata,
        [pair("purpose", "sample & test"), pair("wf.api", "xml")]
    );
    assert_eq!(workflow.hooks[0].when, "at_end");
    let replicas = embedded.replicas.as_ref().expect("replicas");
    let found = replicas.lookup("inner").expect("an entry");
    assert_eq!(found.replicas.len(), 2);
    assert_eq!(found.replicas[1].site, None);
    let transformations = embedded.transformations.as_ref().expect("transformations");
    let entry = &transformations.entries[0];
    assert_eq!(
        (entry.pfn.as_str(), entry.profiles.pegasus("cores")),
        ("file:///usr/bin/wc", Some("3"))
    );
    assert_eq!(entry.sysinfo.os, "linux");
    assert_eq!(transformations.compounds[0].1[0].to_string(), "txt::count:2.0");

    let a = &workflow.jobs[0];
    assert_eq!(a.transformation.to_string(), "n::t:1");
    assert_eq!(a.position.line, 13);
    assert_eq!(a.profiles.get(Namespace::Env, "X"), Some("spaced"));
    assert_eq!(a.stdout, workflow.files.find("o"));
    assert_eq!(a.hooks.len(), 1);
    let uses: Vec<_> = a
        .uses
        .iter()
        .map(|u| {
            (
                workflow.files.name(u.file),
                u.link,
                u.transfer,
                u.register,
                u.kind,
            )
        })
        .collect();
    assert_eq!(
        uses,
        [
            (
                "inner",
                Link::Input,
                TransferFlag::Mandatory,
                true,
                FileKind::Data
            ),
            ("o", Link::Output, TransferFlag::Not, false, FileKind::Data),
            ("e", Link::Output, TransferFlag::Optional, true, FileKind::Data),
            ("x", Link::Output, TransferFlag::Optional, true, FileKind::Data),
            (
                "c",
                Link::Checkpoint,
                TransferFlag::Optional,
                true,
                FileKind::Checkpoint
            ),
            ("n", Link::None, TransferFlag::Mandatory, true, FileKind::Data),
            (
                "ns::helper:1",
                Link::Input,
                TransferFlag::Mandatory,
                true,
                FileKind::Executable
            ),
        ]
    );
    assert_eq!(a.uses[0].size, Some(12));
    assert_eq!(a.uses[0].metadata, [pair("c", "d")]);
    let b = &workflow.jobs[1];
    assert_eq!(
        (b.kind, b.uses[0].link, b.file),
        (JobKind::SubWorkflow, Link::Input, Some(b.uses[0].file))
    );
    assert_eq!(workflow.jobs[2].kind, JobKind::SubDag);
    assert_eq!(edges(&workflow), ["A>B"]);
}

#[test]
fn the_old_dialect_is_read() {
    let workflow = read(
        r#"<adag xmlns="http://www.griphyn.org/chimera/DAX" version="2.0" count="1" index="0" name="old" jobCount="2">
  <child ref="B"><parent ref="A"/></child>
  <filename file="in" link="input"/>
  <job id="A" namespace="vds" name="first" version="1.0" level="2" dv-name="d" runtime="12.3">
    <argument>-i <filename file="in"/> -o <filename file="mid"/></argument>
    <execution key="site">hpc</execution>
    <uses file="in" link="input" dontRegister="true" dontTransfer="false" type="data"/>
    <uses file="mid" link="output" dontRegister="true" dontTransfer="true"/>
    <uses file="tmp" link="output" isTemporary="true" size="10.0"/>
  </job>
  <job id="B" name="second"><stdout file="out" link="output" varname="stdout"/></job>
</adag>"#,
    );
    let a = &workflow.jobs[0];
    assert_eq!(raw(&workflow, 0), "-i in -o mid");
    assert_eq!(a.profiles.get(Namespace::Selector, "execution.site"), Some("hpc"));
    let flags: Vec<_> = a.uses.iter().map(|u| (u.transfer, u.register)).collect();
    assert_eq!(
        flags,
        [
            (TransferFlag::Mandatory, false),
            (TransferFlag::Not, false),
            (TransferFlag::Not, false)
        ]
    );
    assert_eq!(a.uses[2].size, Some(10));
    assert_eq!(workflow.jobs[1].stdout, workflow.files.find("out"));
    assert_eq!(edges(&workflow), ["A>B"]);
}

#[test]
fn the_version_is_found_or_assumed() {
    let job = "<job id=\"A\" name=\"t\"/>";
    let located = read(&format!(
        "<adag name=\"x\" xmlns:xsi=\"i\" xsi:schemaLocation=\"http://p/DAX http://p/dax-3.3.xsd\">{job}</adag>"
    ));
    assert_eq!(located.version, "3.3");
    let silent = read(&format!("\n\n<adag name=\"x\">{job}</adag>"));
    assert_eq!(
        silent.warnings[0].to_string(),
        "w:3:1: the workflow has no version\n  hint: 3.6 is assumed; add version=\"3.6\" to adag"
    );
}
