//! `pegasus-graphviz`: a picture of a workflow, in the format that the name of the file says.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, anyhow};
use pmc_files::OFlags;
use pmc_plan::expand::ExpandEnv;
use pmc_plan::report::draw_workflow;
use pmc_plan::request::Format;
use pmc_terminal::{message, print};

use crate::cli::pegasus;
use crate::exit;
use crate::failure::{Failure, OrCode as _};

/// Draws a workflow. Returns the exit code.
pub fn graphviz(options: &pegasus::Graphviz) -> Result<u8, Failure> {
    if !options.remove.is_empty() {
        message("pegasus-graphviz: --remove has no effect: all jobs are drawn");
    }
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let variables = ExpandEnv::new(variables);
    let draw = |format| draw_workflow(&options.workflow, &variables, format).or_code(exit::NOT_RUN);
    let Some(output) = &options.output else {
        print(&draw(Format::Dot)?);
        return Ok(exit::SUCCESS);
    };
    let kind = output
        .extension()
        .and_then(|kind| kind.to_str())
        .unwrap_or_default();
    let text = match kind {
        "svg" => draw(Format::Svg)?,
        _ => draw(Format::Dot)?,
    };
    match kind {
        "svg" | "dot" | "gv" => open(output)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("cannot write {}", output.display()))
            .or_code(exit::NOT_RUN)?,
        _ => render(&text, kind, output).or_code(exit::NOT_RUN)?,
    }
    Ok(exit::SUCCESS)
}

/// Opens the picture. In a directory where others may write, its name leads to no other file.
fn open(picture: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    pmc_files::open_output(picture, flags, 0o666)
}

/// Lets Graphviz draw other formats.
fn render(text: &str, kind: &str, output: &Path) -> anyhow::Result<()> {
    let file = open(output).with_context(|| format!("cannot write {}", output.display()))?;
    let mut dot = Command::new("dot")
        .arg(format!("-T{kind}"))
        .stdin(Stdio::piped())
        .stdout(file)
        .spawn()
        .with_context(|| {
            format!(
                "cannot draw {}: this format needs the program dot of Graphviz, svg and dot need nothing",
                output.display()
            )
        })?;
    // A broken pipe shows in its exit status.
    let _ = dot.stdin.take().map(|mut pipe| pipe.write_all(text.as_bytes()));
    let status = dot.wait().context("cannot wait for dot")?;
    if status.success() {
        return Ok(());
    }
    Err(anyhow!("dot could not draw {}: {status}", output.display()))
}
