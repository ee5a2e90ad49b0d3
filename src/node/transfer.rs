//! Checkpoint files on their way: from other nodes, and between the disk of a node and the store beside a DAG
//! file.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use pmc_checkpoint::nodes::SavedFile;
use pmc_checkpoint::{Sidecar, TaskStore};

/// Maximum bytes of a sidecar.
const MAX_SIDECAR: u64 = 64 << 20;

/// Gets files from other members of the run.
pub(crate) trait Fetch {
    /// Writes the bytes with a key of the member with an address into a file. `None` if it has none.
    ///
    /// # Errors
    /// It cannot be reached, or the bytes cannot be written; the text is for the log.
    fn fetch(&self, address: &str, key: &str, into: &mut File) -> Result<Option<u64>, String>;
}

/// Where files go.
pub(crate) struct Target<'a> {
    pub(crate) task: &'a TaskStore,
    /// Folder for what has no name.
    pub(crate) folder: &'a Path,
    /// The files must survive a loss of power.
    pub(crate) is_durable: bool,
}

impl Target<'_> {
    /// Gets a file from one node.
    pub(crate) fn fetch(
        &self,
        source: &dyn Fetch,
        addresses: &[String],
        file: &SavedFile,
    ) -> Result<(), String> {
        let mut text = tempfile::tempfile_in(self.folder).map_err(said)?;
        fetch_from_any(source, addresses, &file.sidecar_key(), &mut text)?;
        let sidecar = read_sidecar(&mut text, file)?;
        self.fill(&sidecar, |made| {
            fetch_from_any(source, addresses, &file.key(), made)
        })
    }

    /// Copies a file that another store has.
    pub(crate) fn copy(&self, from: &TaskStore, file: &SavedFile) -> Result<(), String> {
        let opened = from.open(file.series, &file.prefix, file.rank);
        let (mut bytes, sidecar) = opened.map_err(said)?;
        if SavedFile::of(&sidecar) != *file {
            return Err("another file has its place".to_owned());
        }
        self.fill(&sidecar, |made| {
            io::copy(&mut bytes, made).map(drop).map_err(said)
        })
    }

    /// Makes a file. It counts only if its bytes are those of the sidecar.
    fn fill(
        &self,
        sidecar: &Sidecar,
        write: impl FnOnce(&mut File) -> Result<(), String>,
    ) -> Result<(), String> {
        let Sidecar {
            series, prefix, rank, ..
        } = sidecar;
        let mut made = self.task.create(*series, prefix, *rank).map_err(said)?;
        let written = write(&mut made).and_then(|()| match self.is_durable {
            true => made.sync_all().map_err(said),
            false => Ok(()),
        });
        if let Err(error) = written {
            self.task.discard(*series, prefix, *rank);
            return Err(error);
        }
        let published = match self.is_durable {
            true => self.task.publish(sidecar),
            false => self.task.publish_on_node(sidecar),
        };
        published.map_err(said)?;
        match self.task.is_whole(*series, prefix, *rank) {
            Ok(true) => Ok(()),
            checked => {
                // The next reader would find it damaged.
                let _ = self.task.remove_file(*series, prefix, *rank);
                Err(checked.map_or_else(said, |_| "its bytes are not those that were saved".to_owned()))
            }
        }
    }
}

/// Returns whether a store has a file.
pub(crate) fn has(task: &TaskStore, file: &SavedFile) -> bool {
    let opened = task.open(file.series, &file.prefix, file.rank);
    opened.is_ok_and(|(_, sidecar)| SavedFile::of(&sidecar) == *file)
}

/// Gets bytes by their key, from the first address that answers.
fn fetch_from_any(
    source: &dyn Fetch,
    addresses: &[String],
    key: &str,
    into: &mut File,
) -> Result<(), String> {
    let mut last = "it has no address".to_owned();
    for address in addresses {
        let emptied = into.set_len(0).and_then(|()| into.seek(SeekFrom::Start(0)));
        emptied.map_err(said)?;
        match source.fetch(address, key, into) {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => last = "it has the file no more".to_owned(),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn read_sidecar(from: &mut File, file: &SavedFile) -> Result<Sidecar, String> {
    let mut text = String::new();
    from.seek(SeekFrom::Start(0)).map_err(said)?;
    from.take(MAX_SIDECAR).read_to_string(&mut text).map_err(said)?;
    let sidecar = Sidecar::parse(&text).map_err(said)?;
    match SavedFile::of(&sidecar) == *file {
        true => Ok(sidecar),
        false => Err("it gives the sidecar of another file".to_owned()),
    }
}

fn said(error: impl ToString) -> String {
    error.to_string()
}
