//! The files of a store.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pmc_files::Folder;

use crate::error::at;
use crate::own::{
    MAX_TEXT, check_owner, make_directories, make_directory, own_folder, remove_directory, replace, write_new,
};
use crate::{Notice, StoreError, TaskStore, notice, task_directory};

/// Levels of directories in the directory of a store: tasks and series.
const DEPTH: u32 = 2;

/// The checkpoint store of a DAG.
#[derive(Clone, Debug)]
pub struct Store {
    path: PathBuf,
    id: String,
    /// It is the part of a store that a node has.
    is_on_node: bool,
}

impl Store {
    /// Returns the path of the store of a DAG.
    #[must_use]
    pub fn path_for(dag: &Path) -> PathBuf {
        let mut path = OsString::from(dag);
        path.push(".checkpoints");
        path.into()
    }

    /// Opens the store of a DAG, if it has one.
    ///
    /// # Errors
    /// It is that of another user, or cannot be read.
    pub fn open(dag: &Path) -> Result<Option<Self>, StoreError> {
        let path = Self::path_for(dag);
        match Folder::find(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(at(&path)(error)),
            Ok(folder) => check_owner(&folder, &path)?,
        }
        let file = path.join("id");
        match pmc_files::read_to_string(&file, MAX_TEXT) {
            Ok(text) => {
                let id = text.trim_end().to_owned();
                match is_id(&id) {
                    true => Ok(Some(Self {
                        path,
                        id,
                        is_on_node: false,
                    })),
                    false => Err(StoreError::Id(file)),
                }
            }
            // It is being made.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(at(&file)(error)),
        }
    }

    /// Opens the store of a DAG, or makes it.
    ///
    /// # Errors
    /// As [`open`](Self::open), or it cannot be made.
    pub fn make(dag: &Path) -> Result<Self, StoreError> {
        if let Some(store) = Self::open(dag)? {
            return Ok(store);
        }
        let path = Self::path_for(dag);
        make_directory(&path)?;
        let id = getrandom::u64().and_then(|high| Ok((high, getrandom::u64()?)));
        let (high, low) = id.map_err(|error| at(&path)(io::Error::other(error)))?;
        let file = path.join("id");
        match write_new(&file, format!("{high:016x}{low:016x}\n").as_bytes()) {
            // Another process was first.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            written => written.map_err(at(&file))?,
        }
        Self::open(dag)?.ok_or_else(|| at(&file)(io::ErrorKind::NotFound.into()))
    }

    /// Opens the part of a store that is on a node, or makes it: a directory with the name of the id in
    /// `folder`, which is made, too.
    ///
    /// # Errors
    /// It is that of another user, or cannot be made.
    pub fn make_on_node(folder: &Path, id: &str) -> Result<Self, StoreError> {
        if !is_id(id) {
            return Err(StoreError::Id(folder.to_owned()));
        }
        let path = folder.join(id);
        make_directories(&[folder, &path])?;
        let id = id.to_owned();
        Ok(Self {
            path,
            id,
            is_on_node: true,
        })
    }

    /// Returns the ids of the stores of which a node has a part in this folder.
    #[must_use]
    pub fn ids_on_node(folder: &Path) -> Vec<String> {
        let entries = own_folder(folder)
            .ok()
            .and_then(|folder| fs::read_dir(folder.path()).ok());
        let names = entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name());
        let ids = names.filter_map(|name| name.into_string().ok().filter(|name| is_id(name)));
        ids.collect()
    }

    /// Removes the directories of a part of a store on a node in which there is nothing, and the folder with
    /// it if that is empty then. Other agents of the host may use them: they make them again.
    pub fn remove_empty_on_node(folder: &Path) {
        for id in Self::ids_on_node(folder) {
            remove_empty(&folder.join(id), DEPTH);
        }
        let _ = fs::remove_dir(folder);
    }

    /// Returns the id of the store.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the directory of the store.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the files of a task.
    ///
    /// # Errors
    /// It cannot have any.
    pub fn task(&self, name: &[u8]) -> Result<TaskStore, StoreError> {
        Ok(self.directory(&task_directory(name)?))
    }

    /// Returns the files of the task with this directory; `None` if no task has it.
    #[must_use]
    pub fn task_in(&self, directory: &str) -> Option<TaskStore> {
        crate::task_name(directory).map(|_| self.directory(directory))
    }

    fn directory(&self, task: &str) -> TaskStore {
        TaskStore::new(&self.path, task, &self.id, self.is_on_node)
    }

    /// Returns the tasks that have saved something, in the order of their names.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn tasks(&self) -> Result<Vec<TaskStore>, StoreError> {
        let mut tasks = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(at(&self.path))? {
            let entry = entry.map_err(at(&self.path))?;
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if let Some(name) = entry.file_name().to_str()
                && is_directory
                && crate::task_name(name).is_some()
            {
                tasks.push(self.directory(name));
            }
        }
        tasks.sort_by(|a, b| a.directory().cmp(b.directory()));
        Ok(tasks)
    }

    /// Returns what the run says to its tasks.
    #[must_use]
    pub fn notice(&self) -> Notice {
        let text = pmc_files::read_to_string(&self.path.join("notice"), notice::MAX_SIZE).ok();
        text.and_then(|text| Notice::parse(&text)).unwrap_or_default()
    }

    /// Writes what the run says to its tasks.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn set_notice(&self, notice: Notice) -> Result<(), StoreError> {
        let path = self.path.join("notice");
        replace(&path, notice.text().as_bytes()).map_err(at(&path))
    }

    /// Removes the store with all files.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn remove(self) -> Result<(), StoreError> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = Folder::find(parent.unwrap_or(Path::new("."))).map_err(at(&self.path))?;
        remove_directory(&parent, &self.path)
    }
}

/// Removes a directory if there is nothing in it but empty directories, this number of levels deep.
fn remove_empty(path: &Path, levels: u32) {
    if levels > 0 {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        // Not what links lead to.
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        directories.for_each(|entry| remove_empty(&entry.path(), levels - 1));
    }
    // One that is not empty stays.
    let _ = fs::remove_dir(path);
}

/// Returns whether a text can be the id of a store.
fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
