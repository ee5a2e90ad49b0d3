//! Readers of YAML, XML and plain text, with the position of every node.

pub(crate) mod interner;
pub(crate) mod text;
pub(crate) mod xml;
pub(crate) mod yaml;
