//! Evaluation, by minijinja.

use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value};
use thiserror::Error;

use crate::{
    ATTEMPT_VARIABLES, Amount, MAX_LENGTH, PLAN_VARIABLES, RECORD_VARIABLES, VariableValue, Variables,
    amounts, lists,
};

/// The functions of the language.
pub const FUNCTIONS: &[&str] = &["abs", "float", "int", "len", "max", "min", "round", "str"];

/// What the evaluation of an expression may cost: an operation costs 1, and so do 64 bytes of text that it
/// makes.
const FUEL: u64 = 20_000;

/// Why an expression is skipped.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExpressionError {
    /// It is longer than [`MAX_LENGTH`].
    #[error("it has {0} bytes, and at most {MAX_LENGTH} are allowed")]
    TooLong(usize),
    /// It is no expression.
    #[error("{0}")]
    Syntax(String),
    /// It names something that is no variable.
    #[error("there is no variable `{0}`")]
    Unknown(String),
    /// It names a variable that has no value here.
    #[error("the variable `{0}` has no value in this run")]
    NoValue(String),
    /// It cannot be evaluated with these values.
    #[error("{0}")]
    Evaluation(String),
}

/// Checks what can be seen without values: syntax and names.
///
/// # Errors
/// Why the expression will be skipped.
pub fn check(text: &str) -> Result<(), ExpressionError> {
    let environment = environment();
    for name in names(&environment, text)? {
        if RECORD_VARIABLES.contains(&name.as_str()) {
            return Err(ExpressionError::NoValue(name));
        }
        if !PLAN_VARIABLES.contains(&name.as_str()) && !ATTEMPT_VARIABLES.contains(&name.as_str()) {
            return Err(ExpressionError::Unknown(name));
        }
    }
    Ok(())
}

/// Returns whether an expression has a variable. One that is no expression has none.
#[must_use]
pub fn mentions(text: &str, variable: &str) -> bool {
    // Names in text are found, too, before the expression is parsed.
    let names = text.contains(variable).then(|| names(&environment(), text));
    names.is_some_and(|names| names.is_ok_and(|names| names.iter().any(|name| name == variable)))
}

/// Returns the amount that an expression gives with these values. Fractions are rounded up.
///
/// # Errors
/// Why the expression is skipped.
pub fn evaluate(amount: Amount, text: &str, variables: &Variables) -> Result<u64, ExpressionError> {
    amounts::amount(amount, &value(text, variables)?).map_err(ExpressionError::Evaluation)
}

/// Returns the text that an expression gives with these values, such as the name of a queue.
///
/// # Errors
/// Why the expression is skipped.
pub fn evaluate_text(text: &str, variables: &Variables) -> Result<String, ExpressionError> {
    let value = value(text, variables)?;
    amounts::as_text(&value).ok_or_else(|| ExpressionError::Evaluation(NO_TEXT.to_owned()))
}

/// Returns the value of an expression.
fn value(text: &str, variables: &Variables) -> Result<Value, ExpressionError> {
    let environment = environment();
    for name in names(&environment, text)? {
        if !variables.0.iter().any(|(known, _)| *known == name) {
            let is_known = [PLAN_VARIABLES, ATTEMPT_VARIABLES, RECORD_VARIABLES]
                .concat()
                .contains(&name.as_str());
            return Err(if is_known {
                ExpressionError::NoValue(name)
            } else {
                ExpressionError::Unknown(name)
            });
        }
    }
    let expression = environment
        .compile_expression(text)
        .map_err(|error| syntax(&error))?;
    let values = variables.0.iter().map(|(name, value)| {
        let value = match value {
            VariableValue::Whole(number) => Value::from(*number),
            VariableValue::Number(number) => Value::from(*number),
            VariableValue::Text(text) => Value::from(text.as_str()),
        };
        (name.clone(), value)
    });
    let values: std::collections::BTreeMap<String, Value> = values.collect();
    expression
        .eval(Value::from(values))
        .map_err(|error| ExpressionError::Evaluation(message(&error)))
}

