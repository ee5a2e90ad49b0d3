//! The program and libraries that are in the memory of a process.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use framehop::ExplicitModuleSectionInfo;
use nix::unistd::Pid;
use object::read::{ReadCache, ReadRef};
use object::{Object as _, ObjectSection as _, ObjectSegment as _};

use crate::stopped::Memory;

/// Longest section that is read.
const MAX_SECTION: u64 = 256 << 20;

/// A file or the system's own library, as it is in the memory of a process.
#[derive(Debug)]
pub(crate) struct Module {
    /// The file, or what the system calls it.
    pub(crate) name: String,
    /// Where it can be opened, if it is a file.
    pub(crate) path: Option<PathBuf>,
    /// Which file it is: the same in all processes that have it.
    pub(crate) key: String,
    pub(crate) addresses: Range<u64>,
    /// What is added to the addresses that the file says.
    pub(crate) bias: u64,
    pub(crate) parts: Arc<Parts>,
}

/// What of a file is needed to find callers.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// Of each segment: its place in the file, and its address.
    segments: Vec<(Range<u64>, u64)>,
    sections: Sections,
}

type Section = Option<(Range<u64>, Arc<[u8]>)>;

#[derive(Debug, Default)]
struct Sections {
    text: Option<Range<u64>>,
    got: Option<Range<u64>>,
    frames: Section,
    index: Section,
    debug: Option<Arc<[u8]>>,
}

impl Parts {
    fn read<'data>(data: impl ReadRef<'data>) -> Option<Self> {
        let object = object::File::parse(data).ok()?;
        let section = |name: &str| object.section_by_name(name);
        let range = |name: &str| {
            let found = section(name)?;
            Some(found.address()..found.address().checked_add(found.size())?)
        };
        let bytes = |name: &str| -> Option<Arc<[u8]>> {
            let found = section(name).filter(|found| found.size() <= MAX_SECTION)?;
            Some(found.uncompressed_data().ok()?.into_owned().into())
        };
        let both = |name: &str| range(name).zip(bytes(name));
        let frames = both(".eh_frame");
        let segments = object.segments().filter_map(|segment| {
            let (offset, size) = segment.file_range();
            Some((offset..offset.checked_add(size)?, segment.address()))
        });
        Some(Self {
            segments: segments.collect(),
            sections: Sections {
                text: range(".text"),
                got: range(".got"),
                debug: frames.is_none().then(|| bytes(".debug_frame")).flatten(),
                frames,
                index: both(".eh_frame_hdr"),
            },
        })
    }

    /// What is added to the addresses that the file says, if this place of it is at this address.
    fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        const PAGE: u64 = 4096;
        let segment = self.segments.iter().find(|(place, _)| {
            let begin = place.start - place.start % PAGE;
            (begin..place.end.max(begin + 1)).contains(&offset)
        });
        let (place, address) = segment?;
        // The address of the place, as the file says.
        let said = address.wrapping_add(offset).wrapping_sub(place.start);
        Some(start.wrapping_sub(said))
    }

    pub(crate) fn info(&self) -> ExplicitModuleSectionInfo<Arc<[u8]>> {
        let Sections {
            text,
            got,
            frames,
            index,
            debug,
        } = &self.sections;
        let range = |section: &Section| section.as_ref().map(|(range, _)| range.clone());
        let bytes = |section: &Section| section.as_ref().map(|(_, bytes)| Arc::clone(bytes));
        ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: text.clone(),
            got_svma: got.clone(),
            eh_frame_svma: range(frames),
            eh_frame: bytes(frames),
            eh_frame_hdr_svma: range(index),
            eh_frame_hdr: bytes(index),
            debug_frame: debug.clone(),
            ..ExplicitModuleSectionInfo::default()
        }
    }
}

/// A line of the list of mappings.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    addresses: Range<u64>,
    is_code: bool,
    offset: u64,
    device: &'a str,
    inode: &'a str,
    name: &'a str,
}

