//! Files that the planner writes for jobs, and that programs read on the node: lists of transfers, and
//! descriptions of jobs with directories of their own.
//!
//! Each has its types, one reader and one writer here. Lists are those of Pegasus 5, so they are written with
//! its spaces and line ends. Descriptions belong to this project.

mod description;
mod list;
#[cfg(test)]
mod tests;
mod values;

pub use description::{
    Container, ContainerKind, Description, DescriptionError, FORMAT, FileUse, Run, Verified,
};
pub use list::{Entry, Place, read_list, write_list};
pub use values::{Flag, Number, Text};

/// Returns whether a value need not be written.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