/// Returns the variables of an expression, sorted.
fn names(environment: &Environment<'_>, text: &str) -> Result<Vec<String>, ExpressionError> {
    if text.len() > MAX_LENGTH {
        return Err(ExpressionError::TooLong(text.len()));
    }
    if let Some(problem) = lists::forbidden(text) {
        return Err(ExpressionError::Syntax(problem.to_owned()));
    }
    let expression = environment.compile_expression_owned(text.to_owned());
    let names = expression
        .map_err(|error| syntax(&error))?
        .undeclared_variables(false);
    let mut names: Vec<String> = names
        .into_iter()
        .filter(|name| !FUNCTIONS.contains(&name.as_str()))
        .collect();
    names.sort();
    Ok(names)
}

fn syntax(error: &Error) -> ExpressionError {
    ExpressionError::Syntax(message(error))
}

/// Returns what is wrong without the place, which is always line 1 of the expression.
fn message(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    // A text that is repeated, such as `'x' * 9999999`, must not fill memory.
    environment.set_fuel(Some(FUEL));
    environment.add_function("abs", |number: f64| number.abs());
    environment.add_function("float", |value: Value| number(&value));
    environment.add_function("int", |value: Value| number(&value).map(f64::trunc).map(whole));
    environment.add_function("len", |value: Value| {
        value.len().ok_or_else(|| refusal("len() needs a text or a list"))
    });
    environment.add_function("max", |values: minijinja::value::Rest<Value>| {
        extreme(&values, "max", Iterator::max)
    });
    environment.add_function("min", |values: minijinja::value::Rest<Value>| {
        extreme(&values, "min", Iterator::min)
    });
    environment.add_function("round", round);
    environment.add_function("str", |value: Value| {
        amounts::as_text(&value).ok_or_else(|| refusal(NO_TEXT))
    });
    environment
}

const NO_TEXT: &str = "a text or a number is needed, and not a list";

fn refusal(detail: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

fn number(value: &Value) -> Result<f64, Error> {
    if let Some(text) = value.as_str() {
        return text
            .trim()
            .parse()
            .map_err(|_| refusal("int() and float() need a number, or a text with one"));
    }
    f64::try_from(value.clone())
}

/// Returns a whole number as such: what is written with it has no decimal point.
fn whole(number: f64) -> Value {
    // Both ends are exact in this type.
    if (-9e15..=9e15).contains(&number) {
        Value::from(number as i64)
    } else {
        Value::from(number)
    }
}

/// Rounds as Python does: a number in the middle goes to the even one. Without digits it becomes whole.
fn round(number: f64, digits: Option<i32>) -> Value {
    match digits {
        None => whole(number.round_ties_even()),
        Some(digits) => {
            let factor = 10_f64.powi(digits.clamp(-300, 300));
            let rounded = (number * factor).round_ties_even() / factor;
            Value::from(if rounded.is_finite() { rounded } else { number })
        }
    }
}

type Choose = fn(std::vec::IntoIter<Value>) -> Option<Value>;

/// Returns the greatest or smallest of the values, or of those in a single list.
fn extreme(values: &[Value], name: &str, choose: Choose) -> Result<Value, Error> {
    let all: Vec<Value> = match values {
        [list] if list.as_str().is_none() => list.try_iter()?.collect(),
        _ => values.to_vec(),
    };
    if all.iter().any(|value| value.as_object().is_some()) {
        return Err(refusal("lists cannot be compared"));
    }
    let is_text = |value: &Value| value.as_str().is_some();
    if all.iter().any(is_text) && !all.iter().all(is_text) {
        return Err(refusal("texts and numbers cannot be compared"));
    }
    choose(all.into_iter())
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, format!("{name}() needs a value")))
}

#[cfg(test)]
mod tests;
