//! Times in messages. The bytes of a float can say that it is not a number, which no time is.

use serde::de::{Deserialize, Deserializer, Error, Unexpected};

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
