//! Which journal a database can have where it lies.

use std::path::Path;

use nix::sys::statfs::{self, FsType, statfs};

/// How a database is kept whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journal {
    /// New pages go to a file beside it: readers never wait for the writer. All processes share memory,
    /// which only works where all of them are on one machine.
    WriteAhead,
    /// Old pages are saved in a file beside it. Works wherever there are locks.
    Rollback,
}

const XFS_SUPER_MAGIC: FsType = FsType(0x5846_5342);

/// File systems of the machine itself. All others may be used by several: NFS, Lustre, GPFS, BeeGFS,
/// CIFS, and what FUSE brings.
const LOCAL: [FsType; 6] = [
    statfs::EXT4_SUPER_MAGIC,
    XFS_SUPER_MAGIC,
    statfs::BTRFS_SUPER_MAGIC,
    statfs::TMPFS_MAGIC,
    statfs::F2FS_SUPER_MAGIC,
    statfs::OVERLAYFS_SUPER_MAGIC,
];

/// The journal for a database in this directory.
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
    fn shared_memory_is_for_one_machine() {
        const LUSTRE: FsType = FsType(0x0bd0_0bd0);
        for kind in [statfs::NFS_SUPER_MAGIC, statfs::SMB_SUPER_MAGIC, LUSTRE] {
            assert_eq!(of_type(kind), Journal::Rollback);
        }
        assert_eq!(of_type(statfs::EXT4_SUPER_MAGIC), Journal::WriteAhead);
        assert_eq!(journal(Path::new("/proc")), Journal::Rollback);
        assert_eq!(journal(Path::new("/nowhere/at/all")), Journal::Rollback);
    }
}
