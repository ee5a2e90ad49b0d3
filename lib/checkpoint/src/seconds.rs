//! Times in messages and sidecars. The bytes of a float can say that it is not a number, which no time is.

use serde::de::{Deserialize, Deserializer, Error, Unexpected};
use serde::ser::Serializer;

/// Times of fewer milliseconds have floats that are much closer to each other.
const MAX_ROUNDED: f64 = 1e14;

/// Returns a time in whole milliseconds. As JSON, these have so few digits that readers get the same float
/// again; of others, [`serde_json`] may read the float beside it.
pub(crate) fn rounded(seconds: f64) -> f64 {
    let milliseconds = (seconds * 1e3).round();
    match milliseconds.abs() < MAX_ROUNDED {
        true => milliseconds / 1e3,
        false => seconds,
    }
}

/// Writes a time in whole milliseconds.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
pub(crate) fn write_rounded<S: Serializer>(seconds: &f64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(rounded(*seconds))
}

fn checked<E: Error>(seconds: f64) -> Result<f64, E> {
    if seconds.is_finite() {
        Ok(seconds)
    } else {
        Err(E::invalid_value(Unexpected::Float(seconds), &"a time"))
    }
}

/// Reads a time.
pub(crate) fn required<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    checked(f64::deserialize(from)?)
}

/// Reads a time that may not be there.
pub(crate) fn optional<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    Option::<f64>::deserialize(from)?.map(checked).transpose()
}
