//! Sends programs to the hosts of a launch: what the front end does for it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use pmc_link::{Listen, PeerServer, RunKey};

use super::load::{Failure, NotLoaded, START_TIMEOUT, interrupted};
use super::{Event, Launch};
use crate::arguments::{Bcast, Options};
use crate::error::LaunchError;
use crate::frames::{ToFront, ToProxy};
use crate::proxy::program;
use crate::spread::addresses;
use crate::spread::files::{Files, Unsendable};
use crate::spread::instead::Instead;
use crate::spread::messages::{Offer, RawPath, Room, Secret, Sources};
use crate::spread::plan::{HostState, Plan, plan};
use crate::world::World;

/// What is sent, and to whom.
pub(super) struct Spread {
    files: Files,
    key: RunKey,
    server: Option<PeerServer>,
    instead: Option<Instead>,
}

impl Spread {
    /// Reads the files.
    fn new(options: &Options, world: &World) -> Result<Self, LaunchError> {
        let mut files = Files::default();
        let path = std::env::var_os("PATH");
        for words in &world.programs {
            let word = words.first().map_or(&[][..], Vec::as_slice);
            let shown = String::from_utf8_lossy(word);
            let program = program::find(word, path.as_deref().map(OsStrExt::as_bytes))
                .map_err(|why| LaunchError::Failed(format!("{shown}: {why}")))?;
            files
                .add(&program, options.send_libs, &options.files)
                .map_err(|Unsendable { what, why }| LaunchError::Failed(format!("{what}: {why}")))?;
        }
        let key = RunKey::generate().map_err(|error| LaunchError::Failed(error.to_string()))?;
        Ok(Self {
            files,
            key,
            server: None,
            instead: None,
        })
    }
}

/// What a phase waits for.
enum Answer<T> {
    Given(T),
    /// It belongs to the phase, but is not its end.
    Noted,
    Other(Box<ToFront>),
}

