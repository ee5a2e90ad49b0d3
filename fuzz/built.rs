//! Entries whose inputs choose a well-formed text and changes of it, see [`super::structure`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use pegasus_transfer::engine::{self, Settings, Waits};
use pegasus_transfer::observer::Silent;
use pegasus_transfer::program::Options;
use pegasus_transfer::{registry, spec};
use pmc_job_files::{Container, ContainerKind, Description, Entry, Place, Run, Text, Verified};
use pmc_packed::{Attempt, Channel, Pack, TaskOutput};

use super::structure::Source;

const NODES: [&str; 5] = ["a", "b", "c", "node-with-a-longer-name", "d"];

/// A DAGMan file. The one that others include has no other file.
fn dagman_file(source: &mut Source<'_>, is_top: bool, text: &mut String) {
    let nodes = &NODES[..1 + source.below(NODES.len())];
    for node in nodes {
        let more = source.one_of(&["", " DIR d", " NOOP", " DONE", " DIR \"d e\" NOOP DONE"]);
        // Writing into a String cannot fail.
        let _ = writeln!(text, "JOB {node} x.sub{more}");
    }
    for number in 0..source.below(10) {
        let at = source.below(nodes.len());
        dagman_line(source, (nodes, at), (number, is_top), text);
    }
}

fn dagman_line(
    source: &mut Source<'_>,
    (nodes, at): (&[&str], usize),
    (number, is_top): (usize, bool),
    text: &mut String,
) {
    let node = nodes[at];
    // What is refused comes now and then only, so that most inputs go deep.
    let is_odd = source.one_in(32);
    let _ = match source.below(if is_top || is_odd { 16 } else { 13 }) {
        0..3 => match nodes.get(at + 1) {
            Some(child) => writeln!(text, "PARENT {node} CHILD {child}"),
            None => writeln!(text, "PARENT {} CHILD {}", nodes[0], nodes.last().unwrap_or(&"a")),
        },
        3 => {
            let value = source.one_of(&["v", "$(JOB)", "a b", "\\\"q\\\"", "$(x)$(x)", "'"]);
            writeln!(text, "VARS {node} x=\"{value}\" y = \"{value}\"")
        }
        4 => writeln!(
            text,
            "RETRY {node} {} UNLESS-EXIT {}",
            source.number(),
            source.below(200)
        ),
        5 => {
            let when = source.one_of(&["PRE", "POST"]);
            let more = if is_odd { "$RETURN" } else { "$RETRY" };
            writeln!(text, "SCRIPT {when} {node} /bin/x $JOB {more} '$MAX_RETRIES'")
        }
        6 => writeln!(text, "PRIORITY {node} {}", source.number()),
        7 => writeln!(text, "CATEGORY {node} c\nMAXJOBS c {}", source.number()),
        8 if is_top || is_odd => writeln!(
            text,
            "ABORT-DAG-ON {node} {} RETURN {}",
            source.below(200),
            source.below(200)
        ),
        8 | 9 => writeln!(text, "PRE_SKIP {node} {}", source.below(200)),
        10 => writeln!(text, "# text\nDOT x.dot UPDATE\nJOB j{number} \\\n x.sub"),
        11 => {
            let _ = writeln!(text, "SUBMIT-DESCRIPTION d{number} {{");
            submit_description(source, text);
            writeln!(text, "}}\nJOB e{number} d{number}")
        }
        12 => writeln!(text, "JOB k{number} x.sub DIR d{number}"),
        13 => writeln!(text, "SPLICE s{number} x.dag DIR d"),
        14 => writeln!(text, "SUBDAG EXTERNAL u{number} x.dag"),
        _ if is_odd => writeln!(text, "FINAL s+{node} x.sub\nJOB s+{node} x.sub"),
        _ => writeln!(text, "JOB f{number} x.sub\nPARENT {node} CHILD f{number}"),
    };
}

