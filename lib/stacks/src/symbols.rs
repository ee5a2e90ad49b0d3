//! Names, files and lines of addresses.

use std::borrow::Cow;
use std::collections::BTreeMap;

use addr2line::Loader;

use crate::modules::Module;
use crate::{Frame, MAX_NAME};

/// What programs and libraries say of their functions, by the keys of their files.
#[derive(Default)]
pub(crate) struct Symbols(BTreeMap<String, Option<Loader>>);

impl Symbols {
    /// Returns the functions at an address, those that were inlined there first.
    pub(crate) fn at(&mut self, address: u64, modules: &[Module]) -> Vec<Frame> {
        let Some(module) = modules.iter().find(|module| module.addresses.contains(&address)) else {
            return vec![Frame::default()];
        };
        let name = short(module.name.rsplit('/').next().unwrap_or(&module.name));
        let unknown = Frame {
            module: Some(name),
            ..Frame::default()
        };
        let Some(path) = &module.path else {
            return vec![unknown];
        };
        let load = || Loader::new(path).ok();
        let loader = self.0.entry(module.key.clone()).or_insert_with(load);
        let Some(loader) = loader else {
            return vec![unknown];
        };
        let address = address.wrapping_sub(module.bias);
        let mut frames = inlined(loader, address, &unknown);
        let symbol = || {
            let symbol = loader.find_symbol(address)?;
            Some(short(&addr2line::demangle_auto(Cow::Borrowed(symbol), None)))
        };
        match frames.last_mut() {
            Some(last) if last.function.is_none() => last.function = symbol(),
            Some(_) => {}
            None => frames.push(Frame {
                function: symbol(),
                ..unknown
            }),
        }
        frames
    }
}

/// Reads the debug information of an address.
fn inlined(loader: &Loader, address: u64, unknown: &Frame) -> Vec<Frame> {
    let mut frames = Vec::new();
    let Ok(mut found) = loader.find_frames(address) else {
        return frames;
    };
    while let Ok(Some(frame)) = found.next() {
        let function = frame.function.as_ref().and_then(|name| name.demangle().ok());
        let location = frame.location.as_ref();
        frames.push(Frame {
            function: function.map(|name| short(&name)),
            file: location.and_then(|location| location.file).map(short),
            line: location.and_then(|location| location.line),
            ..unknown.clone()
        });
    }
    frames
}

/// Names of templates can be very long.
fn short(name: &str) -> String {
    match name.char_indices().nth(MAX_NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}
