use std::io::Write as _;
use std::path::Path;

use super::{
    DirectoryOptions, MAX_KEPT, Replica, ReplicaCatalog, Wanted, from_directory, load, load_from_properties,
};
use crate::expand::ExpandEnv;
use crate::model::{Files, Workflow};
use crate::properties::Properties;

fn loaded(name: &str, kind: Option<&str>, text: &str) -> Result<ReplicaCatalog, String> {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join(name);
    std::fs::write(&path, text).expect("writable");
    let here = format!("{}/", dir.path().display());
    load(&path, kind, &ExpandEnv::default(), Wanted::any(&Files::default()))
        .map_err(|e| e.to_string().replace(&here, ""))
}

fn pfns(catalog: &ReplicaCatalog, lfn: &str) -> Vec<String> {
    let found = catalog.lookup(lfn);
    assert_eq!(found.is_some(), catalog.knows(lfn), "{lfn}");
    found.map_or(Vec::new(), |f| f.replicas.into_iter().map(|r| r.pfn).collect())
}

const YAML: &str = r"
pegasus: '5.0'
replicas:
- lfn: obs_(\d+)_(\d+)\.dat
  pfns: [{site: local, pfn: '/data/[1]/[2]/[0][9]x[y'}]
  regex: true
- {lfn: 'plain_.*', pfns: [{site: local, pfn: '/first/[0]'}], regex: true}
- {lfn: 'pl.*', pfns: [{site: local, pfn: '/second/[0]'}], regex: true}
- lfn: plain_1
  pfns: [{site: local, pfn: /data/plain_1}, {pfn: 'file:///other'}]
  checksum: {sha256: abc}
  metadata: {k: v}
";

#[test]
fn exact_names_come_before_patterns() {
    let catalog = loaded("replicas.yml", None, YAML).expect("reads");
    assert_eq!(
        pfns(&catalog, "plain_1"),
        ["/data/plain_1", "file:///other", "/first/plain_1"]
    );
    assert_eq!(pfns(&catalog, "plain_2"), ["/first/plain_2"]);
    assert_eq!(pfns(&catalog, "plum"), ["/second/plum"]);
    assert_eq!(
        pfns(&catalog, "obs_2020_07.dat"),
        ["/data/2020/07/obs_2020_07.dat[9]x[y"]
    );
    for unknown in ["obs_2020_07.dat2", "xobs_2020_07.dat", "other"] {
        assert!(pfns(&catalog, unknown).is_empty(), "{unknown}");
    }
    let found = catalog.lookup("plain_1").expect("an entry");
    let metadata = found.metadata.expect("metadata");
    assert_eq!(metadata["checksum.type"], "sha256");
    assert_eq!(metadata["checksum.value"], "abc");
    assert_eq!(metadata["k"], "v");
    assert_eq!(found.replicas[1].site, None);
}

#[test]
fn text_lines_are_read() {
    let text = r#"
# a comment
a file:///d/a site="local"
"b c" "/d/b \"c\"" pool="hpc" kind="spare"   # behind
f\.(\d) /d/[1] regex="true" site=local
a /e/a
"#;
    let catalog = loaded("rc.txt", None, text).expect("reads");
    assert_eq!(pfns(&catalog, "a"), ["file:///d/a", "file:///e/a"]);
    let found = catalog.lookup("b c").expect("an entry");
    assert_eq!(
        found.replicas,
        [Replica {
            pfn: "file:///d/b \"c\"".into(),
            site: Some("hpc".into())
        }]
    );
    assert_eq!(pfns(&catalog, "f.7"), ["file:///d/7"]);
}

#[test]
fn cache_lines_are_read() {
    let text = "\"a b\" \"/d/a b\" site=\"local\" priority=\"10\" owner=\"me\"\n";
    let catalog = loaded("x.cache", Some("SimpleFile"), text).expect("reads");
    let found = catalog.lookup("a b").expect("an entry");
    assert_eq!(
        found.replicas,
        [Replica {
            pfn: "file:///d/a b".into(),
            site: Some("local".into())
        }]
    );
    let metadata: Vec<_> = found.metadata.into_iter().flatten().collect();
    assert_eq!(metadata, [(&"owner".to_owned(), &"me".to_owned())]);
}

#[test]
fn invalid_catalogs_are_refused() {
    assert_eq!(
        loaded("rc.txt", None, "a\nb \"/x\nc /x local\nd(?=x /x regex=\"true\"\n").expect_err("wrong"),
        "rc.txt:1:1: the line has no location for a\n\
         rc.txt:2:3: the quoted text does not end on its line\n\
         rc.txt:3:6: `local` is not an attribute, expected name=\"value\"\n\
         rc.txt:4:1: the pattern `d(?=x` is invalid: look-around, including look-ahead and look-behind, \
         is not supported"
    );
    assert_eq!(
        loaded(
            "r.yml",
            None,
            "replicas:\n- {lfn: a, pfn: /a}\n- {lfn: 'b(', pfns: [{site: x}], regex: true}\n"
        )
        .expect_err("wrong"),
        "r.yml:2:3: a replica needs the key pfns\n\
         r.yml:2:12: Illegal key pfn for element replica\n  \
         hint: did you mean `pfns`? legal keys are lfn, pfns, checksum, metadata, regex\n\
         r.yml:3:9: the pattern `b(` is invalid: unclosed group\n\
         r.yml:3:22: an entry of pfns needs the key pfn"
    );
    assert_eq!(
        loaded("r", Some("JDBCRC"), "").expect_err("wrong"),
        "r: `jdbcrc` is not a type of replica catalog\n  hint: types are YAML, File, Regex, SimpleFile, Meta"
    );
}