fn submit_description(source: &mut Source<'_>, text: &mut String) {
    text.push_str("executable = /bin/x\nm0 = x\n");
    for number in 1..1 + source.below(8) {
        let last = number - 1;
        let kind = source.below(32);
        // What is refused comes now and then only.
        let kind = if kind >= 25 && !source.one_in(8) {
            kind % 8
        } else {
            kind
        };
        // Writing into a String cannot fail.
        let _ = match kind {
            0..8 => writeln!(text, "arguments = \"$(m0) 'b c' $(m{last}) \"\"q\"\"\""),
            8..11 => writeln!(text, "environment = \"A=1 B='x y' C=$(m{last})\""),
            11..14 => writeln!(
                text,
                "request_memory = {} GB\nrequest_cpus = 2",
                1 + source.below(9)
            ),
            14..17 => writeln!(text, "request_cpus = {}", source.number()),
            17..20 => writeln!(text, "input = in.$(m{last})\noutput = out\nerror = err\nlog = l"),
            20..23 => writeln!(
                text,
                "universe = {}\n# text",
                source.one_of(&["vanilla", "local"])
            ),
            23..25 => writeln!(text, "+X = y \\\n z\nmy.Y = 1"),
            25 => writeln!(text, "transfer_input_files = f, g/$(m{last}), /h"),
            26 => writeln!(text, "if defined m0\nb = 1\nelse\nb = 2\nendif"),
            27 => writeln!(text, "include : x.sub"),
            28 => writeln!(text, "b = $F(fq:m0) $INT(m0) $ENV(HOME) $CHOICE(a,b,c)"),
            29 => writeln!(text, "b = $(b)$(b)"),
            30 => writeln!(text, "initialdir = d\nmax_retries = {}", source.number()),
            _ => writeln!(
                text,
                "request_memory = {} {}",
                source.number(),
                source.one_of(&["", "GB", "x"])
            ),
        };
        let _ = writeln!(text, "m{number} = $(m{last})y$(Process)");
    }
    let queue = match source.below(64) {
        0..50 => "queue",
        50..60 => "queue 2",
        60 => "queue a in (x y, z)",
        61 => "queue 2 a,b from (\nx, y\nz w\n)",
        62 => "queue a matching files *",
        _ => "queue 4000000000",
    };
    text.push_str(queue);
    text.push('\n');
}

/// A DAGMan file with nodes, edges, scripts and splices, the file that it splices, and a submit description.
fn dagman_files(source: &mut Source<'_>) -> Vec<u8> {
    let mut text = String::new();
    for is_top in [true, false] {
        dagman_file(source, is_top, &mut text);
        text.push('\0');
    }
    submit_description(source, &mut text);
    text.into_bytes()
}

/// The files that these bytes choose.
#[cfg(test)]
pub fn dagman_files_of(data: &[u8]) -> Vec<u8> {
    dagman_files(&mut Source::new(data))
}

/// The description of a lite job that these bytes choose.
#[cfg(test)]
pub fn description_of(data: &[u8]) -> Vec<u8> {
    description(&mut Source::new(data)).into_bytes()
}

/// DAGMan files and submit descriptions.
pub fn dagman_built(data: &[u8]) {
    let mut source = Source::new(data);
    let mut bytes = dagman_files(&mut source);
    source.edit(&mut bytes);
    super::dagman(&bytes);
}

/// Words, which NUL ends. What is written for HTCondor as arguments and as an environment is read again.
pub fn submit_words(data: &[u8]) {
    use pmc_dagman::write::{Dollars, arguments, environment};
    let text = String::from_utf8_lossy(data);
    let words: Vec<&str> = text.split('\0').take(1000).collect();
    // As HTCondor replaces the macros.
    let expanded = |text: &str| text.replace("$$(DOLLARDOLLAR)", "$$").replace("$(DOLLAR)", "$");
    let is_macro = |word: &&str| word.contains("DOLLAR");
    if words.iter().any(is_macro) {
        return;
    }
    if let Ok(text) = arguments(words.iter().map(|word| (word, true)), Dollars::AtMatch) {
        let read = pmc_dagman::quoting::arguments(&expanded(&text)).expect("arguments");
        assert_eq!(read, words, "{text}");
    }
    let names: Vec<String> = (0..words.len()).map(|n| format!("V{n:03}")).collect();
    let pairs = names
        .iter()
        .zip(&words)
        .map(|(name, word)| (name.as_str(), *word, true));
    if let Ok(text) = environment(pairs, Dollars::AtMatch) {
        let read = pmc_dagman::quoting::environment(&expanded(&text)).expect("an environment");
        assert!(read.values().eq(&words), "{text}");
    }
}

