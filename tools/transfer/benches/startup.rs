//! Time to copy one small file: `pegasus-transfer` as a process, inside this process, and under
//! `pegasus-kickstart`, compared with `/bin/cp`.
//!
//! `cargo bench -p pegasus-transfer --bench startup` prints medians. The candidates take turns, so a busy
//! machine slows down all of them. The line of `pegasus-kickstart` needs that program built. `cargo bench -p
//! pegasus-transfer --bench startup large` copies two gigabytes in the temporary folder instead.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pegasus_transfer::cancel::Cancel;
use pegasus_transfer::inproc::{Invocation, Outcome, Stdin, run};

const ROUNDS: usize = 500;
/// Rounds and bytes of the large file.
const LARGE: (usize, u64) = (7, 2 << 30);

/// Name and code of a candidate.
type Candidate<'a> = (&'a str, Box<dyn Fn() + 'a>);

fn main() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    let large = std::env::args().any(|argument| argument == "large");
    let (rounds, size) = if large { LARGE } else { (ROUNDS, 1100) };
    let text = std::io::repeat(b'x').take(size);
    File::create(path("a"))
        .and_then(|mut file| std::io::copy(&mut { text }, &mut file))
        .expect("the folder can be written");
    fs::create_dir(path("out")).expect("the folder can be written");
    let (source, copy) = (path("a"), path("out/a"));
    let specification = serde_json::json!([{"type": "transfer", "lfn": "a",
        "src_urls": [{"site_label": "local", "url": source}],
        "dest_urls": [{"site_label": "local", "url": copy}]}])
    .to_string();
    fs::write(path("in"), &specification).expect("the folder can be written");

    let transfer = Path::new(testutils::programs::path("pegasus-transfer"));
    let kickstart = transfer.with_file_name("pegasus-kickstart");
    let spawn = |program: &Path, wrapper: Option<&Path>| {
        let mut command = Command::new(wrapper.unwrap_or(program));
        if wrapper.is_some() {
            command.args(["-H", "-i", "-"]).arg(program);
        }
        let status = command
            .stdin(File::open(path("in")).expect("just written"))
            .stdout(Stdio::null())
            .stderr(File::create(path("log")).expect("the folder can be written"))
            .status();
        assert!(status.is_ok_and(|status| status.success()));
    };
    let run_cp = || {
        let status = Command::new("/bin/cp")
            .args([&source, &copy])
            .stdin(Stdio::null())
            .status();
        assert!(status.is_ok_and(|status| status.success()));
    };
    let run_in_process = || {
        let mut log = File::create(path("log")).expect("the folder can be written");
        let outcome = run(Invocation {
            arguments: &[],
            environment: &[],
            stdin: Stdin::Bytes(specification.as_bytes()),
            stderr: &mut log,
            cancel: Cancel::new(),
        });
        assert_eq!(outcome, Outcome::Ended(0));
    };
    let mut lines: Vec<Candidate<'_>> = vec![
        ("/bin/cp", Box::new(run_cp)),
        ("pegasus-transfer", Box::new(|| spawn(transfer, None))),
        ("the same in this process", Box::new(run_in_process)),
    ];
    if kickstart.is_file() {
        lines.push((
            "pegasus-kickstart pegasus-transfer",
            Box::new(|| spawn(transfer, Some(&kickstart))),
        ));
    }
    let mut times = vec![Vec::with_capacity(rounds); lines.len()];
    for _ in 0..rounds {
        for ((_, work), times) in lines.iter().zip(&mut times) {
            if large {
                // Freeing the pages of the old file is not part of a copy.
                drop(fs::remove_file(&copy));
            }
            let start = Instant::now();
            work();
            times.push(start.elapsed());
        }
    }
    let medians: Vec<Duration> = times
        .iter_mut()
        .map(|times| {
            times.sort();
            times[times.len() / 2]
        })
        .collect();
    for ((name, _), median) in lines.iter().zip(&medians) {
        let ratio = median.as_secs_f64() / medians[0].as_secs_f64();
        println!("{name:<36} {:>7.3} ms {ratio:>6.2}", median.as_secs_f64() * 1e3);
    }
}
