use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{SysInfo, TransformationCatalog, TransformationKind, from_directory, load};
use crate::expand::ExpandEnv;
use crate::model::TransformationName;
use crate::profiles::Namespace;

fn loaded(name: &str, text: &str) -> Result<TransformationCatalog, String> {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join(name);
    std::fs::write(&path, text).expect("writable");
    let here = format!("{}/", dir.path().display());
    load(&path, None, &ExpandEnv::new([("WORD", "harbour")])).map_err(|e| e.to_string().replace(&here, ""))
}

const YAML: &str = r#"
pegasus: "5.0"
transformations:
- namespace: ns
  name: tool
  version: "1.0"
  metadata: {k: v, over: below}
  profiles: {env: {A: below, B: b}}
  requires: ["ns::helper:1.0", other]
  checksum: {sha256: abc}
  sites:
  - name: hpc
    pfn: file:///opt/${WORD}/tool
    type: installed
    os.release: "8"
    profiles: {env: {A: above}}
    metadata: {over: above}
  - {name: local, pfn: /src/tool, type: stageable, container: box, bypass: true}
containers:
- {name: box, type: docker, image: "docker:///x"}
"#;

#[test]
fn yaml_entries_are_read() {
    let catalog = loaded("transformations.yml", YAML).expect("reads");
    let [hpc, local] = catalog.entries.as_slice() else {
        panic!("two entries");
    };
    assert_eq!(hpc.name.to_string(), "ns::tool:1.0");
    assert_eq!(
        (hpc.pfn.as_str(), hpc.kind),
        ("/opt/harbour/tool", TransformationKind::Installed)
    );
    assert_eq!(hpc.profiles.get(Namespace::Env, "A"), Some("above"));
    assert_eq!(hpc.profiles.get(Namespace::Env, "B"), Some("b"));
    let keys: Vec<String> = hpc.metadata.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(
        keys,
        ["k=v", "checksum.type=sha256", "checksum.value=abc", "over=above"]
    );
    assert_eq!(hpc.sysinfo.os_release.as_deref(), Some("8"));
    assert_eq!(
        (local.pfn.as_str(), local.kind),
        ("file:///src/tool", TransformationKind::Stageable)
    );
    assert_eq!(local.container.as_deref(), Some("box"));
    assert_eq!(
        catalog.container("box").map(|c| c.image.as_str()),
        Some("docker:///x")
    );
    let requires: Vec<String> = catalog.compounds[0].1.iter().map(ToString::to_string).collect();
    assert_eq!(requires, ["ns::helper:1.0", "other"]);
}

#[test]
fn text_entries_are_read() {
    let text = r#"
# a comment
tr ns::tool:1.0 {
    site hpc {
        profile env "A" "a\"b\\c\d"   # behind
        pfn "/opt/${WORD}/tool"
        arch "x86_64" os "LINUX" osrelease "8"
        type "INSTALLED" container "box"
    }
    site local { pfn "/src/tool" type "STAGEABLE" }
    profile env "A" "below"
    profile env "B" "b"
    metadata "k" "v"
}
cont box { type "docker" image "docker:///x" image_site "hub" mount "/a:/b" profile env "X" "y" }
tr plain { site hpc { pfn "file:///bin/plain" } }
"#;
    let catalog = loaded("tc.txt", text).expect("reads");
    let [hpc, local, plain] = catalog.entries.as_slice() else {
        panic!("three entries");
    };
    assert_eq!(hpc.profiles.get(Namespace::Env, "A"), Some("a\"b\\c\\d"));
    assert_eq!(hpc.profiles.get(Namespace::Env, "B"), Some("b"));
    assert_eq!(
        (hpc.pfn.as_str(), hpc.sysinfo.os.as_str()),
        ("/opt/harbour/tool", "linux")
    );
    assert_eq!(hpc.metadata, [("k".to_owned(), "v".to_owned())]);
    assert_eq!(
        (local.pfn.as_str(), local.kind),
        ("file:///src/tool", TransformationKind::Stageable)
    );
    assert_eq!(
        (plain.pfn.as_str(), plain.name.to_string().as_str()),
        ("/bin/plain", "plain")
    );
    assert_eq!(
        catalog.container("box").map(|c| c.image.as_str()),
        Some("docker:///x")
    );
}

