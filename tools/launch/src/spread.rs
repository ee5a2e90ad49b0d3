//! Sends programs to the hosts of a launch, with libraries and other files (`--bcast`).
//!
//! The front end reads each file once, and knows it by its SHA-256 (`files`). Hosts say which ones they have
//! room for (`room`), before a byte moves. Then each host gets those that it lacks from the host above it in
//! a binary tree (`plan`), which gives them on while they still come in (`fetch`). If a host has no room, all
//! that run the program take it from a file system that they share (`instead`).
//!
//! What front end and proxies say about it is in `messages`.

pub(crate) mod addresses;
pub(crate) mod fetch;
pub(crate) mod files;
pub(crate) mod instead;
mod libraries;
pub(crate) mod messages;
pub(crate) mod plan;
pub(crate) mod room;
