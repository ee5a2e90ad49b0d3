//! Files that the front end sends to this host. A thread gets them and keeps them until the launch has ended:
//! meanwhile, the proxy listens to the front end.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use pmc_link::{Listen, Offered, PeerServer, RunKey, SilentAddresses};
use pmc_node_files::is_private;
use pmc_node_files::store::Store;

use super::say;
use crate::frames::ToFront;
use crate::spread::fetch::Fetcher;
use crate::spread::messages::{Kind, Lack, Needs, Offer, Room, Sources};
use crate::spread::room::{self, Space};
use crate::spread::{addresses, files};

/// How often a directory is tried that another launch removes at the same moment.
const ATTEMPTS: usize = 10;

/// Where ranks find what was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) program: PathBuf,
    /// The directory of its libraries.
    libraries: Option<PathBuf>,
    /// That of other files.
    files: Option<PathBuf>,
}

/// By number of the program.
pub(super) type Places = BTreeMap<u32, Place>;

/// What the thread is told.
enum Step {
    /// Files are to come from there.
    Get(Sources),
    /// All hosts have them.
    Complete,
}

/// The thread.
pub(super) struct Spread {
    steps: Sender<Step>,
    places: Arc<Mutex<Places>>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    folders: Vec<PathBuf>,
}

/// What failed, and why.
type Failure = (String, String);

impl Place {
    /// All is in one directory.
    fn below(folder: &Path, needs: &Needs) -> Self {
        let find = |kind: Kind| needs.parts.iter().find(|part| part.kind == kind);
        let directory = |kind: Kind| find(kind).map(|_| folder.join(kind.folder()));
        let name = find(Kind::Program).map_or(&[][..], |part| &part.name.0);
        Self {
            program: folder.join(Kind::Program.folder()).join(OsStr::from_bytes(name)),
            libraries: directory(Kind::Library),
            files: directory(Kind::Other),
        }
    }

    /// Says in the variables of a rank where libraries and files are.
    pub(super) fn add_to(&self, variables: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
        if let Some(files) = &self.files {
            let value = files.as_os_str().as_bytes().to_vec();
            variables.insert(b"PMC_LAUNCH_FILES".to_vec(), value);
        }
        if let Some(libraries) = &self.libraries {
            let path = variables.entry(b"LD_LIBRARY_PATH".to_vec()).or_default();
            let mut all = libraries.as_os_str().as_bytes().to_vec();
            if !path.is_empty() {
                all.push(b':');
                all.extend_from_slice(path);
            }
            *path = all;
        }
    }
}

/// Directories in which files may be. `wanted` comes first.
fn folders(wanted: Option<&[u8]>) -> Vec<PathBuf> {
    let temporary = std::env::var_os("TMPDIR");
    room::folders(wanted.map(OsStr::from_bytes), temporary.as_deref())
}

/// Removes what killed launches of this host have left.
pub(super) fn clear_left() {
    room::clear(&folders(None));
}

impl Spread {
    /// Finds room for what is offered, and says what it is.
    pub(super) fn start(offer: Offer) -> io::Result<Self> {
        let (steps, receiver) = channel();
        let folders = folders(offer.folder.as_ref().map(|folder| &*folder.0));
        let worker = Worker {
            folders: folders.clone(),
            offer,
            steps: receiver,
            places: Arc::default(),
            is_over: Arc::default(),
        };
        let (places, is_over) = (Arc::clone(&worker.places), Arc::clone(&worker.is_over));
        let run = move || {
            if let Err((what, why)) = worker.work() {
                // A front end that has gone needs nothing.
                let _ = say(&ToFront::Failed { what, why });
            }
        };
        let thread = std::thread::Builder::new().name("files".to_owned()).spawn(run)?;
        Ok(Self {
            steps,
            places,
            is_over,
            thread,
            folders,
        })
    }

    /// Gets what the host lacks. Then says so.
    pub(super) fn get(&self, sources: &Sources) {
        // A thread that has failed has said so.
        let _ = self.steps.send(Step::Get(sources.clone()));
    }

    /// All hosts have what they lacked. Returns where ranks find it here.
    pub(super) fn complete(&self) -> Places {
        let _ = self.steps.send(Step::Complete);
        self.places.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Removes what nobody uses any more.
    pub(super) fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        drop(self.steps);
        // Its panic was printed.
        let _ = self.thread.join();
        room::clear(&self.folders);
    }
}

