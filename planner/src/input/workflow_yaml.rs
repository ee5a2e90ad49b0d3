//! Workflows in Pegasus YAML 5.0.

use std::borrow::Cow;

use super::builder::{Builder, default_use};
use crate::catalog;
use crate::catalog::replica::Wanted;
use crate::model::{
    Arguments, FileId, FileKind, FileUse, Files, Job, JobKind, Link, Position, TransferFlag,
    TransformationName, Words,
};
use crate::syntax::yaml::{Fields, Node, Result, Scalar, Yaml};

const WORKFLOW: &[&str] = &[
    "pegasus",
    "name",
    "x-pegasus",
    "metadata",
    "siteCatalog",
    "replicaCatalog",
    "transformationCatalog",
    "hooks",
    "jobs",
    "jobDependencies",
];
const JOB: &[&str] = &[
    "type",
    "id",
    "name",
    "namespace",
    "version",
    "file",
    "arguments",
    "stdin",
    "stdout",
    "stderr",
    "uses",
    "profiles",
    "metadata",
    "hooks",
    "nodeLabel",
];
const USES: &[&str] = &[
    "lfn",
    "type",
    "stageOut",
    "registerReplica",
    "optional",
    "bypass",
    "size",
    "forPlanning",
    "metadata",
];

/// Reads the whole file into the builder.
pub(super) fn read(yaml: &mut Yaml<'_>, builder: &mut Builder) -> Result<()> {
    let root = yaml.node()?;
    if !matches!(root, Node::Mapping(_)) {
        yaml.problem_with_hint(
            root.position(),
            "not a workflow: expected a mapping with the keys name and jobs",
            "a workflow is YAML in the format of Pegasus 5, or DAX XML",
        );
        return Ok(());
    }
    let mut reader = Reader { yaml, builder };
    reader.workflow()?;
    yaml.end()
}

struct Reader<'r, 'a> {
    yaml: &'r mut Yaml<'a>,
    builder: &'r mut Builder,
}

