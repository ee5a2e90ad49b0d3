//! Transformation catalogs in YAML.

use pmc_job_files::ContainerKind;

use super::container::Draft;
use super::{TransformationCatalog, TransformationEntry, TransformationKind, normal_pfn};
use crate::catalog::site::SysInfo;
use crate::catalog::site::yaml::system;
use crate::keys::Checker;
use crate::model::{Hook, Position, TransformationName};
use crate::profiles::Profiles;
use crate::syntax::yaml::common::Pairs;
use crate::syntax::yaml::{Fields, Result, Scalar, Yaml};

/// Reads the next node: a mapping with the key `transformations`.
pub(crate) fn read(yaml: &mut Yaml<'_>) -> Result<TransformationCatalog> {
    let mut catalog = TransformationCatalog::default();
    let mut checker = Checker::default();
    let root = yaml.node()?;
    let position = root.position();
    if !yaml.is_mapping(&root, "a transformation catalog")? {
        yaml.problem(position, "a transformation catalog needs the key transformations");
        return Ok(catalog);
    }
    let mut fields = Fields::new(
        "transformation catalog",
        &["pegasus", "transformations", "containers"],
    );
    while let Some((key, _)) = yaml.field(&mut fields)? {
        match key {
            "transformations" => {
                if !yaml.sequence(key)? {
                    continue;
                }
                while let Some(item) = yaml.item()? {
                    let position = item.position();
                    if yaml.is_mapping(&item, "a transformation")? {
                        transformation(yaml, position, &mut catalog, &mut checker)?;
                    }
                }
            }
            "containers" => containers(yaml, &mut catalog, &mut checker)?,
            _ => yaml.skip_value()?,
        }
    }
    if fields.lacks("transformations") && fields.lacks("containers") {
        yaml.problem(position, "a transformation catalog needs the key transformations");
    }
    catalog.warnings = checker.warnings;
    Ok(catalog)
}

fn given(scalar: Option<Scalar<'_>>) -> Option<String> {
    scalar.map(|s| s.text.into_owned()).filter(|s| !s.is_empty())
}

/// Keys that a transformation and its sites share.
#[derive(Clone, Debug, Default)]
struct Common {
    profiles: Profiles,
    metadata: Pairs,
    hooks: Vec<Hook>,
}

/// A program at a site, before the transformation's name is known.
struct AtSite {
    site: String,
    pfn: String,
    kind: TransformationKind,
    sysinfo: SysInfo,
    container: Option<String>,
    bypass: bool,
    common: Common,
    position: Position,
}

fn transformation(
    yaml: &mut Yaml<'_>,
    position: Position,
    catalog: &mut TransformationCatalog,
    checker: &mut Checker,
) -> Result<()> {
    let mut fields = Fields::new(
        "transformation",
        &[
            "namespace",
            "name",
            "version",
            "metadata",
            "profiles",
            "hooks",
            "requires",
            "checksum",
            "sites",
        ],
    );
    let mut name = TransformationName::default();
    let mut common = Common::default();
    let mut sites = Vec::new();
    let mut requires = Vec::new();
    while let Some((key, _)) = yaml.field(&mut fields)? {
        match key {
            "namespace" => name.namespace = given(yaml.text("a namespace")?),
            "name" => name.name = given(yaml.text("the name of a transformation")?).unwrap_or_default(),
            "version" => name.version = given(yaml.text("a version")?),
            "metadata" => yaml.metadata(&mut common.metadata)?,
            "profiles" => yaml.profiles(&mut common.profiles, checker)?,
            "hooks" => yaml.hooks(&mut common.hooks)?,
            "requires" => names(yaml, &mut requires)?,
            "checksum" => checksum(yaml, &mut common.metadata)?,
            _ => {
                if yaml.sequence("the sites of a transformation")? {
                    while let Some(item) = yaml.item()? {
                        let position = item.position();
                        if yaml.is_mapping(&item, "the site of a transformation")? {
                            sites.extend(at_site(yaml, position, checker)?);
                        }
                    }
                }
            }
        }
    }
    if name.name.is_empty() {
        if fields.lacks("name") {
            yaml.problem(position, "a transformation needs the key name");
        }
        return Ok(());
    }
    if !requires.is_empty() {
        catalog.compounds.push((name.clone(), requires));
    }
    for at in sites {
        let pfn = match normal_pfn(at.kind, &at.pfn) {
            Ok(pfn) => pfn,
            Err(message) => {
                yaml.problem(at.position, format!("transformation {name}: {message}"));
                continue;
            }
        };
        let mut merged = common.clone();
        merged.profiles.overlay(&at.common.profiles);
        for (key, value) in at.common.metadata {
            merged.metadata.retain(|(known, _)| *known != key);
            merged.metadata.push((key, value));
        }
        catalog.entries.push(TransformationEntry {
            name: name.clone(),
            site: at.site,
            pfn,
            kind: at.kind,
            sysinfo: at.sysinfo,
            profiles: merged.profiles,
            metadata: merged.metadata,
            hooks: merged.hooks,
            container: at.container,
            bypass: at.bypass,
        });
    }
    Ok(())
}

fn names(yaml: &mut Yaml<'_>, names: &mut Vec<TransformationName>) -> Result<()> {
    if yaml.sequence("requires")? {
        while let Some(item) = yaml.item()? {
            match item {
                crate::syntax::yaml::Node::Scalar(name) => names.push(TransformationName::parse(&name.text)),
                node => {
                    yaml.problem(node.position(), "a required transformation must be a name");
                    yaml.skip(&node)?;
                }
            }
        }
    }
    Ok(())
}

