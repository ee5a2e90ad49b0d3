//! The stacks of processes that run.

use std::fs;

use framehop::{CacheNative, MayAllocateDuringUnwind, UnwindRegsNative, Unwinder as _, UnwinderNative};
use nix::errno::Errno;
use nix::unistd::Pid;

use crate::modules::{Files, Module};
use crate::stopped::{Memory, Registers, Stopped, refusal, registers};
use crate::symbols::Symbols;
use crate::{Frame, HostStacks, MAX_FRAMES, MAX_THREADS, processes};

type Cache = CacheNative<MayAllocateDuringUnwind>;
type NativeUnwinder = UnwinderNative<std::sync::Arc<[u8]>, MayAllocateDuringUnwind>;

/// Traces the processes of these groups and below them that have no children. Each of them stands still for a
/// moment. With `all_threads`, all of their threads are traced, else the first one of each.
#[must_use]
pub fn trace(roots: &[i32], all_threads: bool) -> HostStacks {
    let roots: Vec<Pid> = roots.iter().copied().map(Pid::from_raw).collect();
    let (found, left_out) = processes::find(&roots);
    let (mut files, mut symbols) = (Files::default(), Symbols::default());
    let mut stacks = HostStacks {
        left_out,
        ..HostStacks::default()
    };
    for (at, process) in found.iter().enumerate() {
        let pid = Pid::from_raw(process.pid);
        match addresses(pid, all_threads, &mut files) {
            Err(error) => stacks.failures.push((at, refusal(pid, error))),
            Ok((modules, threads)) => {
                for (thread, addresses) in threads {
                    let frames = addresses.into_iter().flat_map(|at| symbols.at(at, &modules));
                    let frames: Vec<Frame> = frames.take(MAX_FRAMES).collect();
                    stacks.add(at, thread, frames);
                }
            }
        }
    }
    stacks.processes = found;
    stacks
}

/// Finds the stacks of threads that stand still because the thread that calls this traces them, as one does
/// that waits for a crash. What it has read of programs serves the next thread, too.
#[derive(Default)]
pub struct Tracer {
    files: Files,
    symbols: Symbols,
}

impl Tracer {
    /// Returns the frames of a thread, the innermost first.
    ///
    /// # Errors
    /// It cannot be read: why.
    pub fn frames(&mut self, thread: i32) -> Result<Vec<Frame>, String> {
        let thread = Pid::from_raw(thread);
        let mut read = || {
            let view = View::new(thread, &mut self.files)?;
            let addresses = unwind(
                &view.unwinder,
                &mut Cache::new(),
                registers(thread)?,
                &view.memory,
            );
            Ok((addresses, view.modules))
        };
        let (addresses, modules) = read().map_err(|error: Errno| refusal(thread, error))?;
        let frames = addresses.into_iter().flat_map(|at| self.symbols.at(at, &modules));
        Ok(frames.take(MAX_FRAMES).collect())
    }
}

/// What of a process is needed to find callers.
struct View {
    memory: Memory,
    modules: Vec<Module>,
    unwinder: NativeUnwinder,
}

impl View {
    fn new(pid: Pid, files: &mut Files) -> Result<Self, Errno> {
        let system = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO));
        let memory = Memory::open(pid).map_err(system)?;
        let maps = fs::read(format!("/proc/{pid}/maps")).map_err(system)?;
        let modules = files.modules(pid, &String::from_utf8_lossy(&maps), &memory);
        let mut unwinder = NativeUnwinder::new();
        for module in &modules {
            let range = module.addresses.clone();
            let info = module.parts.info();
            unwinder.add_module(framehop::Module::new(
                module.name.clone(),
                range,
                module.bias,
                info,
            ));
        }
        Ok(Self {
            memory,
            modules,
            unwinder,
        })
    }
}

/// Addresses in the functions of a thread, the innermost first.
type Addresses = (i32, Vec<u64>);

/// Stops a process and reads where its threads are. It goes on before this returns.
fn addresses(pid: Pid, all_threads: bool, files: &mut Files) -> Result<(Vec<Module>, Vec<Addresses>), Errno> {
    let View {
        memory,
        modules,
        unwinder,
    } = View::new(pid, files)?;
    let threads = match all_threads {
        true => threads_of(pid),
        false => vec![pid],
    };
    let mut cache = Cache::new();
    let mut stacks = Vec::new();
    // All are asked before the first one is waited for: they stand still at about the same time.
    let mut stopped = Vec::new();
    for thread in threads {
        match Stopped::begin(thread) {
            Ok(one) => stopped.push((thread, one)),
            // It has ended.
            Err(Errno::ESRCH) if thread != pid => {}
            Err(error) => return Err(error),
        }
    }
    for (thread, one) in &mut stopped {
        let registers = match one.wait() {
            Ok(registers) => registers,
            Err(Errno::ESRCH | Errno::ECHILD) if *thread != pid => continue,
            Err(error) => return Err(error),
        };
        let frames = unwind(&unwinder, &mut cache, registers, &memory);
        stacks.push((thread.as_raw(), frames));
    }
    Ok((modules, stacks))
}

fn threads_of(pid: Pid) -> Vec<Pid> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let threads = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut threads: Vec<i32> = threads.collect();
    threads.sort_unstable_by_key(|thread| (*thread != pid.as_raw(), *thread));
    threads.truncate(MAX_THREADS);
    threads.into_iter().map(Pid::from_raw).collect()
}

fn unwind(unwinder: &NativeUnwinder, cache: &mut Cache, registers: Registers, memory: &Memory) -> Vec<u64> {
    #[cfg(target_arch = "x86_64")]
    let start = UnwindRegsNative::new(registers.instruction, registers.stack, registers.frame);
    #[cfg(target_arch = "aarch64")]
    let start = UnwindRegsNative::new(registers.link, registers.stack, registers.frame);
    let mut read = |address| memory.word(address).ok_or(());
    let mut frames = unwinder.iter_frames(registers.instruction, start, cache, &mut read);
    let mut addresses = Vec::new();
    // After an error, what was found so far counts.
    while let Ok(Some(frame)) = frames.next() {
        addresses.push(frame.address_for_lookup());
        if addresses.len() >= MAX_FRAMES {
            break;
        }
    }
    addresses
}
