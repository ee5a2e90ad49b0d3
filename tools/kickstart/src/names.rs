//! Names that invocations of one process share: users, groups, real names of files, and descriptions of
//! files.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use monitord_compat::invocation_record::{StatLines, Text};
use nix::unistd::{Gid, Group, Uid, User};

/// Maximum real names kept.
const MAX_REAL_NAMES: usize = 256;

/// Looked-up names. Looking up a user may ask a server on the network; a real name needs a look at each
/// directory.
#[derive(Debug, Default)]
pub struct Names {
    users: HashMap<u32, Option<Text>>,
    groups: HashMap<u32, Option<Text>>,
    real: HashMap<PathBuf, RealName>,
    pub(crate) stats: StatCache,
}

/// Maximum file descriptions kept.
const MAX_STATS: usize = 16;

/// Numbers of a file status.
pub(crate) type StatKey = [u64; 14];

/// File descriptions by the numbers that they show. Jobs share some files, such as their program and the null
/// device.
#[derive(Debug, Default)]
pub(crate) struct StatCache {
    kept: Vec<(StatKey, StatLines)>,
    /// Index of the description to replace next.
    next: usize,
}

impl StatCache {
    pub(crate) fn get(&self, key: &StatKey) -> Option<StatLines> {
        let found = self.kept.iter().find(|(kept, _)| kept == key);
        found.map(|(_, lines)| lines.clone())
    }

    pub(crate) fn insert(&mut self, key: StatKey, lines: StatLines) {
        if self.kept.len() < MAX_STATS {
            self.kept.push((key, lines));
            return;
        }
        self.kept[self.next] = (key, lines);
        self.next = (self.next + 1) % MAX_STATS;
    }
}

/// The real name of a file, and which file it is.
#[derive(Debug)]
struct RealName {
    name: PathBuf,
    file: FileId,
}

/// Device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId(u64, u64);

impl From<&Metadata> for FileId {
    fn from(status: &Metadata) -> Self {
        Self(status.dev(), status.ino())
    }
}

impl Names {
    /// Forgets failed lookups: a server may answer later.
    pub fn forget_failures(&mut self) {
        self.users.retain(|_, name| name.is_some());
        self.groups.retain(|_, name| name.is_some());
    }

    /// Returns the real name of `file`, whose status is `status`. A known name counts while both names mean
    /// the file.
    ///
    /// # Errors
    /// The file has no real name.
    pub fn real(&mut self, file: &Path, status: &Metadata) -> io::Result<PathBuf> {
        let file_id = FileId::from(status);
        let is_current = |known: &&RealName| {
            let named = || fs::symlink_metadata(&known.name);
            known.file == file_id && named().is_ok_and(|named| FileId::from(&named) == file_id)
        };
        if let Some(known) = self.real.get(file).filter(is_current) {
            return Ok(known.name.clone());
        }
        if self.real.len() >= MAX_REAL_NAMES {
            self.real.clear();
        }
        let name = fs::canonicalize(file)?;
        let real = RealName {
            name: name.clone(),
            file: file_id,
        };
        self.real.insert(file.to_owned(), real);
        Ok(name)
    }

    /// Returns the name of a user.
    pub fn user(&mut self, uid: u32) -> Option<Text> {
        let find = || {
            let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
            user.map(|user| user.name.into_bytes())
        };
        self.users.entry(uid).or_insert_with(find).clone()
    }

    /// Returns the name of a group.
    pub fn group(&mut self, gid: u32) -> Option<Text> {
        let find = || {
            let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
            group.map(|group| group.name.into_bytes())
        };
        self.groups.entry(gid).or_insert_with(find).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_names_follow_changes() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other, link] = ["one", "other", "link"].map(|name| folder.path().join(name));
        fs::write(&one, "1").unwrap();
        fs::write(&other, "2").unwrap();
        std::os::unix::fs::symlink("one", &link).unwrap();
        let mut names = Names::default();
        let mut real = || {
            let status = fs::metadata(&link).unwrap();
            let real = names.real(&link, &status).unwrap();
            real.file_name().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!([real(), real()], ["one", "one"]);
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("other", &link).unwrap();
        assert_eq!(real(), "other");
        fs::rename(&other, folder.path().join("moved")).unwrap();
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("moved", &link).unwrap();
        assert_eq!(real(), "moved");
    }
}