fn mapping(line: &str) -> Option<Mapping<'_>> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let rights = words.next()?;
    Some(Mapping {
        addresses: hex(start)?..hex(end)?,
        is_code: rights.as_bytes().get(2) == Some(&b'x'),
        offset: hex(words.next()?)?,
        device: words.next()?,
        inode: words.next()?,
        name: words.next().unwrap_or("").trim_start(),
    })
}

/// Files that were read, by their keys.
#[derive(Default)]
pub(crate) struct Files(BTreeMap<String, Option<Arc<Parts>>>);

impl Files {
    /// Returns what is in the memory of a process, in the order of the addresses.
    pub(crate) fn modules(&mut self, pid: Pid, maps: &str, memory: &Memory) -> Vec<Module> {
        let mappings: Vec<Mapping<'_>> = maps.lines().filter_map(mapping).collect();
        let mut modules: Vec<Module> = Vec::new();
        for code in mappings.iter().filter(|mapping| mapping.is_code) {
            let key = format!("{} {} {}", code.device, code.inode, code.name);
            if modules.iter().any(|module| module.key == key) {
                continue;
            }
            let (path, parts) = match code.name {
                "[vdso]" => {
                    let length = usize::try_from(code.addresses.end - code.addresses.start).unwrap_or(0);
                    let bytes = memory.bytes(code.addresses.start, length);
                    (None, bytes.and_then(|bytes| Parts::read(&*bytes)).map(Arc::new))
                }
                name if name.starts_with('/') => {
                    // As the process sees it, which may be in a container.
                    let path = PathBuf::from(format!("/proc/{pid}/root{name}"));
                    let read = || {
                        let cache = ReadCache::new(File::open(&path).ok()?);
                        Parts::read(&cache).map(Arc::new)
                    };
                    let parts = self.0.entry(key.clone()).or_insert_with(read).clone();
                    (Some(path), parts)
                }
                _ => continue,
            };
            let Some(parts) = parts else { continue };
            let Some(bias) = parts.bias(code.addresses.start, code.offset) else {
                continue;
            };
            let of_same = mappings.iter().filter(|other| {
                (other.device, other.inode, other.name) == (code.device, code.inode, code.name)
            });
            let end = of_same.map(|other| other.addresses.end).max();
            let first = mappings.iter().find(|other| {
                (other.device, other.inode, other.name) == (code.device, code.inode, code.name)
            });
            modules.push(Module {
                name: code.name.to_owned(),
                path,
                key,
                addresses: first.map_or(code.addresses.start, |first| first.addresses.start)
                    ..end.unwrap_or(code.addresses.end),
                bias,
                parts,
            });
        }
        modules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_read() {
        let line = "7f12-7f34 r-xp 00001000 fe:01 1234                       /usr/lib/a b.so (deleted)";
        let expected = Mapping {
            addresses: 0x7f12..0x7f34,
            is_code: true,
            offset: 0x1000,
            device: "fe:01",
            inode: "1234",
            name: "/usr/lib/a b.so (deleted)",
        };
        assert_eq!(mapping(line), Some(expected));
        assert_eq!(mapping("7f12-7f34 rw-p 00000000 00:00 0").unwrap().name, "");
        for wrong in ["", "7f12", "x-y r-xp 0 0 0", "1-2 r-xp"] {
            assert_eq!(mapping(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn addresses_of_a_file_are_moved_as_its_code_is() {
        let parts = Parts {
            segments: vec![(0..0x500, 0), (0x1234..0x3000, 0x2234)],
            sections: Sections::default(),
        };
        assert_eq!(parts.bias(0x50_2000, 0x1000), Some(0x50_0000));
        assert_eq!(parts.bias(0x50_0000, 0), Some(0x50_0000));
        assert_eq!(parts.bias(0x50_0000, 0x9000), None);
        assert!(Parts::read(&b"no program"[..]).is_none());
    }
}
