//! The programs of this project that run in a container, with the libraries that they need.
//!
//! An image may have another C library, another version of it, or none. So the loader and the libraries of
//! the node come along, and the loader is called by its path. The program of the job is not concerned: it
//! is started as usual, with what the image has.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs in the directory of a job.
#[derive(Debug)]
pub(super) struct Programs {
    /// Where they are on the node.
    here: PathBuf,
    /// Where they are in the container.
    there: String,
    /// Name of the loader, if the programs need one.
    loader: Option<String>,
}

impl Programs {
    /// Copies a program with its libraries into the directory `here`, which is `there` in the container.
    ///
    /// # Errors
    /// A file cannot be found or copied.
    pub(super) fn copy(program: &Path, here: &Path, there: &str) -> io::Result<Self> {
        let mut this = Self {
            here: here.to_owned(),
            there: there.to_owned(),
            loader: None,
        };
        if let Some(loader) = loader()? {
            this.loader = Some(this.add(&loader)?);
            // What the loader itself says is what it does.
            let listed = Command::new(&loader).arg("--list").arg(program).output()?;
            for library in libraries(&String::from_utf8_lossy(&listed.stdout)) {
                this.copy_as(library.1, library.0)?;
            }
        }
        this.add(program)?;
        Ok(this)
    }

    /// Copies one more file. Returns its name.
    ///
    /// # Errors
    /// It cannot be read, or not be written.
    pub(super) fn add(&self, file: &Path) -> io::Result<String> {
        let name = file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        self.copy_as(file, &name)?;
        Ok(name)
    }

    fn copy_as(&self, file: &Path, name: &str) -> io::Result<()> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
        fs::copy(file, self.here.join(name)).map(drop).map_err(named)
    }

    /// Returns the path in the container of a file of the directory.
    pub(super) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.there)
    }

    /// Returns the command that starts a copied program in the container.
    pub(super) fn call(&self, name: &str) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(loader) = &self.loader {
            words.extend([self.path(loader), "--library-path".to_owned(), self.there.clone()]);
        }
        words.push(self.path(name));
        words
    }
}

/// Returns the file of the loader that has started this process, `None` for a static program.
fn loader() -> io::Result<Option<PathBuf>> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    Ok(loader_among(&maps).map(PathBuf::from))
}

fn loader_among(maps: &str) -> Option<&str> {
    let files = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    files.filter(|file| file.contains(".so")).find(|file| {
        file.rsplit('/')
            .next()
            .is_some_and(|name| name.starts_with("ld-"))
    })
}

/// Returns names and files of the libraries in the answer of a loader.
fn libraries(listed: &str) -> impl Iterator<Item = (&str, &Path)> {
    listed.lines().filter_map(|line| {
        let (name, rest) = line.trim().split_once(" => ")?;
        let file = rest.rsplit_once(" (").map_or(rest, |(file, _)| file);
        (file.starts_with('/') && !name.contains('/')).then(|| (name, Path::new(file)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loader_and_libraries_are_found() {
        let maps = "55d0-55d1 r-xp 00000000 08:01 42    /usr/bin/pegasus-lite\n\
            7f00-7f01 r-xp 00000000 08:01 43    /usr/lib/x86_64-linux-gnu/libc.so.6\n\
            7f02-7f03 r-xp 00000000 08:01 44    /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2\n\
            7ffd-7ffe rw-p 00000000 00:00 0     [stack]\n";
        assert_eq!(
            loader_among(maps),
            Some("/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
        );
        assert_eq!(
            loader_among("55d0-55d1 r-xp 0 08:01 42 /usr/bin/pegasus-lite\n"),
            None
        );
        let listed = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found: Vec<_> = libraries(listed).collect();
        assert_eq!(
            found,
            [("libc.so.6", Path::new("/lib/x86_64-linux-gnu/libc.so.6"))]
        );
    }
}
