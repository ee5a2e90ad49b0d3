//! What an expression gives, as an amount.

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::Amount;

/// Returns the amount that a value stands for, rounded up. Memory and disk space may have a unit.
///
/// # Errors
/// What is wrong with the value.
pub(crate) fn amount(amount: Amount, value: &Value) -> Result<u64, String> {
    let number = match value.kind() {
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::String => value.as_str().and_then(|text| of_text(amount, text)),
        _ => None,
    };
    let number =
        number.ok_or_else(|| format!("it gives `{}`, which is no {}", short(value), what(amount)))?;
    let least = if amount == Amount::Cores { 1.0 } else { 0.0 };
    // The executor's messages hold 32 bits of each.
    if !(least..=f64::from(u32::MAX)).contains(&number) {
        return Err(format!("it gives {number}, which is out of range"));
    }
    Ok(number.ceil() as u64)
}

fn what(amount: Amount) -> &'static str {
    match amount {
        Amount::Memory | Amount::Diskspace => "amount of memory: a number of MB, or text such as `2 GB`",
        Amount::Cores | Amount::Gpus | Amount::Runtime => "number",
    }
}

/// Returns the text of a value that is no list: the text of a list can be as long as memory.
pub(crate) fn as_text(value: &Value) -> Option<String> {
    value.as_object().is_none().then(|| value.to_string())
}

fn short(value: &Value) -> String {
    let Some(text) = as_text(value) else {
        return "a list".to_owned();
    };
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// Parses `2`, `1.5 GB`, `512 MiB` to MB; only memory and disk space have units.
fn of_text(amount: Amount, text: &str) -> Option<f64> {
    let text = text.trim();
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[number.len()..].to_ascii_uppercase();
    let number: f64 = number.trim_end().parse().ok()?;
    if unit.is_empty() {
        return Some(number);
    }
    if !matches!(amount, Amount::Memory | Amount::Diskspace) {
        return None;
    }
    let prefix = unit
        .strip_suffix("IB")
        .or(unit.strip_suffix('B'))
        .unwrap_or(&unit);
    let power = match prefix {
        "" => -2,
        "K" => -1,
        "M" => 0,
        "G" => 1,
        "T" => 2,
        "P" => 3,
        _ => return None,
    };
    Some(number * 1024_f64.powi(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_amounts() {
        let memory = |value: Value| amount(Amount::Memory, &value);
        assert_eq!(memory(Value::from(1024)), Ok(1024));
        assert_eq!(memory(Value::from(1024.2)), Ok(1025));
        assert_eq!(memory(Value::from("2 GB")), Ok(2048));
        assert_eq!(memory(Value::from("1.5GiB")), Ok(1536));
        assert_eq!(memory(Value::from("100 KB")), Ok(1));
        assert_eq!(memory(Value::from(" 300 ")), Ok(300));
        assert_eq!(amount(Amount::Gpus, &Value::from("2")), Ok(2));
        assert_eq!(amount(Amount::Gpus, &Value::from(0)), Ok(0));
        for (what, value, says) in [
            (Amount::Memory, Value::from("much"), "`much`"),
            (Amount::Memory, Value::from("2 XB"), "`2 XB`"),
            (Amount::Cores, Value::from("2 GB"), "`2 GB`"),
            (Amount::Cores, Value::from(0), "out of range"),
            (Amount::Memory, Value::from(-1), "out of range"),
            (Amount::Memory, Value::from(f64::NAN), "out of range"),
            (Amount::Memory, Value::from(1e12), "out of range"),
            (Amount::Memory, Value::from(true), "`True`"),
            (Amount::Memory, Value::from(()), "`None`"),
            (Amount::Memory, Value::from("€".repeat(99)), "…"),
        ] {
            let error = amount(what, &value).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
