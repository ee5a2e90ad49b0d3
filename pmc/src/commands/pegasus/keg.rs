//! `pegasus-keg`: a stand-in for the programs of a workflow. It sleeps, works, reads all inputs, and writes
//! their content and some words about itself into each output.
//!
//! Options and text are those of the manual page of Pegasus' program.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, BufWriter, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use chrono::Local;
use pmc_terminal::print;

use crate::exit;
use crate::failure::{Failure, OrCode as _};

const USAGE: &str = "\
Usage: pegasus-keg [-a NAME] [-t SECONDS] [-T SECONDS] [-m MIB] [-l FILE] [-P PREFIX] [-C] [-u UNIT]
                   [-i FILE…] [-o FILE[=SIZE]…] [-G SIZE] [-e VARIABLE…] [-p TEXT…]
  -a  name to show            -t  sleep              -T  work
  -m  memory to use           -l  append to a log    -P  before each line of an input
  -i  inputs, - for stdin     -o  outputs, - for stdout; with a size, that many bytes instead of the inputs
  -G  bytes to write          -u  unit of sizes: B, K, M, G
  -e  variables to show       -C  show those of HTCondor                -p  texts to show
";

/// An input cannot be read, or an option is wrong.
const INPUT_FAILED: u8 = 1;
/// An output cannot be written.
const OUTPUT_FAILED: u8 = 2;

/// Bytes of a line that is generated, with its end.
const LINE: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ.\n";

#[derive(Debug, Default, PartialEq)]
struct Keg {
    name: Option<String>,
    sleep: Duration,
    work: Duration,
    memory_mib: usize,
    log: Option<String>,
    prefix: Option<String>,
    inputs: Vec<String>,
    /// Each with the number of bytes to write, if that is given.
    outputs: Vec<(String, Option<u64>)>,
    generated: u64,
    variables: Vec<String>,
    texts: Vec<String>,
    shows_condor: bool,
}

/// Runs the program. Returns its exit code.
pub fn keg(words: &[String]) -> Result<u8, Failure> {
    if words.is_empty() {
        print(USAGE);
        return Ok(exit::SUCCESS);
    }
    let keg = parse(words).or_code(INPUT_FAILED)?;
    let begun = Instant::now();
    let mut memory = Vec::new();
    memory
        .try_reserve_exact(keg.memory_mib << 20)
        .context("pegasus-keg: there is not so much memory (-m)")
        .or_code(INPUT_FAILED)?;
    // Only pages that are written are used.
    memory.resize(keg.memory_mib << 20, 1_u8);
    std::thread::sleep(keg.sleep);
    work(keg.work);
    keg.write_outputs(begun)?;
    drop(memory);
    Ok(exit::SUCCESS)
}