/// A description of a lite job. What is read can be written and read again.
pub fn lite_description(data: &[u8]) {
    let mut source = Source::new(data);
    let mut bytes = description(&mut source).into_bytes();
    source.edit(&mut bytes);
    let Ok(read) = Description::parse(&bytes) else {
        return;
    };
    // URLs can have any bytes, but only those of UTF-8 can be written.
    let Ok(written) = read.to_json() else { return };
    let again = Description::parse(written.as_bytes()).expect("what was written can be read");
    assert_eq!(again, read);
    let mut paths = 0;
    let mut changed = read.clone();
    changed.each_file(&mut |_, path| {
        paths += 1;
        path.push("x");
    });
    assert!(paths == 0 || changed != read);
}

/// A description with some fields set.
fn description(source: &mut Source<'_>) -> String {
    let mut description = Description {
        format: pmc_job_files::FORMAT,
        job: source.one_of(&["j", "", "a b", "../x"]).to_owned(),
        run: match source.one_in(2) {
            true => Run::Kickstart(words(source)),
            false => Run::Program(words(source)),
        },
        ..Description::default()
    };
    for _ in 0..source.below(10) {
        let path = Some(source.one_of(&["/d/f", "f.in.lof", "", "/d/../e", "."]).into());
        match source.below(14) {
            0 => description.scratch = path,
            1 => description.env_source = path,
            2 => description.transfer_arguments = words(source),
            3 => description.container = Some(container(source)),
            4 => description.work_directory = path,
            5 => description.environment = variables(source),
            6 => description.unset = words(source),
            7 => description.stage_in = vec![entry(source), entry(source)],
            8 => description.stage_out = vec![entry(source)],
            9 => description.shared = words(source),
            10 => description.cache_limit = source.number().parse().ok(),
            11 => description.verify = vec![verified(source)],
            12 => description.executables = path.into_iter().collect(),
            _ => description.checksum_file = path,
        }
    }
    description.to_json().expect("a description can be written")
}

fn words(source: &mut Source<'_>) -> Vec<String> {
    let count = source.below(4);
    let word = |_| {
        source
            .one_of(&["/bin/x", "a b", "-i", "f.in.lof", "", "\u{1}\"\\"])
            .to_owned()
    };
    (0..count).map(word).collect()
}

fn variables(source: &mut Source<'_>) -> BTreeMap<String, String> {
    words(source)
        .into_iter()
        .map(|word| (word.clone(), word))
        .collect()
}

fn verified(source: &mut Source<'_>) -> Verified {
    Verified {
        lfn: source.one_of(&["f", "d/f", "../f"]).to_owned(),
        sha256: source.one_in(2).then(|| "0".repeat(source.below(70))),
        checksum_file: source.one_in(2).then(|| "/d/f.meta".into()),
    }
}

fn container(source: &mut Source<'_>) -> Container {
    Container {
        kind: source.one_of(&[
            ContainerKind::Docker,
            ContainerKind::Singularity,
            ContainerKind::Shifter,
        ]),
        image: source.one_of(&["x.sif", "a/b:c", ""]).to_owned(),
        directory: source.one_of(&["/srv", "/scratch", ""]).to_owned(),
        mounts: words(source),
        arguments: words(source),
        environment: variables(source),
        fetch: vec![entry(source)],
        verify: vec![verified(source)],
        gpus: source.one_in(2),
        ..Container::default()
    }
}

