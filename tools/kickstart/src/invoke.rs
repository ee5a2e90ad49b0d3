//! One invocation from start to end: side jobs, main job, files, record.

use std::io;

use crate::context::Context;
use crate::exit;
use crate::interrupts::{Interrupts, Uninterrupted};
use crate::machine::Host;
use crate::options::Options;
use crate::wait::Limit;

mod jobs;
mod prepare;
mod report;
mod session;

pub use report::Report;

use session::{Abort, Session};

/// Runs what `options` ask for and describes it. `notice` receives messages for the user, one line each.
///
/// # Errors
/// No temporary file can be made, not even in memory. Nothing has been run then.
pub fn run(
    options: &Options,
    context: Context<'_>,
    host: &Host,
    interrupts: &mut dyn Interrupts,
    notice: &mut dyn FnMut(&str),
) -> io::Result<Report> {
    let mut session = Session::new(options, context, host, interrupts, notice)?;
    let exit_code = match session.execute() {
        Ok(code) => code,
        Err(Abort { code, message }) => {
            (session.notice)(&message);
            session.explain(&message);
            code
        }
    };
    Ok(session.report(exit_code))
}

/// Describes an invocation that ran nothing because of a `problem` with its command line.
///
/// # Errors
/// As [`run`].
pub fn refuse(options: &Options, context: Context<'_>, host: &Host, problem: &str) -> io::Result<Report> {
    let options = Options {
        log: None,
        ..options.clone()
    };
    let (mut interrupts, mut notice) = (Uninterrupted, |_: &str| {});
    let mut session = Session::new(&options, context, host, &mut interrupts, &mut notice)?;
    session.explain(problem);
    Ok(session.report(exit::NOT_RUNNABLE))
}

impl Session<'_, '_> {
    /// Runs all jobs. Returns the exit code.
    fn execute(&mut self) -> Result<u8, Abort> {
        let limit = Limit::new(self.options.term_after, self.options.kill_delay);
        // Lists and argument files are named relative to the directory where kickstart was started.
        let before = self.listed_files(&self.options.before);
        let after = self.listed_files(&self.options.after);
        let command = self.command()?;
        self.enter_directory()?;
        self.open_log();
        let words = self.main_words(command)?;
        let program = self.main_program(&words)?;
        self.open_streams(self.is_builtin(&program))?;
        self.before = before.iter().map(|file| self.examine(file)).collect();
        let mut code = self.run_jobs(&words, &program, limit);
        self.after = after
            .iter()
            .map(|file| self.examine_output(file, &mut code))
            .collect();
        if code == 0 {
            code = self.check_outputs(&after);
        }
        Ok(code)
    }
}

#[cfg(test)]
mod tests;
