//! How a host gets a file: from the host above it, else from the one above that, at last from the front end.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Seek as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pmc_link::{Growing, PeerError, Progress, RunKey, SilentAddresses};

use super::files::Checksum;
use super::messages::{OfferedFile, Source, Sources};

/// How often the front end is asked: it may give to too many hosts at a time.
const TRIES: usize = 5;

/// Time between two of these attempts.
const PAUSE: Duration = Duration::from_millis(300);

/// Who gives a file: a host, or the front end.
type Giver = Option<u32>;

/// Gets files of a launch.
#[derive(Debug)]
pub(crate) struct Fetcher<'a> {
    pub(crate) key: &'a RunKey,
    pub(crate) sources: &'a Sources,
    pub(crate) silent: SilentAddresses,
    /// Nobody needs them any more.
    pub(crate) is_over: &'a AtomicBool,
}

/// What has come from an address.
enum Got {
    Right,
    Wrong,
}

impl Fetcher<'_> {
    /// Gets a file. Returns hosts that have given wrong bytes: after one, only the front end is asked.
    ///
    /// # Errors
    /// Nobody gives it: why.
    pub(crate) fn get(
        &self,
        file: &OfferedFile,
        source: &Source,
        into: &mut File,
        progress: &Progress,
    ) -> Result<Vec<u32>, String> {
        let mut wrong = Vec::new();
        // Of the giver that was asked last, by its first address.
        let mut why: Option<(Giver, String)> = None;
        let hosts = source.givers.iter().map(|host| Some(*host));
        for giver in hosts.chain([None; TRIES]) {
            if giver.is_some() && !wrong.is_empty() {
                continue;
            }
            for address in self.addresses(giver) {
                if self.is_over.load(Ordering::Relaxed) {
                    return Err("the launch has ended".to_owned());
                }
                if giver.is_some() && self.silent.has(address) {
                    continue;
                }
                match (self.get_from(file, address, into, progress), giver) {
                    (Ok(Got::Right), _) => return Ok(wrong),
                    (Ok(Got::Wrong), Some(host)) => {
                        wrong.push(host);
                        break;
                    }
                    (Ok(Got::Wrong), None) => {
                        return Err("the front end gives other bytes than it has read before: was it \
                                    changed meanwhile?"
                            .to_owned());
                    }
                    (Err(error), _) if why.as_ref().is_none_or(|(of, _)| *of != giver) => {
                        why = Some((giver, format!("{address}: {}", pmc_dag::reason(&error))));
                    }
                    (Err(_), _) => {}
                }
            }
            if giver.is_none() {
                std::thread::sleep(PAUSE);
            }
        }
        Err(why.map_or_else(|| "no host gives it".to_owned(), |(_, why)| why))
    }

    fn addresses(&self, giver: Giver) -> &[String] {
        let own = giver.map_or(Some(&self.sources.front), |host| self.sources.hosts.get(&host));
        own.map_or(&[], Vec::as_slice)
    }

    /// What is in the file is read back, as it comes in: so what the disk makes of it counts, too.
    fn get_from(
        &self,
        file: &OfferedFile,
        address: &str,
        into: &mut File,
        progress: &Progress,
    ) -> io::Result<Got> {
        into.rewind()?;
        let written = into.try_clone()?;
        let (checksum, is_other) = (RefCell::new(Checksum::default()), Cell::new(false));
        let coming: RefCell<Option<Growing>> = RefCell::default();
        let go_on = || {
            let there = coming.borrow().as_ref().map_or(0, Growing::there);
            progress.reach(there);
            let is_read = checksum.borrow_mut().read_to(&written, there).is_ok();
            is_read && !is_other.get() && !self.is_over.load(Ordering::Relaxed)
        };
        let grows = |growing: Growing| {
            // More would be written than there is room for.
            is_other.set(growing.bytes() != file.bytes);
            *coming.borrow_mut() = Some(growing);
        };
        let got = pmc_link::fetch(self.key, address, &file.sha256, into, &go_on, &grows);
        let bytes = match got {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Err(io::Error::other("it does not have it")),
            Err(_) if is_other.get() => return Ok(Got::Wrong),
            Err(PeerError::System(error)) => {
                self.silent.note(address, &error);
                return Err(error);
            }
            Err(error) => return Err(io::Error::other(error.to_string())),
        };
        let mut checksum = checksum.into_inner();
        checksum.read_to(&written, bytes)?;
        if is_other.get() || checksum.finish() != (file.bytes, file.sha256.clone()) {
            return Ok(Got::Wrong);
        }
        progress.reach(bytes);
        Ok(Got::Right)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Write as _;
    use std::os::unix::fs::FileExt as _;

    use pmc_link::{Listen, Offered, PeerServer};
    use sha2::{Digest as _, Sha256};

    use super::super::messages::RawPath;
    use super::*;

    fn content() -> Vec<u8> {
        (0..700_000_u32).map(|number| (number / 7) as u8).collect()
    }

    fn offered(content: &[u8]) -> OfferedFile {
        let digits = Sha256::digest(content);
        OfferedFile {
            sha256: digits.iter().map(|byte| format!("{byte:02x}")).collect(),
            bytes: content.len() as u64,
            path: RawPath(b"/x".to_vec()),
            seen: (0, 0, 0),
        }
    }

    /// A host that gives these bytes, whatever it is asked for.
    fn giver(key: &RunKey, content: Vec<u8>) -> (PeerServer, Vec<String>) {
        let find = move |_: &str| {
            let mut file = tempfile::tempfile().ok()?;
            file.write_all(&content).ok()?;
            Some(Offered {
                file,
                lock: None,
                growing: None,
            })
        };
        let server = PeerServer::of_files(key, &Listen::loopback(), find).unwrap();
        let address = format!("127.0.0.1:{}", server.port());
        (server, vec![address])
    }

    struct Scene {
        key: RunKey,
        file: OfferedFile,
        sources: Sources,
        _servers: Vec<PeerServer>,
    }

    impl Scene {
        /// Hosts that give these bytes, and then the front end.
        fn new(hosts: Vec<Vec<u8>>, front: Vec<u8>) -> Self {
            let key = RunKey::generate().unwrap();
            let (mut servers, mut sources) = (Vec::new(), Sources::default());
            for (number, content) in (0..).zip(hosts) {
                let (server, addresses) = giver(&key, content);
                servers.push(server);
                sources.hosts.insert(number, addresses);
            }
            let (server, addresses) = giver(&key, front);
            servers.push(server);
            sources.front = addresses;
            Self {
                key,
                file: offered(&content()),
                sources,
                _servers: servers,
            }
        }

        fn get(&self, givers: &[u32]) -> (Result<Vec<u32>, String>, Vec<u8>, u64) {
            let fetcher = Fetcher {
                key: &self.key,
                sources: &self.sources,
                silent: SilentAddresses::default(),
                is_over: &AtomicBool::new(false),
            };
            let source = Source {
                file: 0,
                givers: givers.to_vec(),
            };
            let mut into = tempfile::tempfile().unwrap();
            into.set_len(self.file.bytes).unwrap();
            let (progress, growing) = Growing::new(self.file.bytes, 0o700);
            let got = fetcher.get(&self.file, &source, &mut into, &progress);
            let mut copy = vec![0; self.file.bytes as usize];
            into.read_exact_at(&mut copy, 0).unwrap();
            (got, copy, growing.there())
        }
    }

    #[test]
    fn a_file_comes_from_the_nearest_host_that_has_it() {
        let scene = Scene::new(vec![content(), Vec::new()], Vec::new());
        let (got, copy, there) = scene.get(&[0, 1]);
        assert_eq!((got, there), (Ok(Vec::new()), scene.file.bytes));
        assert!(copy == content());
    }

    #[test]
    fn a_flipped_byte_is_noticed_and_its_host_named() {
        let mut flipped = content();
        flipped[600_000] ^= 1;
        let scene = Scene::new(vec![flipped.clone(), content()], content());
        let (got, copy, _) = scene.get(&[0, 1]);
        assert_eq!(got, Ok(vec![0]));
        assert!(copy == content());
        let scene = Scene::new(vec![], flipped);
        let (got, _, _) = scene.get(&[]);
        assert!(got.unwrap_err().contains("changed meanwhile"));
    }

    #[test]
    fn no_host_writes_more_than_there_is_room_for() {
        let long = [content(), content()].concat();
        let scene = Scene::new(vec![long, content()[..9].to_vec()], content());
        for giver in [0, 1] {
            let (got, copy, _) = scene.get(&[giver]);
            assert_eq!(got, Ok(vec![giver]));
            assert!(copy == content());
        }
    }

    #[test]
    fn hosts_that_have_gone_are_passed_over() {
        let mut scene = Scene::new(vec![content()], content());
        scene.sources.hosts = BTreeMap::from([(0, vec!["127.0.0.1:9".to_owned()])]);
        let (got, copy, _) = scene.get(&[0, 7]);
        assert_eq!(got, Ok(Vec::new()));
        assert!(copy == content());
    }

    #[test]
    fn nothing_is_fetched_for_a_launch_that_has_ended() {
        let scene = Scene::new(vec![content()], content());
        let fetcher = Fetcher {
            key: &scene.key,
            sources: &scene.sources,
            silent: SilentAddresses::default(),
            is_over: &AtomicBool::new(true),
        };
        let source = Source {
            file: 0,
            givers: vec![0],
        };
        let (progress, growing) = Growing::new(scene.file.bytes, 0o700);
        let mut into = tempfile::tempfile().unwrap();
        assert!(fetcher.get(&scene.file, &source, &mut into, &progress).is_err());
        assert_eq!(growing.there(), 0);
    }
}
