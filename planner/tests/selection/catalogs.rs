//! Types of replica catalogs.

use rusqlite::Connection;

use super::{one_job, urls};
use crate::common::Case;

const TABLES: &str = "CREATE TABLE rc_lfn (lfn_id INTEGER PRIMARY KEY, lfn VARCHAR(245) UNIQUE);
    CREATE TABLE rc_pfn (pfn_id INTEGER PRIMARY KEY, lfn_id INTEGER, pfn VARCHAR(245), site VARCHAR(245));
    CREATE TABLE rc_meta (lfn_id INTEGER, \"key\" VARCHAR(245), value VARCHAR(245));";

/// A database with the file `in` and `others` more files.
fn database(case: &Case, name: &str, others: usize) -> rusqlite::Result<()> {
    let mut db = Connection::open(case.path().join(name))?;
    let rows = db.transaction()?;
    rows.execute_batch(TABLES)?;
    for n in 0..others {
        rows.execute("INSERT INTO rc_lfn (lfn) VALUES (?1)", [format!("other{n}")])?;
    }
    rows.execute("INSERT INTO rc_lfn VALUES (9999, 'in')", [])?;
    rows.execute(
        "INSERT INTO rc_pfn (lfn_id, pfn, site) VALUES (9999, 'http://h/in', 'web'), (9999, '/db/in', 'local')",
        [],
    )?;
    rows.execute("INSERT INTO rc_meta VALUES (9999, 'size', '7')", [])?;
    rows.commit()
}

const JDBCRC: &str =
    "--sites local -Dpegasus.catalog.replica=JDBCRC -Dpegasus.catalog.replica.db.driver=sqlite";

#[test]
fn sqlite_databases_are_read() -> Result<(), Box<dyn std::error::Error>> {
    let case = one_job();
    database(&case, "small.db", 1)?;
    database(&case, "large.db", 100)?;
    for name in ["small.db", "large.db"] {
        let plan = case.plan(&format!(
            "{JDBCRC} -Dpegasus.catalog.replica.db.url=jdbc:sqlite:{name}"
        ))?;
        assert_eq!(urls(&plan, "in"), ["/db/in", "http://h/in"], "{name}");
        let order = &plan.orders("stage_in_local_local_0_0")[0];
        assert_eq!(order["attributes"]["size"], "7");
    }
    let absolute = case.path().join("small.db").display().to_string();
    case.plan(&format!(
        "{JDBCRC} -Dpegasus.catalog.replica.db.url=sqlite://{absolute}"
    ))?;
    Ok(())
}

#[test]
fn unusable_databases_are_refused() -> Result<(), Box<dyn std::error::Error>> {
    let case = one_job();
    Connection::open(case.path().join("empty.db"))?.execute_batch("CREATE TABLE x (y)")?;
    case.put(
        "text.db",
        "not a database, but long enough to have the header of one",
    );
    for (url, expected) in [
        ("", "JDBCRC needs the property pegasus.catalog.replica.db.url"),
        (
            "jdbc:mysql://h/db",
            "must be jdbc:sqlite:PATH, other databases are not supported",
        ),
        ("jdbc:sqlite:none.db", "none.db: no such database"),
        (
            "jdbc:sqlite:text.db",
            "text.db: cannot be read as a replica catalog",
        ),
        (
            "jdbc:sqlite:empty.db",
            "must have the tables rc_lfn, rc_pfn and rc_meta",
        ),
    ] {
        let message = case.fail(&format!("{JDBCRC} -Dpegasus.catalog.replica.db.url={url}"));
        assert!(message.contains(expected), "{url}: {message}");
    }
    assert!(!case.path().join("none.db").exists(), "no file is created");
    let message = case.fail(&format!("{JDBCRC} -Dpegasus.catalog.replica.db.driver=Postgres"));
    assert!(
        message.contains("must be sqlite, other databases are not supported"),
        "{message}"
    );
    Ok(())
}

#[test]
fn catalogs_can_be_combined() -> Result<(), Box<dyn std::error::Error>> {
    let case = one_job();
    database(&case, "in.db", 1)?;
    case.put("a.rc", "in /text/in site=\"local\"\n");
    case.put("files/in", "");
    let line = "--sites local -Dpegasus.catalog.replica=MRC -Dpegasus.catalog.replica.mrc.a=File \
                -Dpegasus.catalog.replica.mrc.a.file=a.rc -Dpegasus.catalog.replica.mrc.b=JDBCRC \
                -Dpegasus.catalog.replica.mrc.b.db.url=jdbc:sqlite:in.db -Dpegasus.catalog.replica.mrc.c=Directory \
                -Dpegasus.catalog.replica.mrc.c.directory=files";
    let plan = case.plan(line)?;
    let directory = format!("file://{}/files/in", case.path().display());
    assert_eq!(
        urls(&plan, "in"),
        ["file:///text/in", directory.as_str(), "/db/in", "http://h/in"]
    );
    assert!(plan.planned.submit_dir.join("catalogs/a.rc").exists());
    let message = case.fail(&format!(
        "{line} -Dpegasus.catalog.replica.mrc.d=MRC -Dpegasus.catalog.replica.mrc.e=Fle"
    ));
    assert!(message.contains("cannot be MRC inside another one"), "{message}");
    assert!(
        message.contains("did you mean File? types are YAML, File,"),
        "{message}"
    );
    let message = case.fail("--sites local -Dpegasus.catalog.replica=mrc");
    assert!(
        message.contains("MRC needs catalogs: pegasus.catalog.replica.mrc.NAME"),
        "{message}"
    );
    Ok(())
}

#[test]
fn metadata_without_a_location_is_not_a_replica() {
    let case = one_job();
    case.put(
        "all.meta",
        "[{\"_id\": \"in\", \"_attributes\": {\"size\": \"1\"}}, {\"_id\": \"end\"}]",
    );
    let message =
        case.fail("--sites local -Dpegasus.catalog.replica=Meta -Dpegasus.catalog.replica.file=all.meta");
    assert!(
        message.contains("Can't determine a location to transfer input file for lfn in"),
        "{message}"
    );
}

#[test]
fn outputs_registered_by_an_earlier_run_are_reused() -> Result<(), Box<dyn std::error::Error>> {
    let case = one_job();
    case.replicas(&["in"]);
    let first = case.plan("--sites local --output-sites local --dir first")?;
    let run = first.planned.submit_dir.display().to_string();
    let line = format!("--sites local --output-sites local --dir second --reuse {run}");
    let plan = case.plan(&line)?;
    assert_eq!(plan.planned.counts.deleted, 0);
    let warnings = plan.warnings().join("\n");
    assert!(warnings.contains("the run has registered nothing"), "{warnings}");
    // Register as pegasus-rc-client does.
    let db = Connection::open(first.planned.submit_dir.join("w-0.replicas.db"))?;
    db.execute_batch(TABLES)?;
    db.execute_batch(
        "INSERT INTO rc_lfn VALUES (1, 'end'); INSERT INTO rc_pfn VALUES (1, 1, 'file:///kept/end', 'local');",
    )?;
    let plan = case.plan(&line)?;
    assert_eq!(plan.planned.counts.deleted, 1);
    assert_eq!(
        plan.orders("stage_out_local_local_1000_0")[0]["src_urls"][0]["url"],
        "file:///kept/end"
    );
    // The directory may have been moved since.
    let moved = case.path().join("moved");
    std::fs::rename(&first.planned.submit_dir, &moved)?;
    let plan = case.plan("--sites local --output-sites local --dir third --reuse moved")?;
    assert_eq!(plan.planned.counts.deleted, 1);
    let message = case.fail("--sites local --reuse second,nothing");
    assert!(message.contains("second: is not a submit directory"), "{message}");
    assert!(
        message.contains("nothing: is not a submit directory"),
        "{message}"
    );
    Ok(())
}
