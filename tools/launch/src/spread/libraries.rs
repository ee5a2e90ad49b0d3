//! Libraries of a program that a host may lack: those that its loader finds outside the directories of the
//! system.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use object::read::ReadCache;
use object::{Object as _, ObjectSection as _};

/// Directories of the system, beside `/usr`.
const SYSTEM: [&[u8]; 4] = [b"lib", b"lib32", b"lib64", b"libx32"];

/// Longest path of a loader.
const MAX_PATH: u64 = 4096;

/// A library, as programs name it, and its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Library {
    pub(super) name: String,
    pub(super) path: PathBuf,
}

/// Returns the libraries of a program. A script, and a program without libraries, has none.
///
/// # Errors
/// The loader does not find one of them, or does not say where they are.
pub(super) fn of_program(program: &Path) -> Result<Vec<Library>, String> {
    let Some(loader) = loader_of(program) else {
        return Ok(Vec::new());
    };
    let said = Command::new(&loader)
        .arg("--list")
        .arg(program)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {}", loader.display(), pmc_dag::reason(&error)))?;
    if !said.status.success() {
        let why = String::from_utf8_lossy(&said.stderr);
        return Err(format!(
            "its loader does not list its libraries: {}",
            why.trim_end()
        ));
    }
    parse(&String::from_utf8_lossy(&said.stdout))
}

/// The loader that a program names.
fn loader_of(program: &Path) -> Option<PathBuf> {
    let cache = ReadCache::new(File::open(program).ok()?);
    let file = object::File::parse(&cache).ok()?;
    let section = file.section_by_name(".interp")?;
    let section = (section.size() <= MAX_PATH).then_some(section)?;
    let path = section.data().ok()?.split(|byte| *byte == 0).next()?;
    Some(PathBuf::from(OsStr::from_bytes(path))).filter(|path| path.is_absolute())
}

/// Reads lines such as `libm.so.6 => /lib/libm.so.6 (0x00007f…)`.
fn parse(text: &str) -> Result<Vec<Library>, String> {
    let mut all = Vec::new();
    for line in text.lines() {
        // The loader itself, and what the kernel provides, have no arrow.
        let Some((name, found)) = line.trim().split_once(" => ") else {
            continue;
        };
        let path = found.rsplit_once(" (0x").map_or(found, |(path, _)| path).trim();
        if !path.starts_with('/') {
            return Err(format!("its library {name} is not found"));
        }
        // A program that names a path takes its library from nowhere else.
        if !name.contains('/') && !is_of_system(Path::new(path)) {
            all.push(Library {
                name: name.to_owned(),
                path: path.into(),
            });
        }
    }
    Ok(all)
}

/// True below `/usr`, `/lib`, `/lib64` and their like.
fn is_of_system(path: &Path) -> bool {
    match path.components().nth(1) {
        Some(Component::Normal(first)) => first == "usr" || SYSTEM.contains(&first.as_bytes()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn libraries_of_the_system_stay_where_they_are() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                    \tlibown.so.1 => /opt/a b/libown.so.1 (0x00007f01)\n\
                    \t/opt/x/libpath.so => /opt/x/libpath.so (0x00007f01)\n\
                    \tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f02)\n\
                    \tliba.so => /library/liba.so (0x00007f02)\n\
                    \tlibusr.so => /usr/local/lib/libusr.so (0x00007f02)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f03)\n";
        let found = parse(text).unwrap();
        let paths: Vec<(&str, &Path)> = found.iter().map(|one| (&*one.name, &*one.path)).collect();
        let expected = [
            ("libown.so.1", Path::new("/opt/a b/libown.so.1")),
            ("liba.so", Path::new("/library/liba.so")),
        ];
        assert_eq!(paths, expected);
        assert_eq!(
            parse("\tlibx.so.2 => not found\n").unwrap_err(),
            "its library libx.so.2 is not found"
        );
    }

    #[test]
    fn scripts_and_programs_of_the_system_have_none() {
        assert_eq!(of_program(Path::new("Cargo.toml")), Ok(Vec::new()));
        assert_eq!(of_program(Path::new("/bin/sh")), Ok(Vec::new()));
        assert_eq!(of_program(Path::new("/nowhere")), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_no_panic(text in "([a-z./ (0x)=>\n\t]|.){0,80}") {
            for library in parse(&text).unwrap_or_default() {
                prop_assert!(!library.name.contains('/') && library.path.is_absolute());
            }
        }
    }
}
