//! Jobs and dependencies of a large DAX, read by several threads ahead of the reader.
//!
//! What a regular element says follows from its text alone, wherever the reader comes from. So the text is
//! cut into pieces, and threads read the elements that begin in them, without knowing whether the reader will
//! come there: it may be in a comment. The reader takes an element that was read already when it stands at
//! its first byte, and reads itself what is not regular or not read yet. So the workflow is the same as
//! without these threads.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::job::Rules;
use super::regular::{Found, Names, Scan, add_child, child, job};
use crate::input::builder::{Builder, LastUses, is_harmless};
use crate::model::{FileId, FileUse, Job, TransformationName};
use crate::syntax::interner::Interner;
use crate::syntax::xml::Xml;

/// Bytes from which on several threads read a workflow.
pub(super) const LARGE: usize = 1 << 20;
/// Bytes of a piece.
pub(super) const PIECE: usize = 256 << 10;
/// Threads at most: what they have read is added to the workflow by one of them.
pub(super) const THREADS: usize = 8;
/// Elements that are not regular after which a piece is left to the reader.
const ODD: usize = 64;
/// No number.
const NONE: u32 = u32::MAX;

/// The pieces of a text.
pub(super) struct Ahead<'a> {
    text: &'a str,
    /// Bytes of a piece.
    size: usize,
    pieces: Mutex<Pieces<'a>>,
    changed: Condvar,
}

/// What became of the pieces.
struct Pieces<'a> {
    all: Vec<State<'a>>,
    /// None before it is free.
    next: usize,
}

enum State<'a> {
    /// Nobody has read it.
    Free,
    /// Somebody is reading it.
    Taken,
    /// It is read.
    Read(Box<Piece<'a>>),
    /// It is the reader's.
    Over,
}

/// What a piece says.
#[derive(Default)]
struct Piece<'a> {
    items: Vec<Item<'a>>,
    jobs: Vec<Option<Job>>,
    files: Files,
    /// Of children one after the other: where their parents are named, and their ids.
    parents: Vec<(usize, &'a str)>,
    /// Of jobs with files for their standard input or outputs, the numbers of all files in order.
    mentioned: Vec<u32>,
}

/// An element.
struct Item<'a> {
    begin: usize,
    end: usize,
    /// Line breaks before it in the piece, and where its line begins if there are some.
    lines: u32,
    line_start: usize,
    what: What<'a>,
}

enum What<'a> {
    /// The number of the job in the piece, and its part of [`Piece::mentioned`].
    Job(usize, Range<usize>),
    /// Its id, and its part of [`Piece::parents`].
    Child(&'a str, Range<usize>),
}

/// Files of a piece.
#[derive(Default)]
struct Files {
    names: Interner,
    last_uses: LastUses,
    /// Those of the job that is being read, in order.
    mentioned: Vec<u32>,
}

impl Names for Files {
    fn harmless(&mut self, name: &str) -> Option<FileId> {
        if !is_harmless(name) {
            return None;
        }
        let (number, new) = self.names.intern(name);
        if new {
            self.last_uses.enter();
        }
        self.mentioned.push(number);
        Some(FileId(number))
    }
}

impl<'a> Ahead<'a> {
    pub(super) fn new(text: &'a str, size: usize) -> Self {
        let size = size.max(1);
        let all = (0..text.len().div_ceil(size)).map(|_| State::Free).collect();
        Ahead {
            text,
            size,
            pieces: Mutex::new(Pieces { all, next: 0 }),
            changed: Condvar::new(),
        }
    }

    /// Calls the reader, while so many threads read ahead.
    pub(super) fn with_helpers<R>(&self, helpers: usize, rules: Rules, reader: impl FnOnce() -> R) -> R {
        std::thread::scope(|scope| {
            for _ in 0..helpers {
                let help = || while self.read_next(self.lock(), rules) {};
                // Without the thread the reader has more to do.
                let _ = std::thread::Builder::new().spawn_scoped(scope, help);
            }
            // However the reader ends, the helpers are not to go on.
            let _end = End(self);
            reader()
        })
    }

    fn lock(&self) -> MutexGuard<'_, Pieces<'a>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the next piece that is free; `false` if there is none.
    fn read_next(&self, mut pieces: MutexGuard<'_, Pieces<'a>>, rules: Rules) -> bool {
        let Some(rest) = pieces.all.get(pieces.next..) else {
            return false;
        };
        let Some(n) = rest.iter().position(|state| matches!(state, State::Free)) else {
            return false;
        };
        let n = pieces.next + n;
        pieces.next = n + 1;
        pieces.all[n] = State::Taken;
        drop(pieces);
        // If this thread panics, the reader is not to wait for it.
        let mut taken = Taken {
            ahead: self,
            n,
            piece: None,
        };
        taken.piece = Some(Box::new(self.piece(n, rules)));
        true
    }