/// Uses a CPU for some time.
fn work(time: Duration) {
    let begun = Instant::now();
    let mut value = 1_u64;
    while begun.elapsed() < time {
        for _ in 0..10_000 {
            value = std::hint::black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
}

fn parse(words: &[String]) -> anyhow::Result<Keg> {
    let mut keg = Keg::default();
    let (mut unit, mut outputs) = (1, Vec::new());
    let is_option = |word: &String| word.starts_with('-') && word.len() > 1;
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        let mut letters = word.strip_prefix('-').unwrap_or_default().chars();
        let Some(letter) = letters.next() else {
            bail!("pegasus-keg: {word} belongs to no option");
        };
        let attached = Some(letters.as_str().to_owned()).filter(|text| !text.is_empty());
        if letter == 'C' {
            keg.shows_condor = true;
            continue;
        }
        let mut values: Vec<String> = attached.into_iter().collect();
        if matches!(letter, 'i' | 'o' | 'e' | 'p') {
            while let Some(value) = rest.next_if(|word| !is_option(word)) {
                values.push(value.clone());
            }
        } else if values.is_empty() {
            values.extend(rest.next().cloned());
        }
        let Some(value) = values.first().cloned() else {
            bail!("pegasus-keg: the option -{letter} needs a value");
        };
        let wrong = || anyhow!("pegasus-keg: -{letter} {value} makes no sense");
        let seconds = || {
            let seconds = value.parse::<f64>().ok();
            seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        };
        match letter {
            'a' => keg.name = Some(value),
            't' => keg.sleep = seconds().ok_or_else(wrong)?,
            'T' => keg.work = seconds().ok_or_else(wrong)?,
            'm' => keg.memory_mib = value.parse::<u32>().map_err(|_| wrong())? as usize,
            'l' => keg.log = Some(value),
            'P' => keg.prefix = Some(value),
            'G' => keg.generated = value.parse().map_err(|_| wrong())?,
            'u' => unit = unit_of(&value).ok_or_else(wrong)?,
            'i' => keg.inputs.extend(values),
            'o' => outputs.extend(values),
            'e' => keg.variables.extend(values),
            'p' => keg.texts.extend(values),
            _ => bail!("pegasus-keg: there is no option -{letter}\n{USAGE}"),
        }
    }
    keg.outputs = outputs.into_iter().map(|output| sized(output, unit)).collect();
    Ok(keg)
}

fn unit_of(text: &str) -> Option<u64> {
    Some(match text {
        "B" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    })
}

/// Splits `FILE=SIZE`. What is no size belongs to the name.
fn sized(output: String, unit: u64) -> (String, Option<u64>) {
    let parts = output.rsplit_once('=').and_then(|(name, size)| {
        let digits = size.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let unit = match &size[digits.len()..] {
            "" => unit,
            letter => unit_of(letter)?,
        };
        Some((name.to_owned(), digits.parse::<u64>().ok()?.checked_mul(unit)?))
    });
    match parts {
        Some((name, size)) => (name, Some(size)),
        None => (output, None),
    }
}

impl Keg {
    fn write_outputs(&self, begun: Instant) -> Result<(), Failure> {
        for (output, size) in &self.outputs {
            let file = open_output(output)
                .with_context(|| format!("pegasus-keg: cannot open the output {output}"))
                .or_code(OUTPUT_FAILED)?;
            let mut file = BufWriter::new(file);
            self.fill(&mut file, *size)?;
            let about = if size.is_some() {
                String::new()
            } else {
                self.about(output, begun)
            };
            let written = file.write_all(about.as_bytes()).and_then(|()| file.flush());
            written
                .with_context(|| format!("pegasus-keg: cannot write the output {output}"))
                .or_code(OUTPUT_FAILED)?;
        }
        if self.outputs.is_empty() {
            self.fill(&mut io::sink(), None)?;
        }
        if let Some(log) = &self.log {
            let about = self.about(log, begun);
            let file = OpenOptions::new().append(true).create(true).open(log);
            file.and_then(|mut file| file.write_all(about.as_bytes()))
                .with_context(|| format!("pegasus-keg: cannot write the log {log}"))
                .or_code(OUTPUT_FAILED)?;
        }
        Ok(())
    }

    /// Writes this number of bytes, or the content of the inputs and what is generated.
    fn fill(&self, output: &mut dyn Write, size: Option<u64>) -> Result<(), Failure> {
        let failed = |result: io::Result<()>| {
            result
                .context("pegasus-keg: cannot write the output")
                .or_code(OUTPUT_FAILED)
        };
        if let Some(size) = size {
            return failed(generate(output, size));
        }
        let prefix = self.prefix.as_deref().unwrap_or("  ");
        for name in &self.inputs {
            let input: Box<dyn Read> = match name.as_str() {
                "-" => Box::new(io::stdin()),
                _ => Box::new(
                    File::open(name)
                        .with_context(|| format!("pegasus-keg: cannot open the input {name}"))
                        .or_code(INPUT_FAILED)?,
                ),
            };
            let mut input = BufReader::new(input);
            failed(writeln!(output, "--- start {name} ----"))?;
            let mut line = Vec::new();
            while input
                .read_until(b'\n', &mut line)
                .with_context(|| format!("pegasus-keg: cannot read the input {name}"))
                .or_code(INPUT_FAILED)?
                > 0
            {
                failed(output.write_all(prefix.as_bytes()))?;
                failed(output.write_all(&line))?;
                line.clear();
            }
            failed(writeln!(output, "--- final {name} ----"))?;
        }
        failed(generate(output, self.generated))
    }

    /// Returns what the program says of itself.
    fn about(&self, output: &str, begun: Instant) -> String {
        let now = Local::now();
        let name = self.name.as_deref().unwrap_or("pegasus-keg");
        let host = nix::unistd::gethostname().unwrap_or_default();
        let directory = std::env::current_dir().unwrap_or_default();
        let mut text = String::new();
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "Timestamp Today: {} ({};{:.3})\nApplicationname: {name} [{}] @ {}\nCurrent Workdir: {}\nSystemenvironm.: \
             {}-{}",
            now.format("%Y%m%dT%H%M%S%.3f%:z"),
            now.timestamp(),
            begun.elapsed().as_secs_f64(),
            env!("CARGO_PKG_VERSION"),
            host.display(),
            directory.display(),
            std::env::consts::ARCH,
            std::env::consts::OS,
        );
        let _ = writeln!(text, "Output Filename: {output}");
        for (title, words) in [
            ("Input Filenames", &self.inputs),
            ("Other Arguments", &self.texts),
        ] {
            if !words.is_empty() {
                let _ = writeln!(text, "{title}: {}", words.join(" "));
            }
        }
        for variable in &self.variables {
            let value = std::env::var_os(variable).unwrap_or_default();
            let _ = writeln!(text, "Environment Var: {variable}={}", value.display());
        }
        let all = std::env::vars_os().filter(|_| self.shows_condor);
        for (variable, value) in all {
            if variable.as_encoded_bytes().starts_with(b"_CONDOR") {
                let _ = writeln!(
                    text,
                    "Environment Var: {}={}",
                    variable.display(),
                    value.display()
                );
            }
        }
        text
    }
}