impl<'a> Reader<'_, 'a> {
    fn workflow(&mut self) -> Result<()> {
        let mut fields = Fields::new("workflow", WORKFLOW).unsupported(&["profiles", "version"]);
        let mut api = None;
        while let Some((key, _)) = self.yaml.field(&mut fields)? {
            match key {
                "pegasus" => {
                    if let Some(version) = self.yaml.text("the version `pegasus`")? {
                        self.builder.workflow.version = version.text.into_owned();
                    }
                }
                "name" => {
                    if let Some(name) = self.yaml.text("the name of the workflow")? {
                        self.builder.set_label(&name.text, name.position, &[]);
                    }
                }
                "x-pegasus" => api = self.api()?,
                "metadata" => self.yaml.metadata(&mut self.builder.workflow.metadata)?,
                "siteCatalog" => {
                    let read = catalog::site::yaml::read(self.yaml)?;
                    self.builder.embedded.sites = Some(read);
                }
                "replicaCatalog" => {
                    let read = catalog::replica::yaml::read(self.yaml, Wanted::any(&Files::default()))?;
                    self.builder.embedded.replicas = Some(read);
                }
                "transformationCatalog" => {
                    let read = catalog::transformation::yaml::read(self.yaml)?;
                    self.builder.embedded.transformations = Some(read);
                }
                "hooks" => self.yaml.hooks(&mut self.builder.workflow.hooks)?,
                "jobs" => self.jobs()?,
                "jobDependencies" => self.dependencies()?,
                _ => self.yaml.skip_value()?,
            }
        }
        let metadata = &mut self.builder.workflow.metadata;
        if !metadata.iter().any(|(key, _)| key == "wf.api") {
            metadata.push(("wf.api".into(), api.unwrap_or_else(|| "yaml".into())));
        }
        Ok(())
    }

    fn api(&mut self) -> Result<Option<String>> {
        let mut api = None;
        if self.yaml.mapping("x-pegasus")? {
            while let Some(key) = self.yaml.key()? {
                if key.text == "apiLang" {
                    api = self.yaml.text("apiLang")?.map(|scalar| scalar.text.into_owned());
                } else {
                    self.yaml.skip_value()?;
                }
            }
        }
        Ok(api)
    }

    fn jobs(&mut self) -> Result<()> {
        if !self.yaml.sequence("jobs")? {
            return Ok(());
        }
        while let Some(item) = self.yaml.item()? {
            if self.yaml.is_mapping(&item, "a job")? {
                self.job(item.position())?;
            }
        }
        Ok(())
    }

    fn job(&mut self, position: Position) -> Result<()> {
        let mut fields = Fields::new("jobs", JOB);
        let mut job = Job {
            position,
            ..Job::default()
        };
        let (mut kind, mut name, mut namespace, mut version) = (None, None, None, None);
        while let Some((key, _)) = self.yaml.field(&mut fields)? {
            match key {
                "type" => kind = self.yaml.text("the type of a job")?,
                // An empty id is reported when the job is added.
                "id" => {
                    if let Some(id) = self.yaml.text("the id of a job")? {
                        job.id = id.text.into_owned();
                    }
                }
                "name" => name = self.yaml.text("the name of a transformation")?,
                "namespace" => namespace = self.yaml.text("a namespace")?,
                "version" => version = self.yaml.text("a version")?,
                "file" => job.file = self.file("the file of a sub-workflow")?,
                "arguments" => job.arguments = Arguments::Words(self.arguments()?),
                "stdin" => job.stdin = self.file(key)?,
                "stdout" => job.stdout = self.file(key)?,
                "stderr" => job.stderr = self.file(key)?,
                "uses" => self.uses(&mut job)?,
                "profiles" => {
                    self.yaml.profiles(&mut job.profiles, &mut self.builder.checker)?;
                }
                "metadata" => self.yaml.metadata(&mut job.metadata)?,
                "hooks" => self.yaml.hooks(&mut job.hooks)?,
                "nodeLabel" => self.yaml.skip_value()?,
                _ => self.yaml.skip_value()?,
            }
        }
        self.set_kind(&mut job, kind.as_ref());
        let text = |scalar: Option<Scalar<'a>>| scalar.map(|s| s.text.into_owned()).filter(|s| !s.is_empty());
        let transformation = match job.kind {
            JobKind::Compute => {
                if name.is_none() {
                    self.builder.problem(
                        position,
                        format!(
                            "job {} has no name, which says the transformation it runs",
                            job.id
                        ),
                    );
                }
                TransformationName {
                    namespace: text(namespace),
                    name: text(name).unwrap_or_default(),
                    version: text(version),
                }
            }
            kind => {
                if job.file.is_none() {
                    self.builder.problem(
                        position,
                        format!("job {} has no file, which says the workflow it runs", job.id),
                    );
                }
                kind.planner_name()
            }
        };
        job.transformation = self.builder.transformation(transformation);
        self.builder.add_job(job, position);
        Ok(())
    }

    fn set_kind(&mut self, job: &mut Job, kind: Option<&Scalar<'_>>) {
        let Some(kind) = kind else {
            self.builder
                .problem(job.position, format!("job {} has no type", job.id));
            return;
        };
        job.kind = match kind.text.as_ref() {
            "job" => JobKind::Compute,
            "pegasusWorkflow" => JobKind::SubWorkflow,
            "condorWorkflow" => JobKind::SubDag,
            other => {
                let message = format!("`{other}` is not a type of job");
                self.yaml.problem_with_hint(
                    kind.position,
                    message,
                    "types are job, pegasusWorkflow, condorWorkflow",
                );
                return;
            }
        };
    }

    fn file(&mut self, what: &str) -> Result<Option<FileId>> {
        let name = self.yaml.text(what)?;
        Ok(name.map(|name| self.builder.file(&name.text, name.position)))
    }

    fn arguments(&mut self) -> Result<Words> {
        let mut words = Words::default();
        if !self.yaml.sequence("arguments")? {
            return Ok(words);
        }
        while let Some(item) = self.yaml.item()? {
            match item {
                Node::Scalar(word) => {
                    if word.text.contains('\0') {
                        self.builder.problem(
                            word.position,
                            "an argument contains a NUL character, which no program can receive",
                        );
                    }
                    words.push(&word.text);
                }
                Node::Mapping(position) => {
                    // Older writers use a mapping with the name of the file.
                    let mut lfn = None;
                    while let Some(key) = self.yaml.key()? {
                        if key.text == "lfn" {
                            lfn = self.yaml.text("lfn")?;
                        } else {
                            self.yaml.skip_value()?;
                        }
                    }
                    match lfn {
                        Some(lfn) => words.push(&lfn.text),
                        None => self
                            .yaml
                            .problem(position, "an argument must be text, not a mapping"),
                    }
                }
                Node::Sequence(position) => {
                    self.yaml
                        .problem(position, "an argument must be text, not a list");
                    self.yaml.skip(&item)?;
                }
            }
        }
        words.shrink();
        Ok(words)
    }

    fn uses(&mut self, job: &mut Job) -> Result<()> {
        if !self.yaml.sequence("uses")? {
            return Ok(());
        }
        while let Some(item) = self.yaml.item()? {
            if self.yaml.is_mapping(&item, "an entry of uses")?
                && let Some(found) = self.file_use(item.position())?
            {
                self.builder.add_use(job, found);
            }
        }
        Ok(())
    }

    fn file_use(&mut self, position: Position) -> Result<Option<FileUse>> {
        let mut fields = Fields::new("uses", USES).unsupported(&["namespace", "version"]);
        let mut found = default_use(FileId::new(0), Link::Input);
        let (mut file, mut link) = (None, None);
        while let Some((key, _)) = self.yaml.field(&mut fields)? {
            match key {
                "lfn" => file = self.file(key)?,
                "type" => link = self.yaml.text(key)?,
                "stageOut" => {
                    if self.yaml.boolean(key)? == Some(false) {
                        found.transfer = TransferFlag::Not;
                    }
                }
                "registerReplica" => found.register = self.yaml.boolean(key)?.unwrap_or(true),
                "optional" => found.optional = self.yaml.boolean(key)?.unwrap_or(false),
                "bypass" => found.bypass = self.yaml.boolean(key)?.unwrap_or(false),
                "forPlanning" => found.for_planning = self.yaml.boolean(key)?.unwrap_or(false),
                "size" => found.size = self.size()?,
                "metadata" => self.yaml.metadata(&mut found.metadata)?,
                _ => self.yaml.skip_value()?,
            }
        }
        match file {
            Some(file) => found.file = file,
            None => {
                if fields.lacks("lfn") {
                    self.yaml.problem(position, "an entry of uses needs the key lfn");
                }
                return Ok(None);
            }
        }
        let Some(link) = link else {
            if fields.lacks("type") {
                self.yaml.problem(position, "an entry of uses needs the key type");
            }
            return Ok(None);
        };
        found.link = match link.text.as_ref() {
            "input" => Link::Input,
            "output" => Link::Output,
            "inout" => Link::InOut,
            "checkpoint" => {
                found.kind = FileKind::Checkpoint;
                found.optional = true;
                Link::Checkpoint
            }
            other => {
                let message = format!("`{other}` is not a type of file use");
                self.yaml.problem_with_hint(
                    link.position,
                    message,
                    "types are input, output, inout, checkpoint",
                );
                return Ok(None);
            }
        };
        Ok(Some(found))
    }

    fn size(&mut self) -> Result<Option<u64>> {
        let Some(scalar) = self.yaml.any_text("size")? else {
            return Ok(None);
        };
        let size = self.builder.size(&scalar.text, scalar.position);
        if size.is_err() {
            let message = format!("size must be a whole number, not `{}`", scalar.text);
            self.yaml.problem(scalar.position, message);
        }
        Ok(size.unwrap_or(None))
    }

    fn dependencies(&mut self) -> Result<()> {
        if !self.yaml.sequence("jobDependencies")? {
            return Ok(());
        }
        while let Some(item) = self.yaml.item()? {
            if self.yaml.is_mapping(&item, "an entry of jobDependencies")? {
                self.dependency(item.position())?;
            }
        }
        Ok(())
    }

    fn dependency(&mut self, position: Position) -> Result<()> {
        let mut fields = Fields::new("jobDependencies", &["id", "children"]);
        let mut parent: Option<Scalar<'a>> = None;
        // Children that precede the id.
        let mut children: Vec<(Cow<'a, str>, Position)> = Vec::new();
        while let Some((key, _)) = self.yaml.field(&mut fields)? {
            if key == "id" {
                parent = self.yaml.text("the id of a dependency")?;
            } else if self.yaml.sequence("children")? {
                while let Some(item) = self.yaml.item()? {
                    match (item, &parent) {
                        (Node::Scalar(child), Some(parent)) => {
                            self.builder
                                .add_dependency(&parent.text, &child.text, child.position);
                        }
                        (Node::Scalar(child), None) => children.push((child.text, child.position)),
                        (item, _) => {
                            self.yaml
                                .problem(item.position(), "a child must be the id of a job");
                            self.yaml.skip(&item)?;
                        }
                    }
                }
            }
        }
        match parent {
            Some(parent) => {
                for (child, position) in children {
                    self.builder.add_dependency(&parent.text, &child, position);
                }
            }
            None if fields.lacks("id") => self
                .yaml
                .problem(position, "an entry of jobDependencies needs the key id"),
            None => {}
        }
        Ok(())
    }
}
