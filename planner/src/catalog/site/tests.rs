use std::path::Path;

use super::{DirectoryKind, Operation, SiteCatalog, load, load_from_properties};
use crate::catalog::SearchDirs;
use crate::expand::ExpandEnv;
use crate::profiles::Namespace;
use crate::properties::Properties;

fn loaded(name: &str, text: &str) -> Result<SiteCatalog, String> {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join(name);
    std::fs::write(&path, text).expect("writable");
    let here = format!("{}/", dir.path().display());
    load(&path, None, &ExpandEnv::new([("WORD", "harbour")])).map_err(|e| e.to_string().replace(&here, ""))
}

const YAML: &str = r#"
x-pegasus: {apiLang: python}
pegasus: "5.0"
sites:
- name: hpc
  arch: aarch64
  os.type: LINUX
  os.release: rhel
  os.version: 8
  directories:
  - type: sharedScratch
    path: /scratch/${WORD}
    sharedFileSystem: true
    fileServers:
    - {url: "file:///get", operation: get}
    - {url: "file:///scratch", operation: all}
  - {type: localStorage, path: /out, fileServers: []}
  grids:
  - {type: batch, contact: c, scheduler: slurm, jobtype: auxillary, idleNodes: 1, totalNodes: 1}
  - {type: batch, contact: c, scheduler: slurm, jobtype: compute, idleNodes: 64, totalNodes: 128}
  profiles: {env: {PEGASUS_HOME: /opt/pegasus}, pegasus: {queue: long, nodes: 2}}
- name: other
"#;

const XML: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<sitecatalog xmlns="http://pegasus.isi.edu/schema/sitecatalog" version="4.2">
  <site handle="hpc" arch="aarch64" os="LINUX" osrelease="rhel" osversion="8">
    <grid type="batch" contact="c" scheduler="slurm" jobtype="auxillary" idle-nodes="1" total-nodes="1"/>
    <grid type="batch" contact="c" scheduler="slurm" jobtype="compute" idle-nodes="64" total-nodes="128"/>
    <directory type="shared-scratch" path="/scratch/${WORD}">
      <file-server operation="get" protocol="file" url="file://" mount-point="/get"/>
      <file-server operation="all" url="file:///scratch"/>
    </directory>
    <directory type="local-storage" path="/out"/>
    <profile namespace="env" key="PEGASUS_HOME">/opt/pegasus</profile>
    <profile namespace="pegasus" key="queue">long</profile>
    <profile namespace="pegasus" key="nodes">2</profile>
    <metadata key="k">v</metadata>
  </site>
  <site handle="other"/>
</sitecatalog>
"#;

#[test]
fn yaml_and_xml_give_the_same_sites() {
    let yaml = loaded("sites.yml", YAML).expect("reads");
    let xml = loaded("sites.xml", XML).expect("reads");
    assert_eq!(yaml, xml);
    let site = yaml.get("hpc").expect("the site");
    assert_eq!(
        (site.sysinfo.arch.as_str(), site.sysinfo.os.as_str()),
        ("aarch64", "linux")
    );
    assert_eq!((site.idle_nodes, site.total_nodes), (Some(64), Some(128)));
    let scratch = &site.directories[&DirectoryKind::SharedScratch];
    assert_eq!(scratch.path, "/scratch/harbour");
    assert_eq!(scratch.url(Operation::Get), Some("file:///get"));
    assert_eq!(scratch.url(Operation::Put), Some("file:///scratch"));
    assert_eq!(
        site.profiles.get(Namespace::Env, "PEGASUS_HOME"),
        Some("/opt/pegasus")
    );
    assert_eq!(site.profiles.pegasus("nodes"), Some("2"));
    assert_eq!(yaml.get("other").map(|s| s.sysinfo.arch.as_str()), Some("x86_64"));
}