impl Launch<'_> {
    /// Sends what `--bcast` asks for. Before a byte moves, all hosts have room for it.
    pub(super) fn send_programs(&mut self) -> Result<(), NotLoaded> {
        let when = self.options.bcast.unwrap_or_default();
        if when == Bcast::Never {
            return Ok(());
        }
        let begun = Instant::now();
        let spread = match self.spread.take() {
            Some(spread) => spread,
            None => Spread::new(self.options, &self.world)?,
        };
        let spread = self.spread.insert(spread);
        let common = Offer {
            secret: Secret(spread.key.as_bytes().to_vec()),
            folder: std::env::var_os("PMC_PROGRAM_DIR").map(|value| RawPath(value.as_bytes().to_vec())),
            takes_seen: when == Bcast::Auto,
            files: spread.files.offered.clone(),
            programs: Vec::new(),
        };
        let needs = spread.files.needs.clone();
        let programs: Vec<Vec<u32>> = (0..self.world.hosts.len())
            .map(|host| programs_of(&self.world, host as u32))
            .collect();
        for (number, own) in programs.iter().enumerate() {
            let own = own.iter().filter_map(|program| needs.get(*program as usize));
            let offer = Offer {
                programs: own.cloned().collect(),
                ..common.clone()
            };
            self.proxies.say(number, &ToProxy::Offer(Box::new(offer)));
        }
        let rooms = self.gather(true, |_, message| match message {
            ToFront::Room(room) => Answer::Given(room),
            other => Answer::Other(Box::new(other)),
        })?;
        let states: Vec<HostState> = rooms
            .iter()
            .zip(&programs)
            .map(|(room, programs)| HostState {
                programs: programs.clone(),
                missing: room.missing.clone(),
                has_room: room.lack.is_none(),
            })
            .collect();
        let plan = plan(&states, &needs);
        self.give(&plan, &rooms, &programs)?;
        self.wait_for_files()?;
        if self.options.timing {
            let hosts = plan.sources.iter().filter(|own| !own.is_empty()).count();
            let seconds = begun.elapsed().as_secs_f64();
            pmc_terminal::message(format_args!("programs sent to {hosts} hosts in {seconds:.3} s"));
        }
        Ok(())
    }

    /// Says to all hosts from where they get what they lack.
    fn give(&mut self, plan: &Plan, rooms: &[Room], programs: &[Vec<u32>]) -> Result<(), LaunchError> {
        let instead = self.copy_instead(plan, rooms)?;
        let Some(spread) = &mut self.spread else {
            return Ok(());
        };
        let mut front = Vec::new();
        if plan.sources.iter().any(|own| !own.is_empty()) {
            let server = PeerServer::of_files(&spread.key, &Listen::default(), spread.files.giver());
            let server = server.map_err(|error| LaunchError::Failed(error.to_string()))?;
            front = addresses::own(server.port());
            if let Ok(Ok(name)) = nix::unistd::gethostname().map(std::ffi::OsString::into_string) {
                front.insert(0, format!("{name}:{}", server.port()));
            }
            // This host, if the network knows no way to it.
            front.push(format!("127.0.0.1:{}", server.port()));
            spread.server = Some(server);
        }
        for (number, files) in plan.sources.iter().enumerate() {
            let givers: BTreeSet<u32> = files.iter().flat_map(|source| source.givers.clone()).collect();
            let hosts = givers.into_iter().filter_map(|giver| {
                let (room, host) = (rooms.get(giver as usize)?, self.world.hosts.get(giver as usize)?);
                let named = format!("{}:{}", host.name, room.port);
                Some((
                    giver,
                    std::iter::once(named).chain(room.addresses.clone()).collect(),
                ))
            });
            let own = programs.get(number).map_or(&[][..], Vec::as_slice);
            let sources = Sources {
                files: files.clone(),
                hosts: hosts.collect::<BTreeMap<u32, Vec<String>>>(),
                front: front.clone(),
                instead: instead
                    .iter()
                    .filter(|(program, _)| own.contains(program))
                    .cloned()
                    .collect(),
            };
            self.proxies.say(number, &ToProxy::Sources(Box::new(sources)));
        }
        Ok(())
    }

    /// Copies programs for which some host has no room to where all hosts see them. Says so once.
    fn copy_instead(&mut self, plan: &Plan, rooms: &[Room]) -> Result<Vec<(u32, RawPath)>, LaunchError> {
        if plan.instead.is_empty() {
            return Ok(Vec::new());
        }
        let without = self.names_of(|number| rooms.get(number).is_some_and(|room| room.lack.is_some()));
        let lack = rooms
            .iter()
            .filter_map(|room| room.lack)
            .max_by_key(|lack| lack.needs);
        let Some(spread) = &mut self.spread else {
            return Ok(Vec::new());
        };
        if spread.instead.is_none() {
            let shared = std::env::var_os("PARALLEL_FILE_SYSTEM");
            let host = nix::unistd::gethostname().map_err(std::io::Error::from)?;
            let directory = std::env::current_dir()?;
            let made = Instead::make(shared.as_deref(), &directory, &host.to_string_lossy());
            spread.instead = Some(made?);
        }
        let Some(instead) = &spread.instead else {
            return Ok(Vec::new());
        };
        let (mut copied, mut names) = (Vec::new(), Vec::new());
        for number in &plan.instead {
            let Some(needs) = spread.files.needs.get(*number as usize) else {
                continue;
            };
            let folder = instead.path().join(number.to_string());
            // It is there if the launch was tried on other hosts before.
            if !folder.exists() {
                instead.add(needs, &spread.files)?;
            }
            copied.push((*number, RawPath(folder.as_os_str().as_bytes().to_vec())));
            let words = self.world.programs.get(*number as usize);
            let word = words
                .and_then(|words| words.first())
                .map_or(&[][..], Vec::as_slice);
            names.push(String::from_utf8_lossy(word).into_owned());
        }
        names.dedup();
        pmc_terminal::message(format_args!(
            "{without}: no room for {} of files (at most {} in one directory): all hosts take {} from {}",
            megabytes(lack.map_or(0, |lack| lack.needs)),
            megabytes(
                rooms
                    .iter()
                    .filter_map(|room| Some(room.lack?.has))
                    .min()
                    .unwrap_or(0)
            ),
            names.join(", "),
            instead.path().display()
        ));
        Ok(copied)
    }

    /// Waits until all hosts have what they lacked. Names hosts that have given wrong bytes.
    fn wait_for_files(&mut self) -> Result<(), NotLoaded> {
        // File, host that has given wrong bytes of it, host that has noticed it.
        let mut wrong = Vec::new();
        self.gather(false, |number, message| match message {
            ToFront::Spread => Answer::Given(()),
            ToFront::Wrong { file, from } => {
                wrong.extend(from.into_iter().map(|from| (file, from, number)));
                Answer::Noted
            }
            other => Answer::Other(Box::new(other)),
        })?;
        let Some(spread) = &mut self.spread else {
            return Ok(());
        };
        spread.server = None;
        let Some(spread) = &self.spread else { return Ok(()) };
        for (file, from) in culprits(&wrong) {
            let path = spread.files.offered.get(file as usize).map(|file| &file.path.0);
            let path = String::from_utf8_lossy(path.map_or(&[][..], Vec::as_slice));
            let to = |number: usize| wrong.contains(&(file, from, number));
            pmc_terminal::message(format_args!(
                "Warning: {} has given wrong bytes of {path} to {}, which took it from here",
                self.name(from as usize),
                self.names_of(to)
            ));
        }
        Ok(())
    }

    /// Waits for an answer of each host, in their order.
    fn gather<T>(
        &mut self,
        is_limited: bool,
        mut take: impl FnMut(usize, ToFront) -> Answer<T>,
    ) -> Result<Vec<T>, NotLoaded> {
        let until = Instant::now() + START_TIMEOUT;
        let mut answers: Vec<Option<T>> = (0..self.world.hosts.len()).map(|_| None).collect();
        let mut failures: Vec<Failure> = Vec::new();
        let is_open = |answers: &[Option<T>], failures: &[Failure], host: usize| {
            answers.get(host).is_some_and(Option::is_none) && !failures.iter().any(|one| one.host == host)
        };
        while (0..answers.len()).any(|host| is_open(&answers, &failures, host)) {
            let event = match is_limited {
                true => self
                    .events
                    .recv_timeout(until.saturating_duration_since(Instant::now()))
                    .ok(),
                false => self.events.recv().ok(),
            };
            let Some(event) = event else {
                let late = (0..answers.len()).filter(|host| is_open(&answers, &failures, *host));
                let late: Vec<Failure> = late
                    .map(|host| Failure {
                        what: String::new(),
                        why: format!("it did not answer in {} s", START_TIMEOUT.as_secs()),
                        host,
                    })
                    .collect();
                failures.extend(late);
                break;
            };
            let (number, message) = match event {
                Event::Proxy(number, message) => (number, message),
                Event::Signal(signal) => return Err(interrupted(signal).into()),
                Event::Written { .. } | Event::Input(_) => continue,
            };
            let failure = match message {
                Some(ToFront::Here { groups }) => {
                    self.proxies.note_groups(number, &groups, &self.world);
                    continue;
                }
                Some(ToFront::Failed { what, why }) => Failure {
                    what,
                    why,
                    host: number,
                },
                Some(message) => match take(number, message) {
                    Answer::Noted => continue,
                    Answer::Given(answer) => {
                        if let Some(place) = answers.get_mut(number) {
                            *place = Some(answer);
                        }
                        continue;
                    }
                    Answer::Other(other) => {
                        let why = format!("{} says {other:?}", self.name(number));
                        return Err(LaunchError::Failed(why).into());
                    }
                },
                // One that has failed goes then.
                None if failures.iter().any(|one| one.host == number) => continue,
                None => Failure {
                    what: String::new(),
                    why: "its proxy has gone".to_owned(),
                    host: number,
                },
            };
            failures.push(failure);
        }
        match failures.is_empty() {
            true => Ok(answers.into_iter().flatten().collect()),
            false => Err(NotLoaded::Hosts(failures)),
        }
    }
}

/// Numbers of the programs that a host has ranks of.
fn programs_of(world: &World, host: u32) -> Vec<u32> {
    let programs: BTreeSet<u32> = world.ranks_of(host).map(|(_, place)| place.program).collect();
    programs.into_iter().collect()
}

/// Files, and hosts that have given wrong bytes of them though they had got right ones.
fn culprits(wrong: &[(u32, u32, usize)]) -> BTreeSet<(u32, u32)> {
    let is_victim = |file: u32, host: u32| {
        wrong
            .iter()
            .any(|(other, _, by)| *other == file && *by == host as usize)
    };
    let all = wrong.iter().filter(|(file, from, _)| !is_victim(*file, *from));
    all.map(|(file, from, _)| (*file, *from)).collect()
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_with_wrong_bytes_is_named() {
        // 1 has spoilt file 0, so 3 and 4 got wrong bytes, and 7 from 3. 2 has spoilt file 1 for 5.
        let wrong = [(0, 1, 3), (0, 1, 4), (0, 3, 7), (1, 2, 5)];
        assert_eq!(culprits(&wrong), [(0, 1), (1, 2)].into());
        assert!(culprits(&[]).is_empty());
        assert_eq!(megabytes(104_857_600), "104.9 MB");
    }
}
