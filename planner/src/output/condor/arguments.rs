//! The program of a job and its arguments, in the syntax of submit descriptions.

use std::borrow::Cow;

use pmc_dagman::write::{Dollars, arguments, literal};

use crate::profiles::parse_bool;
use crate::tasks::{Invocation, PlannedJob, Words};

use super::ad::Ad;

/// Makes another program the one that HTCondor starts; the former becomes its first argument.
pub(super) fn wrap(invocation: &mut Invocation, program: String) {
    let inner = std::mem::replace(&mut invocation.program, program);
    let mut words = Words::default();
    words.word(&inner).append_after_blank(&invocation.arguments);
    invocation.arguments = words;
}

/// Returns whether the arguments of a job are quoted, as in Pegasus unless a profile says otherwise.
fn is_quoted(job: PlannedJob<'_>) -> bool {
    let value = job.setup.profiles.pegasus("condor.arguments.quote");
    value.and_then(parse_bool) != Some(false)
}

/// Sets program and arguments.
///
/// # Errors
/// Arguments that a submit description cannot express.
pub(super) fn add(job: PlannedJob<'_>, invocation: &Invocation, ad: &mut Ad<'_>) -> Result<(), String> {
    ad.set_literal("executable", &invocation.program);
    let words = &invocation.arguments;
    if words.iter().next().is_none() {
        return Ok(());
    }
    let dollars = ad.dollars();
    let text = match is_quoted(job) {
        true => arguments(words.iter_with_origin(), dollars).map_err(|error| error.to_string())?,
        false => raw(words, dollars)?,
    };
    ad.set("arguments", text);
    Ok(())
}

/// Returns arguments in the old syntax, in which blanks separate words and quotes have no meaning.
fn raw(words: &Words, dollars: Dollars) -> Result<String, String> {
    let is_bad = |word: &str| word.is_empty() || word.contains(char::is_whitespace);
    let mut own = words.iter_with_origin().filter(|(_, is_literal)| *is_literal);
    if let Some((word, _)) = own.find(|(word, _)| is_bad(word)) {
        return Err(format!(
            "its argument `{word}` cannot be written without quotes: set pegasus.condor.arguments.quote to true, or leave \
             it out"
        ));
    }
    let mut text = String::new();
    words.write(&mut text, |word| {
        let mut out = String::new();
        literal(word, dollars, &mut out);
        Cow::Owned(out)
    });
    // A double quote begins the new syntax, unless it is written like this.
    Ok(text.trim().replace("\\\"", "\"").replace('"', "\\\""))
}
