//! Values as lists of other programs have them.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer, ser};

/// A text as bytes: a name that is not UTF-8 is read unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Text(pub Vec<u8>);

/// A truth value: `true`, or the words yes, true, t, 1, no, false, f, 0 in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Scalar")]
pub struct Flag(pub bool);

/// A whole number, also in quotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Scalar")]
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

/// A value that is no list and no object.
#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    Truth(bool),
    Whole(i64),
    Fraction(f64),
    Text(String),
}

impl fmt::Display for Scalar {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truth(value) => value.fmt(out),
            Self::Whole(value) => value.fmt(out),
            Self::Fraction(value) => value.fmt(out),
            Self::Text(text) => out.write_str(text),
        }
    }
}

impl TryFrom<Scalar> for Flag {
    type Error = String;

    fn try_from(value: Scalar) -> Result<Self, String> {
        let text = value.to_string();
        match text.to_ascii_lowercase().as_str() {
            "yes" | "true" | "t" | "1" => Ok(Self(true)),
            "no" | "false" | "f" | "0" => Ok(Self(false)),
            _ => Err(format!("`{text}` is not true or false")),
        }
    }
}

impl TryFrom<Scalar> for Number {
    type Error = String;

    #[expect(
        clippy::cast_possible_truncation,
        reason = "fractions of a priority are dropped"
    )]
    fn try_from(value: Scalar) -> Result<Self, String> {
        match &value {
            Scalar::Whole(number) => Some(*number),
            Scalar::Fraction(number) => Some(*number as i64),
            Scalar::Text(text) => text.trim().parse().ok(),
            Scalar::Truth(_) => None,
        }
        .map(Self)
        .ok_or_else(|| format!("`{value}` is not a whole number"))
    }
}