/// What the thread knows.
struct Worker {
    folders: Vec<PathBuf>,
    offer: Offer,
    steps: Receiver<Step>,
    places: Arc<Mutex<Places>>,
    is_over: Arc<AtomicBool>,
}

impl Worker {
    fn work(&self) -> Result<(), Failure> {
        let needed = self.offer.needed();
        let file = |number: &u32| self.offer.files.get(*number as usize);
        let mut seen = BTreeMap::new();
        if self.offer.takes_seen {
            let found = |number: &u32| Some((*number, room::seen(file(number)?)?));
            seen = needed.iter().filter_map(found).collect();
        }
        if self
            .offer
            .programs
            .iter()
            .all(|needs| room::is_all_seen(needs, &seen))
        {
            return self.serve(&seen, None, None);
        }
        let lacking: Vec<u32> = needed
            .into_iter()
            .filter(|number| !seen.contains_key(number))
            .collect();
        let mut has = 0;
        for folder in &self.folders {
            for _ in 0..ATTEMPTS {
                let Ok((store, _)) = Store::open(folder.clone()) else {
                    break;
                };
                match Space::reserve(&store, &self.offer, &lacking) {
                    Ok(space) => return self.serve(&seen, Some(space), None),
                    // The last user of the directory has removed it.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(_) => break,
                }
            }
            has = has.max(room::free(folder));
            room::clear(std::slice::from_ref(folder));
        }
        let needs = lacking.iter().filter_map(file).map(|file| file.bytes).sum();
        self.serve(&seen, None, Some(Lack { needs, has }))
    }

    /// Gives on what comes in, until all hosts have it, and keeps it until the launch has ended.
    fn serve(
        &self,
        seen: &BTreeMap<u32, PathBuf>,
        mut space: Option<Space<'_>>,
        lack: Option<Lack>,
    ) -> Result<(), Failure> {
        let failed = |why: String| ("--bcast".to_owned(), why);
        let secret = self.offer.secret.0.clone();
        let key = RunKey::from_bytes(secret).map_err(|error| failed(error.to_string()))?;
        let missing = space.as_ref().map(Space::missing).unwrap_or_default();
        let mut server = match &space {
            Some(space) if !missing.is_empty() => Some(self.give(&key, space).map_err(failed)?),
            _ => None,
        };
        let port = server.as_ref().map_or(0, PeerServer::port);
        let addresses = server.as_ref().map(|_| addresses::own(port)).unwrap_or_default();
        let said = say(&ToFront::Room(Room {
            port,
            addresses,
            missing,
            lack,
        }));
        let (Ok(()), Ok(Step::Get(sources))) = (said, self.steps.recv()) else {
            return Ok(());
        };
        if let Some(space) = &mut space {
            self.get_all(&key, &sources, space)?;
        }
        let places = self.places_of(&sources, space.as_ref(), seen)?;
        *self.places.lock().unwrap_or_else(PoisonError::into_inner) = places;
        if say(&ToFront::Spread).is_ok() {
            while let Ok(step) = self.steps.recv() {
                if matches!(step, Step::Complete) {
                    server = None;
                }
            }
        }
        drop(server);
        Ok(())
    }

    /// Gives files on from now on: who asks before they come in waits.
    fn give(&self, key: &RunKey, space: &Space<'_>) -> Result<PeerServer, String> {
        let mut growing = BTreeMap::new();
        for (number, coming) in &space.coming {
            let Some(file) = self.offer.files.get(*number as usize) else {
                continue;
            };
            let reader = coming.reader().map_err(|error| error.to_string())?;
            growing.insert(file.sha256.clone(), (reader, coming.growing.clone()));
        }
        let find = move |key: &str| {
            let (file, growing) = growing.get(key)?;
            Some(Offered {
                file: file.try_clone().ok()?,
                lock: None,
                growing: Some(growing.clone()),
            })
        };
        let server = PeerServer::of_files(key, &Listen::default(), find);
        server.map_err(|error| error.to_string())
    }