/// Turns `checksum: {sha256: …}` into metadata.
pub(crate) fn checksum(yaml: &mut Yaml<'_>, metadata: &mut Pairs) -> Result<()> {
    yaml.pairs("checksum", |_, kind, value| {
        metadata.push(("checksum.type".into(), kind.text.as_ref().to_owned()));
        metadata.push(("checksum.value".into(), value.text.into_owned()));
    })
}

fn at_site(yaml: &mut Yaml<'_>, position: Position, checker: &mut Checker) -> Result<Option<AtSite>> {
    let mut fields = Fields::new(
        "site of a transformation",
        &[
            "name",
            "pfn",
            "type",
            "container",
            "bypass",
            "arch",
            "os.type",
            "os.release",
            "os.version",
            "profiles",
            "metadata",
        ],
    );
    let mut at = AtSite {
        site: String::new(),
        pfn: String::new(),
        kind: TransformationKind::Installed,
        sysinfo: SysInfo::default(),
        container: None,
        bypass: false,
        common: Common::default(),
        position,
    };
    while let Some((key, _)) = yaml.field(&mut fields)? {
        match key {
            "name" => at.site = given(yaml.text("the name of a site")?).unwrap_or_default(),
            "pfn" => {
                if let Some(pfn) = yaml.text("the pfn of a transformation")? {
                    at.position = pfn.position;
                    at.pfn = pfn.text.into_owned();
                }
            }
            "type" => {
                if let Some(kind) = yaml.text("the type of a transformation")? {
                    match TransformationKind::parse(&kind.text) {
                        Some(parsed) => at.kind = parsed,
                        None => yaml.problem_with_hint(
                            kind.position,
                            format!("`{}` is not a type of transformation", kind.text),
                            "types are installed, stageable",
                        ),
                    }
                }
            }
            "container" => at.container = given(yaml.text("the name of a container")?),
            "bypass" => at.bypass = yaml.boolean(key)?.unwrap_or(false),
            "profiles" => yaml.profiles(&mut at.common.profiles, checker)?,
            "metadata" => yaml.metadata(&mut at.common.metadata)?,
            _ => system(yaml, key, &mut at.sysinfo)?,
        }
    }
    let mut complete = true;
    for (key, value) in [("name", &at.site), ("pfn", &at.pfn)] {
        if fields.lacks(key) {
            yaml.problem(
                position,
                format!("the site of a transformation needs the key {key}"),
            );
        }
        complete &= !value.is_empty();
    }
    Ok(complete.then_some(at))
}

fn containers(yaml: &mut Yaml<'_>, catalog: &mut TransformationCatalog, checker: &mut Checker) -> Result<()> {
    if !yaml.sequence("containers")? {
        return Ok(());
    }
    while let Some(item) = yaml.item()? {
        let position = item.position();
        if yaml.is_mapping(&item, "a container")? {
            container(yaml, position, catalog, checker)?;
        }
    }
    Ok(())
}

fn container(
    yaml: &mut Yaml<'_>,
    position: Position,
    catalog: &mut TransformationCatalog,
    checker: &mut Checker,
) -> Result<()> {
    let mut fields = Fields::new(
        "container",
        &[
            "name",
            "type",
            "image",
            "image.site",
            "mounts",
            "bypass",
            "checksum",
            "profiles",
            "metadata",
        ],
    );
    let mut draft = Draft::default();
    let mut at = position;
    while let Some((key, _)) = yaml.field(&mut fields)? {
        match key {
            "name" => draft.name = given(yaml.text("the name of a container")?).unwrap_or_default(),
            "type" => {
                if let Some(kind) = yaml.text("the type of a container")? {
                    draft.kind = ContainerKind::parse(&kind.text);
                    if draft.kind.is_none() {
                        yaml.problem_with_hint(
                            kind.position,
                            format!("`{}` is not a type of container", kind.text),
                            format!("types are {}", ContainerKind::NAMES),
                        );
                    }
                }
            }
            "image" => {
                if let Some(image) = yaml.text("the image of a container")? {
                    at = image.position;
                    draft.image = image.text.trim().to_owned();
                }
            }
            "image.site" => draft.image_site = given(yaml.text("the site of an image")?),
            "mounts" => mounts(yaml, &mut draft.mounts)?,
            "bypass" => draft.bypass = yaml.boolean(key)?.unwrap_or(false),
            "checksum" => {
                let mut metadata = Pairs::default();
                checksum(yaml, &mut metadata)?;
                let kind = metadata.first().is_some_and(|(_, kind)| kind == "sha256");
                draft.sha256 = metadata
                    .into_iter()
                    .nth(1)
                    .map(|(_, value)| value)
                    .filter(|_| kind);
            }
            "profiles" => yaml.profiles(&mut draft.profiles, checker)?,
            _ => yaml.skip_value()?,
        }
    }
    let mut complete = true;
    for key in ["name", "type", "image"] {
        if fields.lacks(key) {
            yaml.problem(position, format!("a container needs the key {key}"));
            complete = false;
        }
    }
    if complete {
        match draft.finish() {
            Ok(container) => catalog.containers.extend(container),
            Err(error) => yaml.problem_with_hint(at, error.to_string(), error.hint()),
        }
    }
    Ok(())
}

fn mounts(yaml: &mut Yaml<'_>, mounts: &mut Vec<String>) -> Result<()> {
    if yaml.sequence("mounts")? {
        while let Some(item) = yaml.item()? {
            match item {
                crate::syntax::yaml::Node::Scalar(mount) => mounts.push(mount.text.into_owned()),
                node => {
                    yaml.problem(node.position(), "a mount must be a text: HERE:THERE[:OPTIONS]");
                    yaml.skip(&node)?;
                }
            }
        }
    }
    Ok(())
}