    /// The elements that begin in a piece.
    fn piece(&self, n: usize, rules: Rules) -> Piece<'a> {
        let start = n * self.size;
        let limit = self.text.len().min(start + self.size);
        let mut piece = Piece::default();
        let mut found = Found::default();
        let mut runs = None;
        let (mut counted, mut lines, mut line_start) = (start, 0_u32, start);
        let mut odd = 0;
        let mut at = start;
        // Whether `at` is right behind an element.
        let mut follows = false;
        while odd <= ODD {
            let mut scan = Scan { text: self.text, at };
            if follows {
                scan.blanks();
            } else if let Some(begin) = self.element(at, limit) {
                scan.at = begin;
            } else {
                break;
            }
            let begin = scan.at;
            if begin >= limit {
                break;
            }
            let what = match scan.name() {
                Some("job") => piece.job(&mut scan, rules, &mut found, &mut runs),
                Some("child") => child(&mut scan, &mut found).map(|child| {
                    let first = piece.parents.len();
                    piece.parents.append(&mut found.parents);
                    What::Child(child, first..piece.parents.len())
                }),
                _ => None,
            };
            let Some(what) = what else {
                odd += 1;
                at = begin + 1;
                follows = false;
                continue;
            };
            for newline in memchr::memchr_iter(b'\n', &self.text.as_bytes()[counted..begin]) {
                lines += 1;
                line_start = counted + newline + 1;
            }
            counted = begin;
            piece.items.push(Item {
                begin,
                end: scan.at,
                lines,
                line_start,
                what,
            });
            at = scan.at;
            follows = true;
        }
        piece
    }

    /// Where the next job or child may begin, before a limit.
    fn element(&self, at: usize, limit: usize) -> Option<usize> {
        let bytes = self.text.as_bytes();
        memchr::memchr_iter(b'<', bytes.get(at..limit)?)
            .map(|n| at + n)
            .find(|&n| bytes[n..].starts_with(b"<job") || bytes[n..].starts_with(b"<child"))
    }

    /// What the reader finds in a piece that it has come to; nothing if it has to read it itself.
    fn obtain(&self, n: usize, rules: Rules) -> Option<Box<Piece<'a>>> {
        let mut pieces = self.lock();
        loop {
            pieces.next = pieces.next.max(n + 1);
            match std::mem::replace(pieces.all.get_mut(n)?, State::Over) {
                State::Free | State::Over => return None,
                State::Read(piece) => return Some(piece),
                State::Taken => pieces.all[n] = State::Taken,
            }
            if self.read_next(pieces, rules) {
                pieces = self.lock();
                continue;
            }
            pieces = self.lock();
            if matches!(pieces.all[n], State::Taken) {
                pieces = self.changed.wait(pieces).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl<'a> Piece<'a> {
    /// Reads a job from behind the name of its start tag.
    fn job(
        &mut self,
        scan: &mut Scan<'a>,
        rules: Rules,
        found: &mut Found<'a>,
        runs: &mut Option<Arc<TransformationName>>,
    ) -> Option<What<'a>> {
        self.files.mentioned.clear();
        let started = job(scan, rules, &mut self.files, found)?;
        let (namespace, name, version) = started.runs;
        let is_it = |last: &&Arc<TransformationName>| {
            last.name == name && last.namespace.as_deref() == namespace && last.version.as_deref() == version
        };
        let transformation = match runs.as_ref().filter(is_it) {
            Some(last) => Arc::clone(last),
            None => Arc::clone(runs.insert(Arc::new(TransformationName {
                namespace: namespace.map(str::to_owned),
                name: name.to_owned(),
                version: version.map(str::to_owned),
            }))),
        };
        let mut job = started.with(transformation);
        let first = self.mentioned.len();
        // Else the order of the files is that of their uses.
        if [job.stdin, job.stdout, job.stderr].iter().any(Option::is_some) {
            self.mentioned.append(&mut self.files.mentioned);
        }
        let number = u32::try_from(self.jobs.len() + 1).unwrap_or(u32::MAX);
        job.uses.reserve_exact(found.uses.len());
        for used in found.uses.drain(..) {
            self.files.last_uses.add(number, &mut job.uses, used);
        }
        job.uses.shrink_to_fit();
        self.jobs.push(Some(job));
        Some(What::Job(self.jobs.len() - 1, first..self.mentioned.len()))
    }
}

/// A piece that is being read.
struct Taken<'p, 'a> {
    ahead: &'p Ahead<'a>,
    n: usize,
    piece: Option<Box<Piece<'a>>>,
}

impl Drop for Taken<'_, '_> {
    fn drop(&mut self) {
        self.ahead.lock().all[self.n] = match self.piece.take() {
            Some(piece) => State::Read(piece),
            None => State::Over,
        };
        self.ahead.changed.notify_all();
    }
}

/// The end of the reader.
struct End<'p, 'a>(&'p Ahead<'a>);

impl Drop for End<'_, '_> {
    fn drop(&mut self) {
        self.0.lock().next = usize::MAX;
    }
}

/// The reader's view of the pieces.
pub(super) struct Reader<'r, 'a> {
    ahead: &'r Ahead<'a>,
    rules: Rules,
    /// The piece in which the reader is.
    number: usize,
    piece: Option<Box<Piece<'a>>>,
    /// Items of it that are behind the reader.
    behind: usize,
    /// Line on which the piece begins, once it is known.
    line: Option<u32>,
    /// Of each file of the piece, its number in the workflow.
    numbers: Vec<u32>,
    /// What the last job runs, in the piece and in the workflow.
    runs: Option<[Arc<TransformationName>; 2]>,
}

impl<'r, 'a> Reader<'r, 'a> {
    pub(super) fn new(ahead: &'r Ahead<'a>, rules: Rules) -> Self {
        Reader {
            ahead,
            rules,
            number: usize::MAX,
            piece: None,
            behind: 0,
            line: None,
            numbers: Vec::new(),
            runs: None,
        }
    }

    /// Goes to a piece.
    fn enter(&mut self, number: usize) {
        self.number = number;
        self.piece = self.ahead.obtain(number, self.rules);
        self.behind = 0;
        self.line = None;
        self.numbers.clear();
        let files = self.piece.as_ref().map_or(0, |piece| piece.files.names.len());
        self.numbers.resize(files, NONE);
    }

    /// Adds the element that begins at a byte to the workflow, if it is read; gives the byte behind it.
    pub(super) fn take(&mut self, begin: usize, xml: &mut Xml<'_>, builder: &mut Builder) -> Option<usize> {
        let number = begin / self.ahead.size;
        if number != self.number {
            self.enter(number);
        }
        let piece = self.piece.as_mut()?;
        let rest = piece.items.get(self.behind..)?;
        self.behind += rest.iter().take_while(|item| item.begin < begin).count();
        let item = piece.items.get(self.behind).filter(|item| item.begin == begin)?;
        self.behind += 1;
        let line = match self.line {
            Some(line) => line,
            None => xml.position(begin).line.saturating_sub(item.lines),
        };
        self.line = Some(line);
        let line_start = (item.lines > 0).then_some(item.line_start);
        xml.counted(begin, line.saturating_add(item.lines), line_start);
        match &item.what {
            What::Child(child, parents) => add_child(xml, builder, child, &piece.parents[parents.clone()]),
            What::Job(n, mentioned) => {
                let mut job = piece.jobs[*n].take()?;
                let (names, numbers) = (&piece.files.names, &mut self.numbers);
                let mut number = |file: u32| {
                    let known = &mut numbers[file as usize];
                    if *known == NONE {
                        *known = builder.enter_file(names.name(file)).0;
                    }
                    FileId(*known)
                };
                for &file in &piece.mentioned[mentioned.clone()] {
                    number(file);
                }
                for FileUse { file, .. } in &mut job.uses {
                    *file = number(file.0);
                }
                for file in [&mut job.stdin, &mut job.stdout, &mut job.stderr] {
                    *file = file.map(|file| number(file.0));
                }
                job.transformation = runs(&mut self.runs, &job.transformation, builder);
                job.position = xml.position(begin);
                let position = job.position;
                builder.add_job(job, position);
            }
        }
        Some(item.end)
    }
}

/// What a job runs, as it is called in the workflow.
fn runs(
    last: &mut Option<[Arc<TransformationName>; 2]>,
    of_piece: &Arc<TransformationName>,
    builder: &mut Builder,
) -> Arc<TransformationName> {
    if let Some([last, of_all]) = last
        && Arc::ptr_eq(last, of_piece)
    {
        return Arc::clone(of_all);
    }
    let (namespace, version) = (of_piece.namespace.as_deref(), of_piece.version.as_deref());
    let of_all = builder.transformation_of(namespace, &of_piece.name, version);
    *last = Some([Arc::clone(of_piece), Arc::clone(&of_all)]);
    of_all
}
