//! What the parser does with an option that it has found.

use std::ffi::OsString;

use super::args::{EarlyExit, RawArgs};
use super::options::{Action, OptionSpec};
use super::version::version;

/// Applies one option; `words` are those behind it.
pub(super) fn apply<'w>(
    option: &OptionSpec,
    args: &mut RawArgs,
    words: &mut impl Iterator<Item = &'w OsString>,
) -> Result<(), EarlyExit> {
    if !option.is_available() {
        return Err(EarlyExit::refuse(&format!(
            "--{}: this program was built without the feature `{}`",
            option.long,
            option.feature.unwrap_or_default()
        )));
    }
    match option.action {
        Action::Help => {}
        Action::Version => {
            return Err(EarlyExit {
                text: version(),
                code: 0,
                everywhere: false,
            });
        }
        Action::Flag(set) => set(args),
        Action::Value(set) => {
            let missing = || {
                let (names, value) = (option.join_names("/"), option.value.unwrap_or_default());
                EarlyExit::refuse(&format!("{names} requires {value}"))
            };
            set(args, words.next().ok_or_else(missing)?)?;
        }
    }
    Ok(())
}