#[test]
fn a_large_catalog_keeps_what_the_workflow_uses() {
    let last = MAX_KEPT + 50;
    let line = |n: usize| format!("f{n} file:///data/${{PLACE}}/{:0>120}/{n} site=\"local\"\n", "");
    let text: String = (0..=last).map(line).collect();
    let yaml: String = (0..=last)
        .map(|n| format!("- {{lfn: f{n}, pfns: [{{pfn: /data/here/{n}}}]}}\n"))
        .collect();
    assert!(text.len() as u64 > super::text::PIECE * 2);
    let dir = tempfile::tempdir().expect("temporary directory");
    let env = ExpandEnv::new([("PLACE", "here")]);
    let mut workflow = Workflow::default();
    let used = [0, MAX_KEPT - 1, MAX_KEPT + 1, last];
    for n in used {
        workflow.files.intern(&format!("f{n}"));
    }
    for (name, text) in [("rc.txt", text), ("rc.yml", format!("replicas:\n{yaml}"))] {
        let path = dir.path().join(name);
        std::fs::write(&path, &text).expect("writable");
        let catalog = load(&path, None, &env, Wanted::by(&workflow)).expect("reads");
        assert_eq!(catalog.entries().len(), MAX_KEPT + 2, "{name}");
        for n in used {
            let found = pfns(&catalog, &format!("f{n}"));
            assert!(
                found[0].contains("/data/here/") && found[0].ends_with(&format!("/{n}")),
                "{found:?}"
            );
        }
        assert!(!catalog.knows(&format!("f{}", last - 1)));
    }
    let path = dir.path().join("rc.txt");
    let mut file = std::fs::File::options()
        .append(true)
        .open(&path)
        .expect("writable");
    file.write_all(b"f ${NOWHERE}\ng\n").expect("writable");
    let error = load(&path, Some("File"), &env, Wanted::by(&workflow)).expect_err("no such variable");
    let at = format!(":{}:3: the variable `${{NOWHERE}}`", last + 2);
    assert!(error.to_string().contains(&at), "{error}");
}

#[test]
fn files_of_a_directory_become_replicas() {
    let dir = tempfile::tempdir().expect("temporary directory");
    std::fs::create_dir(dir.path().join("sub")).expect("writable");
    std::fs::write(dir.path().join("sub/a"), "").expect("writable");
    std::fs::write(dir.path().join("b"), "").expect("writable");
    let catalog = from_directory(dir.path(), &DirectoryOptions::default()).expect("reads");
    assert_eq!(
        pfns(&catalog, "sub/a"),
        [format!("file://{}/sub/a", dir.path().display())]
    );
    let mut properties = Properties::default();
    properties.set("pegasus.catalog.replica", "Directory");
    let error = load_from_properties(
        &properties,
        Path::new("/").into(),
        &ExpandEnv::default(),
        Wanted::any(&Files::default()),
    )
    .expect_err("no name");
    assert_eq!(
        error.to_string(),
        "(command line): the property pegasus.catalog.replica: \
         Directory needs the property pegasus.catalog.replica.directory"
    );
    properties.set("pegasus.catalog.replica.directory", "sub");
    properties.set("pegasus.catalog.replica.directory.flat.lfn", "true");
    properties.set("pegasus.catalog.replica.directory.site", "hpc");
    properties.set("pegasus.catalog.replica.directory.url.prefix", "gsiftp://x");
    let flat = load_from_properties(
        &properties,
        dir.path().into(),
        &ExpandEnv::default(),
        Wanted::any(&Files::default()),
    )
    .expect("reads");
    let found = flat.catalog.lookup("a").expect("an entry");
    assert_eq!(
        found.replicas,
        [Replica {
            pfn: format!("gsiftp://x{}/sub/a", dir.path().display()),
            site: Some("hpc".into())
        }]
    );
}

proptest::proptest! {
    #[test]
    fn arbitrary_text_causes_no_panic(text in "(a|regex=\"true\"|site=|\"|\\\\|\\PC|[#\n \\[\\](){}*+?]|replicas: |- ){0,60}", lfn in "\\PC{0,5}") {
        let files = Files::default();
        let any = Wanted::any(&files);
        if let Ok(catalog) = super::text::read(Path::new("r"), &text, any) {
            let _ = catalog.lookup(&lfn);
        }
        let _ = crate::catalog::read_yaml(Path::new("r"), &text, |yaml| super::yaml::read(yaml, any));
    }
}
