//! What is on disk, and in which order, so that a crash loses nothing: forwarded data, its journal, and the
//! lock of a run.

pub mod forward_journal;
pub mod forwarding;
pub mod lock;
pub mod shared_files;
pub mod sync;
