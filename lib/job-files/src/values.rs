//! Values as lists of other programs have them.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer, ser};

/// A text as bytes: a name that is not UTF-8 is read unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Text(pub Vec<u8>);

/// A truth value: `true`, or the words yes, true, t, 1, no, false, f, 0 in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Flag(pub bool);

/// A whole number, also in quotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Number(pub i64);

impl Text {
    /// Returns it with a replacement character for what is not UTF-8.
    #[must_use]
    pub fn lossy(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

impl<T: Into<Vec<u8>>> From<T> for Text {
    fn from(text: T) -> Self {
        Text(text.into())
    }
}

/// Fails for a text that is not UTF-8.
impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = std::str::from_utf8(&self.0).map_err(ser::Error::custom)?;
        serializer.serialize_str(text)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Text;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a string")
            }

            fn visit_bytes<E: de::Error>(self, value: &[u8]) -> Result<Text, E> {
                Ok(Text(value.to_vec()))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Text, E> {
                Ok(Text(value.into()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Truth;
        impl Visitor<'_> for Truth {
            type Value = Flag;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("true or false")
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Flag, E> {
                Ok(Flag(value))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Flag, E> {
                self.visit_str(&value.to_string())
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Flag, E> {
                match value.to_ascii_lowercase().as_str() {
                    "yes" | "true" | "t" | "1" => Ok(Flag(true)),
                    "no" | "false" | "f" | "0" => Ok(Flag(false)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(value), &self)),
                }
            }
        }
        deserializer.deserialize_any(Truth)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Number;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a whole number")
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Number, E> {
                Ok(Number(value))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Number, E> {
                Ok(Number(i64::try_from(value).unwrap_or(i64::MAX)))
            }

            #[expect(
                clippy::cast_possible_truncation,
                reason = "fractions of a priority are dropped"
            )]
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Number, E> {
                Ok(Number(value as i64))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Number, E> {
                let number = value.trim().parse();
                number
                    .map(Number)
                    .map_err(|_| E::invalid_value(de::Unexpected::Str(value), &self))
            }
        }
        deserializer.deserialize_any(Whole)
    }
}