fn entry(source: &mut Source<'_>) -> Entry {
    let mut place = || Place {
        site_label: Some(Text::from(source.one_of(&["local", "a-b", ""]))),
        url: Some(Text::from(source.one_of(&[
            "file:///f",
            "https://u:p@h/f?q",
            "f",
            "://",
            "%zz",
        ]))),
        ..Place::default()
    };
    let (src, dest) = (place(), place());
    Entry {
        kind: Some(Text::from("transfer")),
        lfn: Some(Text::from("f")),
        src_urls: Some(vec![src]),
        dest_urls: Some(vec![dest]),
        ..Entry::default()
    }
}

/// Packs with changed indexes, whose checksums are right nevertheless. Output is read as it was written,
/// or is an error.
pub fn packed(data: &[u8]) {
    let mut source = Source::new(data);
    let dir = tempfile::tempdir().expect("a directory can be made");
    let dag = dir.path().join("x.dag");
    let mut pack = Pack::open(&dag, 1).expect("a pack can be made");
    let path = pack.path().to_owned();
    let mut written = Vec::new();
    for number in 0..1 + source.below(4) as u32 {
        let task = source.one_of(&["t", "a task", "%", "x/y"]);
        let output = [0, 1].map(|_| vec![source.byte(); source.below(200)]);
        let [out, err] = output.each_ref().map(|bytes| {
            let mut file = tempfile::tempfile().expect("a file can be made");
            file.write_all(bytes)
                .and_then(|()| file.rewind())
                .expect("it can be written");
            file
        });
        let attempt = Attempt {
            task: task.as_bytes(),
            number,
            submit: 1,
            start_ms: u64::from(source.byte()),
        };
        pack.append(attempt, &out, b"", &err).expect("it can be appended");
        written.push((task, number, output));
    }
    drop(pack);
    let index = path.with_file_name(format!(
        "{}.index",
        path.file_name().unwrap_or_default().display()
    ));
    let before = fs::read(&index).expect("an index");
    let mut changed = before.clone();
    source.edit(&mut changed);
    let changed = with_checksums(&changed);
    fs::write(&index, &changed).expect("it can be written");
    if source.one_in(4) {
        let length = u64::from(source.byte());
        File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(length))
            .expect("it can be cut");
    }
    let is_whole = changed == before;
    let mut output = TaskOutput::new(dir.path());
    output.refresh().expect("an index can have any content");
    for attempt in output.packed() {
        for (at, channel) in [Channel::Out, Channel::Err].into_iter().enumerate() {
            let mut bytes = Vec::new();
            let stream = output.open(&attempt.task, channel, attempt.number);
            let read = stream.and_then(|stream| stream.take(1 << 20).read_to_end(&mut bytes));
            let known = written
                .iter()
                .find(|(task, number, _)| task.as_bytes() == attempt.task && *number == attempt.number);
            if let (true, Ok(_), Some((.., output))) = (is_whole, read, known) {
                assert_eq!(bytes, output[at]);
            }
        }
    }
    assert!(output.left_over().len() <= 1);
}

/// Puts the right checksum behind each line of an index.
fn with_checksums(index: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    for line in index.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let words = &line[..line.len().saturating_sub(9)];
        all.extend_from_slice(words);
        let _ = writeln!(all, " {:08x}", crc32fast::hash(words));
    }
    all
}

/// Bytes of the file that the server has.
const FILE: usize = 3000;