#[test]
fn invalid_yaml_is_refused() {
    let text = "sites:\n\
        - {name: a, arch: x64, direcories: []}\n\
        - {name: a, directories: [{type: scratch, path: /a}, {type: sharedScratch}]}\n\
        - {arch: x86_64}\n\
        - {name: b, directories: [{type: localScratch, path: /a}, {type: localScratch, path: /b, fileServers: [{operation: all}, {url: u, operation: write}]}]}\n";
    assert_eq!(
        loaded("sites.yml", text).expect_err("wrong"),
        "sites.yml:2:19: `x64` is not known as arch\n  \
         hint: it may be x86, x86_64, ppc, ppc_64, ppc64le, ia64, sparcv7, sparcv9, amd64, aarch64\n\
         sites.yml:2:24: Illegal key direcories for element site\n  \
         hint: did you mean `directories`? legal keys are name, arch, os.type, os.release, os.version, \
         directories, grids, profiles, metadata, x-tags\n\
         sites.yml:3:3: the site a is listed twice\n\
         sites.yml:3:34: `scratch` is not a type of directory\n  \
         hint: types are sharedScratch, sharedStorage, localScratch, localStorage\n\
         sites.yml:3:54: a directory needs the key path\n\
         sites.yml:4:3: a site needs the key name\n\
         sites.yml:5:59: the site has two directories of this type\n\
         sites.yml:5:104: a file server needs the key url\n\
         sites.yml:5:142: `write` is not an operation of a file server\n  \
         hint: operations are all, get, put"
    );
    assert_eq!(
        loaded("sites.yml", "site: []").expect_err("wrong"),
        "sites.yml:1:1: Illegal key site for element site catalog\n  \
         hint: did you mean `sites`? legal keys are pegasus, sites\n\
         sites.yml:1:1: a site catalog needs the key sites"
    );
}

#[test]
fn version_3_has_directories_of_the_head_node() {
    let text = r#"<?xml version="1.0" encoding="UTF-8"?>
<sitecatalog xmlns="http://pegasus.isi.edu/schema/sitecatalog" version="3.0">
  <site handle="hpc" arch="x86_64" os="LINUX" osrelease="" osversion="" glibc="">
    <grid type="gt5" contact="h/jobmanager-pbs" scheduler="PBS" jobtype="compute" idle-nodes="7" total-nodes="9"/>
    <grid type="gt5" contact="h/jobmanager-fork" scheduler="Fork" jobtype="auxillary" total-nodes="1"/>
    <head-fs>
      <scratch>
        <shared>
          <file-server protocol="gsiftp" url="gsiftp://h.example.org" mount-point="/export/scratch"/>
          <internal-mount-point mount-point="/scratch" free-size="1"/>
        </shared>
      </scratch>
      <storage>
        <local>
          <file-server protocol="file" url="file://" mount-point="/store"/>
        </local>
      </storage>
    </head-fs>
    <worker-fs><scratch><local><internal-mount-point mount-point="/tmp"/></local></scratch></worker-fs>
    <replica-catalog type="LRC" url="rlsn://h.example.org"/>
    <profile namespace="env" key="PEGASUS_HOME">/opt/pegasus</profile>
  </site>
</sitecatalog>
"#;
    let catalog = loaded("sites.xml", text).expect("reads");
    let site = catalog.get("hpc").expect("the site");
    assert_eq!((site.idle_nodes, site.total_nodes), (Some(7), Some(9)));
    assert_eq!(
        (site.sysinfo.os.as_str(), &site.sysinfo.os_release),
        ("linux", &None)
    );
    let scratch = &site.directories[&DirectoryKind::SharedScratch];
    assert_eq!(scratch.path, "/scratch");
    assert_eq!(
        scratch.url(Operation::Put),
        Some("gsiftp://h.example.org/export/scratch")
    );
    let storage = &site.directories[&DirectoryKind::LocalStorage];
    assert_eq!(storage.path, "/store");
    assert_eq!(storage.url(Operation::Get), Some("file:///store"));
    assert_eq!(site.directories.len(), 2);
    assert_eq!(
        site.profiles.get(Namespace::Env, "PEGASUS_HOME"),
        Some("/opt/pegasus")
    );
}

#[test]
fn invalid_xml_is_refused() {
    assert_eq!(
        loaded("sites.xml", "<sitecatalog version=\"2.0\"/>").expect_err("wrong"),
        "sites.xml:1:1: site catalogs of version 2.0 are no longer supported, only 3.x and 4.x"
    );
    assert_eq!(
        loaded(
            "sites.xml",
            "<sitecatalog version=\"3.0\"><site handle=\"a\"><head-fs>\n<scratch><shared/></scratch><scrap><shared/></scrap>\
             </head-fs></site></sitecatalog>"
        )
        .expect_err("wrong"),
        "sites.xml:2:10: the directory needs an element internal-mount-point with the attribute mount-point\n\
         sites.xml:2:36: Illegal element shared in element head-fs\n  \
         hint: legal elements are scratch and storage with shared and local"
    );
    assert_eq!(
        loaded("sites.xml", "<config/>").expect_err("wrong"),
        "sites.xml:1:1: not a site catalog: expected the element sitecatalog"
    );
}

