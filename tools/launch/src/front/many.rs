//! A launch with very many proxies, all of which are simulated in this process.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

use clap::Parser as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pmc_wire::command::receive;

use super::Launch;
use super::hosts::AvailableHosts;
use super::output::Outputs;
use super::proxies::Proxies;
use crate::arguments::Options;
use crate::frames::{ToFront, ToProxy, send};
use crate::lines;
use crate::world::{Host, World};

const PROXIES: usize = 1024;
const RANKS: usize = 24;

/// Bytes of the stack of a proxy.
const STACK: usize = 256 << 10;

/// A proxy that answers a `Load` at once: its ranks are stopped. `gone` counts the proxies that have got
/// `Go`.
fn simulate(stream: UnixStream, groups: &[u32], gone: &AtomicUsize) {
    let mut front = &stream;
    while let Ok(Some(message)) = receive(&mut front) {
        match message {
            ToProxy::Load(load) => {
                let processes = load.ranks.iter().map(|rank| (rank.rank, 1)).collect();
                let here = ToFront::Here {
                    groups: groups.to_vec(),
                };
                let stopped = ToFront::Stopped {
                    processes,
                    is_held: true,
                };
                if send(&mut front, &here)
                    .and_then(|()| send(&mut front, &stopped))
                    .is_err()
                {
                    return;
                }
            }
            ToProxy::Go => {
                gone.fetch_add(1, Ordering::Relaxed);
            }
            ToProxy::Done => return,
            _ => {}
        }
    }
}

/// Prints how long it takes until all have been told to go, with `--nocapture`.
#[test]
fn many_proxies_are_told_to_load_and_to_go() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let words = ["pmc-launch", "--quiet", "./a"];
    let options = Options::try_parse_from(words).unwrap();
    let host = |number: usize| Host {
        name: format!("n{number}"),
        slots: RANKS as u32,
    };
    let mut hosts = AvailableHosts {
        hosts: (0..PROXIES).map(host).collect(),
        is_task: true,
        has_cpus: true,
    };
    let lines = lines::of_words(&options.words).unwrap();
    let world = World::new(&hosts.hosts, &options.wanted(), lines.0.clone(), lines.1).unwrap();
    assert_eq!((world.hosts.len(), world.ranks.len()), (PROXIES, PROXIES * RANKS));
    let own = nix::unistd::getgroups().unwrap_or_default();
    let mut groups: Vec<u32> = own.iter().map(|group| group.as_raw()).collect();
    groups.sort_unstable();
    let gone = Arc::new(AtomicUsize::new(0));
    let (mut ours, mut threads) = (Vec::new(), Vec::new());
    for _ in 0..PROXIES {
        let (our, their) = UnixStream::pair().unwrap();
        let (gone, groups) = (Arc::clone(&gone), groups.clone());
        let thread = std::thread::Builder::new().stack_size(STACK);
        threads.push(thread.spawn(move || simulate(their, &groups, &gone)).unwrap());
        ours.push(our);
    }
    let (sender, events) = channel();
    let proxies = Proxies::simulated(ours, &sender).unwrap();
    let outputs = Outputs::start(&options, sender.clone()).unwrap();
    let mut launch = Launch::new(&options, (world, proxies), (sender, events), outputs);
    let begun = Instant::now();
    assert!(launch.load_somewhere(&mut hosts, &lines).is_ok());
    println!(
        "{PROXIES} proxies were told to go after {:.3} s",
        begun.elapsed().as_secs_f64()
    );
    launch.proxies.end(false);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(gone.load(Ordering::Relaxed), PROXIES);
}
