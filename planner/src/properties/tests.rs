use super::*;

fn write(dir: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, text).expect("writable");
    path
}

#[test]
fn messages_show_no_secret() {
    let sources = PropertySources {
        command_line: vec![
            "x.password=xyzzy".into(),
            "pegasus.catalog.replica.db.url=jdbc:mysql://u:xyzzy@h/d".into(),
        ],
        ..PropertySources::default()
    };
    let properties = Properties::load(&sources).expect("properties");
    let warnings: Vec<String> = properties.warnings().iter().map(ToString::to_string).collect();
    assert!(warnings.concat().contains("-Dx.password=XXX"), "{warnings:?}");
    let error = properties.bad_value("pegasus.catalog.replica.db.url", "must be of SQLite");
    assert!(
        error.to_string().contains("not `jdbc:mysql://u:XXX@h/d`"),
        "{error}"
    );
    assert!(!format!("{warnings:?}{error}").contains("xyzzy"));
}

#[test]
fn later_sources_win() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut sources = PropertySources {
        system_file: Some(write(
            &dir,
            "sys",
            "pegasus.a=1\npegasus.b=1\npegasus.c=1\npegasus.d=1\npegasus.e=1\npegasus.f=1",
        )),
        user_file: Some(write(
            &dir,
            "user",
            "pegasus.b=2\npegasus.c=2\npegasus.d=2\npegasus.e=2\npegasus.f=2",
        )),
        working_file: Some(write(
            &dir,
            "work",
            "pegasus.c=3\npegasus.d=3\npegasus.e=3\npegasus.f=3",
        )),
        conf_file: Some(write(&dir, "conf", "pegasus.d=4\npegasus.e=4\npegasus.f=4")),
        environment: vec![
            ("_PEGASUS__E".into(), "5".into()),
            ("_PEGASUS__F".into(), "5".into()),
            ("_PEGASUS__CATALOG__SITE__FILE".into(), "s".into()),
            ("PEGASUS__A".into(), "no".into()),
        ],
        command_line: vec!["pegasus.f=6".into()],
        ..PropertySources::default()
    };
    let properties = Properties::load(&sources).expect("loads");
    let values: Vec<&str> = ["a", "b", "c", "d", "e", "f"]
        .iter()
        .filter_map(|key| properties.get(&format!("pegasus.{key}")))
        .collect();
    assert_eq!(values, ["1", "2", "3", "4", "5", "6"]);
    assert_eq!(properties.get("pegasus.catalog.site.file"), Some("s"));
    sources.user_file = Some(dir.path().join("missing"));
    assert!(Properties::load(&sources).is_ok());
    sources.conf_file = Some(PathBuf::from("missing.properties"));
    assert_eq!(
        Properties::load(&sources).expect_err("missing").to_string(),
        "missing.properties: cannot be read: No such file or directory"
    );
}

#[test]
fn references_are_replaced() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let text =
        "pegasus.x = ${pegasus.y}/${user.home}${NONE}\npegasus.y = y-${pegasus.z}\npegasus.l = ${pegasus.l}";
    let sources = PropertySources {
        conf_file: Some(write(&dir, "conf", text)),
        environment: vec![("HOME".into(), "h".into())],
        command_line: vec!["pegasus.z=z".into()],
        ..PropertySources::default()
    };
    let properties = Properties::load(&sources).expect("loads");
    assert_eq!(properties.get("pegasus.x"), Some("y-z/h"));
    assert_eq!(properties.get("pegasus.l"), Some(""));
}

#[test]
fn what_the_planner_has_added_to_a_plan_is_no_mistake() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let text = "dagman.maxpre = 1\npegasus.home.bindir = /bin\ndagman.maxpost = 1\n";
    let warnings = |is_conf_of_plan| {
        let sources = PropertySources {
            conf_file: Some(write(&dir, "conf", text)),
            is_conf_of_plan,
            ..PropertySources::default()
        };
        Properties::load(&sources).expect("loads").warnings().len()
    };
    assert_eq!((warnings(false), warnings(true)), (3, 1));
}

#[test]
fn references_are_limited_in_memory_and_time() {
    let endless = format!("pegasus.a = {}", "${pegasus.a}".repeat(100));
    let mut doubling = String::from("pegasus.b0 = 0123456789\n");
    for n in 1..200 {
        doubling.push_str(&format!(
            "pegasus.b{n} = ${{pegasus.b{}}}${{pegasus.b{}}}\n",
            n - 1,
            n - 1
        ));
    }
    for text in [endless, doubling] {
        let error = Properties::parse(Path::new("p"), &text).expect_err("too much");
        assert!(error.to_string().contains("is one circular?"), "{error}");
    }
}

#[test]
fn all_invalid_settings_are_reported() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let conf = write(&dir, "conf", "\n pegasus.memory = 2 XB");
    let sources = PropertySources {
        conf_file: Some(conf.clone()),
        command_line: vec!["pegasus.a".into()],
        ..PropertySources::default()
    };
    let errors = Properties::load(&sources).expect_err("wrong");
    assert_eq!(
        errors.to_string(),
        format!(
            "-Dpegasus.a: no value\n  \
             hint: a property is set by -Dkey=value\n\
             {}:2:2: the profile pegasus::memory must be a whole number of MiB, not `2 XB`",
            conf.display()
        )
    );
}

#[test]
fn properties_give_profiles() {
    let mut properties = Properties::default();
    for (key, value) in [
        ("env.PATH", "/bin"),
        ("pegasus.memory", "100"),
        ("pegasus.code.generator", "PMC"),
        ("dagman.retry", "2"),
        ("condor.priority", "1"),
        ("globus.queue", "q"),
    ] {
        properties.set(key, value);
    }
    let profiles = properties.profiles();
    let all: Vec<_> = profiles
        .iter()
        .map(|(n, k, v)| format!("{}.{k}={v}", n.as_str()))
        .collect();
    assert_eq!(
        all,
        [
            "pegasus.memory=100",
            "env.PATH=/bin",
            "dagman.retry=2",
            "condor.priority=1",
            "globus.queue=q"
        ]
    );
}

#[test]
fn typed_values_are_checked() {
    let mut properties = Properties::default();
    properties.set("pegasus.register", "No");
    properties.set("pegasus.parser.document.size", "many");
    assert_eq!(properties.get_bool("pegasus.register", true), Ok(false));
    assert_eq!(properties.get_bool("pegasus.other", true), Ok(true));
    let error = properties
        .get_number("pegasus.parser.document.size")
        .expect_err("no number");
    assert_eq!(
        error.to_string(),
        "(command line): the property pegasus.parser.document.size must be a whole number, not `many`"
    );
}
