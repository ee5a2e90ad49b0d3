//! The three catalogs: sites, transformations, replicas.

pub mod replica;
pub mod site;
pub mod transformation;
