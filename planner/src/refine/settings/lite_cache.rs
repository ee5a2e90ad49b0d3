//! The cache of a node for inputs that jobs share.

use super::{Choices, text};
use crate::refine::cleanup::space::parse_bytes;

/// Name of the property.
const KEY: &str = "pegasus.lite.cache";

/// The cache of a node: `pegasus.lite.cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LiteCache {
    /// Its size is a part of the space on the node.
    On,
    /// Its size in bytes.
    Bytes(u64),
    /// There is none.
    Off,
}

impl Choices<'_> {
    pub(super) fn lite_cache(&mut self) -> LiteCache {
        let Some(text) = text(self.properties, KEY) else {
            return LiteCache::On;
        };
        if text.eq_ignore_ascii_case("off") {
            return LiteCache::Off;
        }
        match parse_bytes(&text) {
            Some(0) => LiteCache::Off,
            Some(bytes) => LiteCache::Bytes(bytes),
            None => {
                let message = "must be a number of bytes, such as 500M or 10G, or off";
                self.problems.push(self.properties.bad_value(KEY, message));
                LiteCache::On
            }
        }
    }
}