#[test]
fn invalid_text_is_refused() {
    for (text, message) in [
        (
            "tr a {\n  site b {\n    fpn \"/x\"\n  }\n}",
            "tc.txt:3:5: `fpn` is not known here\n  \
             hint: known are profile, metadata, pfn, arch, os, osrelease, osversion, type, container",
        ),
        (
            "tr a { site b { pfn \"/x } }",
            "tc.txt:1:21: the quoted text does not end on its line",
        ),
        (
            "tr a { site b { pfn \"/x\" }",
            "tc.txt:1:27: `}` is expected here, not the end of the file",
        ),
        ("tr a site", "tc.txt:1:6: `{` is expected here, not `site`"),
        (
            "trans a {}",
            "tc.txt:1:1: tr or cont is expected here, not `trans`",
        ),
        (
            "tr a { site b { } site c { pfn \"x\" type \"STAGEABLE\" } profile en \"A\" \"b\" }\ntr d { site e { pfn \"/x\" type \"x\" } }",
            "tc.txt:1:13: transformation a has no pfn at site b\n\
             tc.txt:1:32: transformation a: `x` is stageable, so it must be an absolute path or a URL\n\
             tc.txt:1:63: `en` is no namespace of profiles\n  \
             hint: namespaces are pegasus, env, dagman, condor, globus, selector, hints, metadata, stat\n\
             tc.txt:2:31: `x` is not a type of transformation, but INSTALLED or STAGEABLE",
        ),
    ] {
        assert_eq!(loaded("tc.txt", text).expect_err("wrong"), message);
    }
}

#[test]
fn invalid_yaml_is_refused() {
    let text = "transformations:\n\
        - {name: a, sites: [{name: x}, {pfn: /a}, {name: x, pfn: a, type: stageable}, {name: x, pfn: /a, type: static}]}\n\
        - {site: []}\n";
    assert_eq!(
        loaded("t.yml", text).expect_err("wrong"),
        "t.yml:2:21: the site of a transformation needs the key pfn\n\
         t.yml:2:32: the site of a transformation needs the key name\n\
         t.yml:2:58: transformation a: `a` is stageable, so it must be an absolute path or a URL\n\
         t.yml:2:104: `static` is not a type of transformation\n  hint: types are installed, stageable\n\
         t.yml:3:3: a transformation needs the key name\n\
         t.yml:3:4: Illegal key site for element transformation\n  \
         hint: did you mean `sites`? legal keys are namespace, name, version, metadata, profiles, hooks, \
         requires, checksum, sites"
    );
}

#[test]
fn the_type_is_detected_from_the_content() {
    assert_eq!(loaded("catalog", YAML).expect("reads").entries.len(), 2);
    assert_eq!(
        loaded("catalog", "tr a { site b { pfn \"/x\" } }")
            .expect("reads")
            .entries
            .len(),
        1
    );
    assert!(
        loaded("catalog", "<a/>")
            .expect_err("XML")
            .contains("cannot be XML")
    );
}

#[test]
fn files_of_a_directory_become_transformations() {
    let dir = tempfile::tempdir().expect("temporary directory");
    std::fs::create_dir(dir.path().join("sub")).expect("writable");
    for (name, mode) in [("b", 0o755), ("a", 0o644), ("sub/c", 0o700)] {
        let path = dir.path().join(name);
        std::fs::write(&path, "").expect("writable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("own file");
    }
    let catalog = from_directory(dir.path(), &SysInfo::default()).expect("reads");
    let names: Vec<&str> = catalog.entries.iter().map(|e| e.name.name.as_str()).collect();
    assert_eq!(names, ["b", "sub/c"]);
    assert_eq!(
        catalog.entries[0].pfn,
        format!("file://{}/b", dir.path().display())
    );
    assert_eq!(catalog.warnings.len(), 1);
    assert!(from_directory(&dir.path().join("none"), &SysInfo::default()).is_err());
}

#[test]
fn similar_names_are_found_and_entries_replaced() {
    let mut catalog = loaded("t.yml", YAML).expect("reads");
    assert_eq!(
        catalog.near(&TransformationName::parse("ns::tol:1.0")),
        Some("ns::tool:1.0".to_owned())
    );
    let own = loaded("tc.txt", "tr ns::tool:1.0 { site hpc { pfn \"/mine\" } }").expect("reads");
    catalog.extend(own);
    let name = TransformationName::parse("ns::tool:1.0");
    let pfns: Vec<&str> = catalog.entries(&name).map(|e| e.pfn.as_str()).collect();
    assert_eq!(pfns, ["file:///src/tool", "/mine"]);
}

proptest::proptest! {
    #[test]
    fn names_survive_a_round_trip(namespace in "[a-z]{0,4}", name in "[a-z]{1,4}", version in "[0-9.]{0,4}") {
        let given = |text: String| Some(text).filter(|t| !t.is_empty());
        let name = TransformationName { namespace: given(namespace), name, version: given(version) };
        proptest::prop_assert_eq!(TransformationName::parse(&name.to_string()), name);
    }

    #[test]
    fn any_text_gives_an_answer(text in "(tr |cont |site |pfn |profile |env |\"|\\\\|\\PC|[{}#\n ]|transformations: |- ){0,60}") {
        let _ = super::text::read(Path::new("t"), &text);
        let _ = crate::catalog::read_yaml(Path::new("t"), &text, super::yaml::read);
    }
}
