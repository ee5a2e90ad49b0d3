//! Replica catalogs in YAML.

use super::{Replica, ReplicaCatalog, ReplicaEntry, Wanted};
use crate::catalog::transformation::yaml::checksum;
use crate::model::Position;
use crate::syntax::yaml::{Fields, Result, Yaml};

/// Reads the next node: a mapping with the key `replicas`.
pub(crate) fn read(yaml: &mut Yaml<'_>, wanted: Wanted<'_>) -> Result<ReplicaCatalog> {
    let mut catalog = ReplicaCatalog::default();
    let root = yaml.node()?;
    let position = root.position();
    if !yaml.is_mapping(&root, "a replica catalog")? {
        yaml.problem(position, "a replica catalog needs the key replicas");
        return Ok(catalog);
    }
    let mut fields = Fields::new("replica catalog", &["pegasus", "replicas"]);
    while let Some((key, _)) = yaml.field(&mut fields)? {
        if key == "pegasus" {
            yaml.skip_value()?;
        } else if yaml.sequence("replicas")? {
            while let Some(item) = yaml.item()? {
                let position = item.position();
                if yaml.is_mapping(&item, "a replica")? {
                    entry(yaml, position, &mut catalog, wanted)?;
                }
            }
        }
    }
    if fields.lacks("replicas") {
        yaml.problem(position, "a replica catalog needs the key replicas");
    }
    Ok(catalog)
}

fn entry(
    yaml: &mut Yaml<'_>,
    position: Position,
    catalog: &mut ReplicaCatalog,
    wanted: Wanted<'_>,
) -> Result<()> {
    let mut fields = Fields::new("replica", &["lfn", "pfns", "checksum", "metadata", "regex"]);
    let mut entry = ReplicaEntry::default();
    let mut lfn_position = position;
    let mut metadata = Vec::new();
    while let Some((key, _)) = yaml.field(&mut fields)? {
        match key {
            "lfn" => {
                if let Some(lfn) = yaml.text("the lfn of a replica")? {
                    lfn_position = lfn.position;
                    entry.lfn = lfn.text.into_owned();
                }
            }
            "pfns" => locations(yaml, &mut entry)?,
            "checksum" => checksum(yaml, &mut metadata)?,
            "metadata" => yaml.metadata(&mut metadata)?,
            _ => entry.regex = yaml.boolean("regex")?.unwrap_or(false),
        }
    }
    for key in ["lfn", "pfns"] {
        if fields.lacks(key) {
            yaml.problem(position, format!("a replica needs the key {key}"));
        }
    }
    if entry.lfn.is_empty() {
        return Ok(());
    }
    entry.metadata.extend(metadata);
    if let Err(error) = catalog.push_if(wanted, entry) {
        yaml.problem(lfn_position, error.to_string());
    }
    Ok(())
}

fn locations(yaml: &mut Yaml<'_>, entry: &mut ReplicaEntry) -> Result<()> {
    if !yaml.sequence("pfns")? {
        return Ok(());
    }
    while let Some(item) = yaml.item()? {
        let position = item.position();
        if !yaml.is_mapping(&item, "an entry of pfns")? {
            continue;
        }
        let mut fields = Fields::new("pfns", &["site", "pfn"]);
        let (mut site, mut pfn) = (None, None);
        while let Some((key, _)) = yaml.field(&mut fields)? {
            let text = yaml.text(key)?.map(|scalar| scalar.text.into_owned());
            if key == "site" {
                site = text;
            } else {
                pfn = text;
            }
        }
        match pfn {
            Some(pfn) => entry.replicas.push(Replica { pfn, site }),
            None if fields.lacks("pfn") => yaml.problem(position, "an entry of pfns needs the key pfn"),
            None => {}
        }
    }
    Ok(())
}