    fn get_all(&self, key: &RunKey, sources: &Sources, space: &mut Space<'_>) -> Result<(), Failure> {
        let fetcher = Fetcher {
            key,
            sources,
            silent: SilentAddresses::default(),
            is_over: &self.is_over,
        };
        // What all hosts take from elsewhere needs no room.
        let is_sent = |number: &u32| sources.files.iter().any(|source| source.file == *number);
        space.coming.retain(|number, _| is_sent(number));
        for source in &sources.files {
            let Some(file) = self.offer.files.get(source.file as usize) else {
                continue;
            };
            let Some(mut coming) = space.coming.remove(&source.file) else {
                continue;
            };
            let failed = |why: String| (String::from_utf8_lossy(&file.path.0).into_owned(), why);
            let wrong = fetcher.get(file, source, &mut coming.file, &coming.progress);
            let wrong = wrong.map_err(failed)?;
            if !wrong.is_empty() {
                let file = source.file;
                // A front end that has gone needs nothing.
                let _ = say(&ToFront::Wrong { file, from: wrong });
            }
            space
                .finish(source.file, coming)
                .map_err(|error| failed(pmc_dag::reason(&error).to_string()))?;
        }
        Ok(())
    }

    fn places_of(
        &self,
        sources: &Sources,
        space: Option<&Space<'_>>,
        seen: &BTreeMap<u32, PathBuf>,
    ) -> Result<Places, Failure> {
        let mut places = Places::new();
        for needs in &self.offer.programs {
            let instead = sources
                .instead
                .iter()
                .find(|(program, _)| *program == needs.program);
            let own = needs.parts.iter().find(|part| part.kind == Kind::Program);
            let place = if let Some((_, folder)) = instead {
                let folder = Path::new(OsStr::from_bytes(&folder.0));
                self.check(folder, needs)?;
                Place::below(folder, needs)
            } else if room::is_all_seen(needs, seen) {
                Place {
                    program: own
                        .and_then(|part| seen.get(&part.file))
                        .cloned()
                        .unwrap_or_default(),
                    libraries: None,
                    files: None,
                }
            } else {
                let linked = space
                    .ok_or_else(|| io::Error::from(io::ErrorKind::StorageFull))
                    .and_then(|space| space.link(needs, seen));
                let failed = |error: io::Error| ("--bcast".to_owned(), pmc_dag::reason(&error).to_string());
                Place::below(&linked.map_err(failed)?, needs)
            };
            places.insert(needs.program, place);
        }
        Ok(places)
    }

    /// Checks that this host sees the copies that all hosts take.
    fn check(&self, folder: &Path, needs: &Needs) -> Result<(), Failure> {
        let failed = |why: &str| (folder.display().to_string(), why.to_owned());
        if !is_private(folder) {
            let why = "it is not there: does PARALLEL_FILE_SYSTEM name a directory that all hosts see?";
            return Err(failed(why));
        }
        for part in &needs.parts {
            let path = folder
                .join(part.kind.folder())
                .join(OsStr::from_bytes(&part.name.0));
            let bytes = self.offer.files.get(part.file as usize).map(|file| file.bytes);
            let found = files::open(&path).and_then(|file| file.metadata());
            if found.map(|status| status.len()).ok() != bytes {
                return Err((
                    path.display().to_string(),
                    "it is not the file that was copied".to_owned(),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spread::messages::{Part, RawPath};

    #[test]
    fn ranks_find_libraries_and_files_by_variables() {
        let part = |kind: Kind, name: &str| Part {
            kind,
            name: RawPath(name.as_bytes().to_vec()),
            file: 0,
        };
        let mut needs = Needs {
            program: 1,
            parts: vec![part(Kind::Program, "a.out")],
        };
        let mut variables = BTreeMap::from([(b"LD_LIBRARY_PATH".to_vec(), b"/own".to_vec())]);
        let place = Place::below(Path::new("/x/1"), &needs);
        assert_eq!(place.program, Path::new("/x/1/bin/a.out"));
        place.add_to(&mut variables);
        assert_eq!(variables.len(), 1);
        needs
            .parts
            .extend([part(Kind::Library, "l.so"), part(Kind::Other, "f")]);
        Place::below(Path::new("/x/1"), &needs).add_to(&mut variables);
        assert_eq!(variables[&b"LD_LIBRARY_PATH"[..]], b"/x/1/lib:/own");
        assert_eq!(variables[&b"PMC_LAUNCH_FILES"[..]], b"/x/1/files");
    }
}
