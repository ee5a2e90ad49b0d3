//! `pegasus-transfer` handles files as that of Pegasus does, and works with real servers.

mod comparison;
mod servers;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};

fn place(url: &str) -> Value {
    json!({"site_label": "local", "url": url})
}

fn transfer(source: &str, destination: &str) -> Value {
    json!({"type": "transfer", "lfn": "f.lfn", "linkage": "output", "src_urls": [place(source)],
        "dest_urls": [place(destination)]})
}

/// Returns the entry with one more key.
fn with(mut entry: Value, key: &str, value: impl Into<Value>) -> Value {
    entry[key] = value.into();
    entry
}

fn mkdir(url: &str) -> Value {
    json!({"type": "mkdir", "target": place(url)})
}

fn remove(url: &str, recursive: impl Into<Value>) -> Value {
    json!({"type": "remove", "target": with(place(url), "recursive", recursive)})
}

fn write(path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
    fs::write(path, content).expect("write");
}

/// Writes a file that only its owner can read.
fn write_secret(path: &Path, content: &str) {
    write(path, content);
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("chmod");
}

/// Lists everything below a directory: names, permissions, contents and targets of links.
fn tree(root: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).expect("directory") {
            let path = entry.expect("entry").path();
            let meta = fs::symlink_metadata(&path).expect("metadata");
            let name = path.strip_prefix(root).expect("below").display();
            let mode = meta.permissions().mode() & 0o777;
            if mode == 0 {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("chmod");
            }
            all.push(if meta.is_symlink() {
                let target = fs::read_link(&path).expect("link").display().to_string();
                format!("{name} -> {}", target.replace(&root.display().to_string(), "."))
            } else if meta.is_dir() {
                open.push(path.clone());
                format!("{name}/ {mode:o}")
            } else {
                format!(
                    "{name} {mode:o} {:?}",
                    String::from_utf8_lossy(&fs::read(&path).expect("read"))
                )
            });
        }
    }
    all.sort();
    all
}
