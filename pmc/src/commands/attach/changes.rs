//! Notices that files grow, where the file system reports it: at once, and without looking at each of them.

use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use super::Message;

/// Watches files. Without help of the system, it watches none.
pub struct Changes {
    inotify: Option<Arc<Inotify>>,
}

impl Changes {
    /// Sends a message when files grow.
    pub fn new(messages: SyncSender<Message>) -> Self {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC).ok().map(Arc::new);
        let inotify = inotify.filter(|inotify| {
            let inotify = Arc::clone(inotify);
            let read = move || {
                loop {
                    let watches = match inotify.read_events() {
                        // Without a watch if the queue was too short.
                        Ok(events) => events.into_iter().map(|event| event.wd).collect(),
                        Err(Errno::EINTR) => continue,
                        Err(_) => break,
                    };
                    if messages.send(Message::Changed(watches)).is_err() {
                        break;
                    }
                }
            };
            let started = std::thread::Builder::new().name("changes".into()).spawn(read);
            started.is_ok()
        });
        Self { inotify }
    }

    /// Watches the file with this path.
    pub fn watch(&self, path: &Path) -> Option<WatchDescriptor> {
        let flags = AddWatchFlags::IN_MODIFY;
        self.inotify.as_ref()?.add_watch(path, flags).ok()
    }

    /// Watches an open file, which need not have a name.
    pub fn watch_open(&self, file: &std::fs::File) -> Option<WatchDescriptor> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        self.watch(Path::new(&path))
    }

    /// Ends the watch for a file.
    pub fn end(&self, watch: WatchDescriptor) {
        if let Some(inotify) = &self.inotify {
            // The system has ended it if the file is gone.
            let _ = inotify.rm_watch(watch);
        }
    }
}
