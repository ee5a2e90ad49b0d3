//! Chooses the journal of a database by its file system.

use std::path::Path;

use nix::sys::statfs::{self, FsType, statfs};

/// Journal of an SQLite database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journal {
    /// New pages go to a separate file, so readers never wait for the writer. All processes share memory, so
    /// they must be on one machine.
    WriteAhead,
    /// Old pages are saved in a separate file. Works with any file system that has locks.
    Rollback,
}

const XFS_SUPER_MAGIC: FsType = FsType(0x5846_5342);

/// File systems of one machine. Several machines may share all others: NFS, Lustre, GPFS, BeeGFS, CIFS, and
/// those behind FUSE.
const LOCAL: [FsType; 6] = [
    statfs::EXT4_SUPER_MAGIC,
    XFS_SUPER_MAGIC,
    statfs::BTRFS_SUPER_MAGIC,
    statfs::TMPFS_MAGIC,
    statfs::F2FS_SUPER_MAGIC,
    statfs::OVERLAYFS_SUPER_MAGIC,
];

/// Returns the journal for a database in a directory.
#[must_use]
pub fn journal(dir: &Path) -> Journal {
    match statfs(dir) {
        Ok(found) => of_type(found.filesystem_type()),
        Err(_) => Journal::Rollback,
    }
}

fn of_type(kind: FsType) -> Journal {
    if LOCAL.contains(&kind) {
        Journal::WriteAhead
    } else {
        Journal::Rollback
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_file_systems_get_a_write_ahead_log() {
        const LUSTRE: FsType = FsType(0x0bd0_0bd0);
        for kind in [statfs::NFS_SUPER_MAGIC, statfs::SMB_SUPER_MAGIC, LUSTRE] {
            assert_eq!(of_type(kind), Journal::Rollback);
        }
        assert_eq!(of_type(statfs::EXT4_SUPER_MAGIC), Journal::WriteAhead);
        assert_eq!(journal(Path::new("/proc")), Journal::Rollback);
        assert_eq!(journal(Path::new("/nowhere/at/all")), Journal::Rollback);
    }
}
