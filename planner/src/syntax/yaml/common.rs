//! YAML elements shared by workflows and catalogs: profiles, metadata, hooks.

use rustc_hash::FxHashSet;

use super::{Fields, Node, Result, Scalar, Yaml};
use crate::hook::Hook;
use crate::keys::Checker;
use crate::profiles::{Namespace, Profiles};

/// Key and value pairs in document order.
pub(crate) type Pairs = Vec<(String, String)>;

impl<'a> Yaml<'a> {
    /// Reads a mapping of arbitrary keys to texts. Reports repeated keys.
    pub(crate) fn pairs(
        &mut self,
        what: &str,
        mut each: impl FnMut(&mut Self, &Scalar<'a>, Scalar<'a>),
    ) -> Result<()> {
        if !self.mapping(what)? {
            return Ok(());
        }
        let mut seen: FxHashSet<String> = FxHashSet::default();
        while let Some(key) = self.key()? {
            if !seen.insert(key.text.as_ref().to_owned()) {
                self.problem(key.position, format!("{what} have the key {} twice", key.text));
            }
            match self.node()? {
                Node::Scalar(value) => each(self, &key, value),
                node => {
                    self.problem(
                        node.position(),
                        format!("the value of {} in {what} must be text", key.text),
                    );
                    self.skip(&node)?;
                }
            }
        }
        Ok(())
    }

    /// Reads `metadata: {key: value}`.
    pub(crate) fn metadata(&mut self, pairs: &mut Pairs) -> Result<()> {
        self.pairs("metadata", |_, key, value| {
            pairs.push((key.text.as_ref().to_owned(), value.text.into_owned()));
        })
    }

    /// Reads `profiles: {namespace: {key: value}}`.
    pub(crate) fn profiles(&mut self, profiles: &mut Profiles, checker: &mut Checker) -> Result<()> {
        if !self.mapping("profiles")? {
            return Ok(());
        }
        while let Some(key) = self.key()? {
            let Some(namespace) = Namespace::parse(&key.text) else {
                let (message, hint) = Namespace::unknown(&key.text);
                self.problem_with_hint(key.position, message, hint);
                self.skip_value()?;
                continue;
            };
            let file = self.file();
            self.pairs("profiles", |yaml, key, value| {
                let text = if value.is_null() { "" } else { value.text.as_ref() };
                if let Err(error) = checker.check(file, namespace, &key.text, text, value.position) {
                    yaml.problems.push(error);
                }
                profiles.set(namespace, &key.text, text);
            })?;
        }
        Ok(())
    }

    /// Reads `hooks: {shell: [{_on: WHEN, cmd: COMMAND}]}`.
    pub(crate) fn hooks(&mut self, hooks: &mut Vec<Hook>) -> Result<()> {
        if !self.mapping("hooks")? {
            return Ok(());
        }
        let mut kinds = Fields::new("hooks", &["shell"]);
        while self.field(&mut kinds)?.is_some() {
            if !self.sequence("shell hooks")? {
                continue;
            }
            while let Some(item) = self.item()? {
                let position = item.position();
                if !self.is_mapping(&item, "a shell hook")? {
                    continue;
                }
                let mut fields = Fields::new("shell hook", &["_on", "cmd"]);
                let (mut when, mut command) = (None, None);
                while let Some((key, _)) = self.field(&mut fields)? {
                    let text = self.text(key)?;
                    if key == "_on" {
                        when = text;
                    } else {
                        command = text;
                    }
                }
                match (when, command) {
                    (Some(when), Some(command)) => {
                        if Hook::EVENTS.contains(&when.text.as_ref()) {
                            hooks.push(Hook {
                                when: when.text.into_owned(),
                                command: command.text.into_owned(),
                            });
                        } else {
                            self.problem_with_hint(
                                when.position,
                                format!("`{}` is not an event of a hook", when.text),
                                format!("events are {}", Hook::EVENTS.join(", ")),
                            );
                        }
                    }
                    _ => self.problem(position, "a shell hook needs the keys _on and cmd"),
                }
            }
        }
        Ok(())
    }
}