fn open_output(name: &str) -> io::Result<Box<dyn Write>> {
    Ok(match name {
        "-" => Box::new(io::stdout()),
        _ => Box::new(File::create(name)?),
    })
}

fn generate(output: &mut dyn Write, bytes: u64) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(usize::MAX).min(LINE.len());
        output.write_all(&LINE[..part])?;
        left -= part as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Keg, String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        parse(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn lists_of_files_end_at_the_next_option() {
        let keg = parsed("-a work -T0.5 -t 2 -i a - b -o c=2K d=e - -p 1 2 -C -e HOME -u M").unwrap();
        assert_eq!(keg.name.as_deref(), Some("work"));
        let half = Duration::from_millis(500);
        assert_eq!((keg.work, keg.sleep), (half, 4 * half));
        assert_eq!(keg.inputs, ["a", "-", "b"]);
        let output = |name: &str, size| (name.to_owned(), size);
        assert_eq!(
            keg.outputs,
            [output("c", Some(2048)), output("d=e", None), output("-", None)]
        );
        assert_eq!(
            (keg.texts.len(), keg.variables.len(), keg.shows_condor),
            (2, 1, true)
        );
        assert_eq!(
            parsed("-u M -o x=3").unwrap().outputs,
            [output("x", Some(3 << 20))]
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, says) in [
            ("-t soon", "-t soon makes no sense"),
            ("-T -1", "-T -1 makes no sense"),
            ("-G x", "-G x makes no sense"),
            ("-m 99999999999", "makes no sense"),
            ("-i", "the option -i needs a value"),
            ("file", "file belongs to no option"),
            ("-z 1", "there is no option -z"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}
