//! See the package description.

pub mod yaml;