#[test]
fn default_and_named_files_are_found() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let env = ExpandEnv::default();
    let mut properties = Properties::default();
    let none = load_from_properties(&properties, dir.path().into(), &env).expect("nothing to read");
    assert_eq!((none.path, none.catalog.sites.len()), (None, 0));
    std::fs::write(
        dir.path().join("sites.xml"),
        "<sitecatalog version=\"4.0\"><site handle=\"x\"/></sitecatalog>",
    )
    .expect("writable");
    let found = load_from_properties(&properties, dir.path().into(), &env).expect("reads");
    assert_eq!(found.path, Some(dir.path().join("sites.xml")));
    std::fs::write(dir.path().join("sites.yml"), "sites: [{name: '${y}'}]").expect("writable");
    assert!(load_from_properties(&properties, dir.path().into(), &env).is_err());
    properties.set("pegasus.catalog.site.expand", "false");
    let found = load_from_properties(&properties, dir.path().into(), &env).expect("reads");
    assert!(found.catalog.get("${y}").is_some());
    properties.set("pegasus.catalog.site.file", "other.yml");
    let found = load_from_properties(&properties, dir.path().into(), &env).expect("a warning");
    assert_eq!(found.path, None);
    assert_eq!(
        found
            .catalog
            .warnings
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        [format!(
            "{}/other.yml: no such catalog: the plan is made without it",
            dir.path().display()
        )]
    );
    std::fs::create_dir(dir.path().join("workflow")).expect("writable");
    properties.set("pegasus.catalog.site.file", "");
    let dirs = SearchDirs {
        working: &dir.path().join("workflow"),
        workflow: Some(dir.path()),
    };
    let found = load_from_properties(&properties, dirs, &env).expect("reads");
    assert_eq!(found.path, Some(dir.path().join("sites.yml")));
    properties.set("pegasus.catalog.site.file", "sites.yml");
    properties.set("pegasus.catalog.site", "JDBC");
    let error = load_from_properties(&properties, dir.path().into(), &env).expect_err("unknown");
    assert_eq!(
        error.to_string(),
        format!(
            "{}/sites.yml: `jdbc` is not a type of site catalog\n  hint: types are YAML, XML",
            dir.path().display()
        )
    );
}

#[test]
fn properties_add_profiles() {
    let mut catalog = loaded("sites.yml", YAML).expect("reads");
    let mut properties = Properties::default();
    properties.set("pegasus.catalog.site.sites.hpc.profiles.env.A", "b");
    properties.set("pegasus.catalog.site.sites.hpc.profiles.pegasus.queue", "short");
    properties.set("pegasus.catalog.site.sites.gone.profiles.env.A", "b");
    catalog.apply_properties(&properties).expect("right");
    let site = catalog.get("hpc").expect("the site");
    assert_eq!(site.profiles.get(Namespace::Env, "A"), Some("b"));
    assert_eq!(site.profiles.pegasus("queue"), Some("short"));
    assert_eq!(
        catalog.warnings[0].to_string(),
        "(command line): the property pegasus.catalog.site.sites.gone.profiles.env.A: \
         names the site gone, which is not in the site catalog"
    );
    properties.set("pegasus.catalog.site.sites.hpc.queue", "short");
    assert_eq!(
        catalog
            .apply_properties(&properties)
            .expect_err("wrong")
            .to_string(),
        "(command line): the property pegasus.catalog.site.sites.hpc.queue: must be SITE.profiles.NAMESPACE.KEY"
    );
}

proptest::proptest! {
    #[test]
    fn any_text_gives_an_answer(text in "(<sitecatalog|sites: |- |name: |<site|\\PC|[\\[\\]{}&*!|>'\"%@`#:,?\\-\n ]|/>|</){0,40}") {
        let _ = crate::catalog::read_yaml(Path::new("s"), &text, super::yaml::read);
        let _ = super::xml::read(Path::new("s"), &text);
    }
}