/// Answers of a server that begins well, breaks off, and answers the request for the rest somehow. A transfer
/// that succeeds has brought the whole file.
pub fn http_answer(data: &[u8]) {
    let mut source = Source::new(data);
    let file: Vec<u8> = (0..FILE).map(|at| (at * 7 / 3) as u8).collect();
    let cut = source.below(256) * 12 % FILE;
    let mut answers = Vec::new();
    let mut is_edited = false;
    for number in 0..3 {
        let mut answer = answer(&mut source, &file, if number == 0 { 0 } else { cut });
        // Only the head of a later one changes: what the first one says of the file counts.
        let body = answer
            .windows(4)
            .position(|part| part == b"\r\n\r\n")
            .map_or(answer.len(), |at| at + 4);
        let mut head = answer[..body].to_vec();
        match number {
            0 => answer.truncate(body + cut),
            _ => {
                let before = head.clone();
                source.edit(&mut head);
                is_edited |= head != before;
                answer.splice(..body, head);
            }
        }
        answers.push(answer);
    }
    let Ok(listener) = TcpListener::bind(("127.0.0.1", 0)) else {
        return;
    };
    let address = listener.local_addr().expect("it has an address");
    let sent = answers.clone();
    let serve = move || {
        for answer in sent {
            let Ok((mut stream, _)) = listener.accept() else {
                return;
            };
            let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
            let mut request = [0; 4096];
            if matches!(stream.read(&mut request), Ok(1..)) {
                let _ = stream.write_all(&answer);
            }
        }
    };
    let server = std::thread::spawn(serve);
    let dir = tempfile::tempdir().expect("a directory can be made");
    let to = dir.path().join("f");
    let list = format!(
        "[{{\"type\": \"transfer\", \"id\": 1, \"src_urls\": [{{\"site_label\": \"a\", \"url\": \"http://{address}/f\"}}], \
         \"dest_urls\": [{{\"site_label\": \"local\", \"url\": \"file://{}\"}}]}}]",
        to.display()
    );
    let work = spec::parse(list.as_bytes(), &|_| None, &mut || 50).expect("a list of one transfer");
    let (settings, options) = (settings(dir.path()), options());
    let registry = registry([], None, &options, &settings.cancel);
    let report = engine::run_with(&registry, &work, &settings, &Silent);
    if report.success() {
        let got = fs::read(&to).expect("the file");
        // An edited head may name another version, of which its body is the whole.
        assert!(
            is_edited || got == file,
            "{} bytes, cut at {cut}, count as success",
            got.len()
        );
    } else {
        assert!(!to.exists(), "a part of a file is left");
    }
    // A transfer may ask less often than there are answers.
    while !server.is_finished() {
        let _ = TcpStream::connect(address);
        std::thread::yield_now();
    }
}

fn settings(temporary: &Path) -> Settings {
    let soon = Duration::from_millis(1);
    Settings {
        rounds: 2,
        threads: 1,
        waits: Waits {
            soon,
            later: soon,
            longest: soon,
        },
        temporary: temporary.to_owned(),
        ..Settings::default()
    }
}

fn options() -> Options {
    Options {
        file: None,
        part: None,
        max_attempts: 2,
        threads: 1,
        symlink: false,
        checksums_from: Vec::new(),
        checksums_to: None,
        retry_wait: 0.001,
        timeout: 0.2,
        min_rate: 0,
        debug: false,
        rest: Vec::new(),
    }
}

/// An answer with the file from a byte on.
fn answer(source: &mut Source<'_>, file: &[u8], from: usize) -> Vec<u8> {
    let rest = &file[from..];
    let (length, total) = (rest.len(), file.len());
    let range = format!("Content-Range: bytes {from}-{}/{total}\r\n", total - 1);
    let (status, headers) = match (from, source.below(6)) {
        (0, _) => (
            "200 OK",
            format!("Content-Length: {total}\r\nAccept-Ranges: bytes\r\nETag: \"e\"\r\n"),
        ),
        (_, 0 | 1) => (
            "206 Partial Content",
            format!("Content-Length: {length}\r\n{range}ETag: \"e\"\r\n"),
        ),
        (_, 2) => ("206 Partial Content", format!("Content-Length: {length}\r\n")),
        (_, 3) => ("200 OK", format!("Content-Length: {length}\r\n")),
        (_, 4) => (
            "416 Range Not Satisfiable",
            format!("Content-Range: bytes */{total}\r\nContent-Length: 0\r\n"),
        ),
        _ => (
            "206 Partial Content",
            format!("Transfer-Encoding: chunked\r\n{range}"),
        ),
    };
    let mut answer = format!("HTTP/1.1 {status}\r\n{headers}Connection: close\r\n\r\n").into_bytes();
    if headers.contains("chunked") {
        let _ = write!(answer, "{length:x}\r\n");
        answer.extend_from_slice(rest);
        answer.extend_from_slice(b"\r\n0\r\n\r\n");
    } else {
        answer.extend_from_slice(rest);
    }
    answer
}
