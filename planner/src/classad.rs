//! Finds the largest number that an expression of HTCondor can have as its value. For
//! `ifThenElse(NumJobStarts > 0, 8192, 4096)`, that is 8192. Attributes have no value here.
//!
//! Grammar, as in ClassAds: `? :`, `||`, `&&`, comparisons, `+ -`, `* / %`, unary `- + !`, numbers with a
//! unit (K, M, G, T), strings, attributes, calls, lists.

/// Maximum depth of parentheses. Deeper expressions tell nothing.
const MAX_DEPTH: usize = 32;

/// Returns the largest constant that an expression can be. `number` reads a number with its unit. `None` if
/// no branch is constant, or if the text is no expression.
pub(crate) fn largest(text: &str, number: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    let mut parser = Parser {
        rest: text.trim(),
        number: &number,
        depth: 0,
    };
    let value = parser.ternary()?;
    parser.rest.is_empty().then_some(())?;
    value.0.filter(|value| value.is_finite())
}

/// The largest known value of a part; none if it depends on attributes.
#[derive(Clone, Copy)]
struct Value(Option<f64>);

impl Value {
    fn larger(self, other: Self) -> Self {
        Self(match (self.0, other.0) {
            (Some(one), Some(two)) => Some(one.max(two)),
            (one, two) => one.or(two),
        })
    }
}

struct Parser<'t> {
    rest: &'t str,
    number: &'t dyn Fn(&str) -> Option<f64>,
    depth: usize,
}

/// Operators by precedence, weakest first. A longer one comes before its beginning.
const LEVELS: [&[&str]; 5] = [
    &["||"],
    &["&&"],
    &["=?=", "=!=", "==", "!=", "<=", ">=", "<", ">"],
    &["+", "-"],
    &["*", "/", "%"],
];

// Each function returns `None` if the text is no expression.
impl<'t> Parser<'t> {
    fn take(&mut self, token: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(token) else {
            return false;
        };
        self.rest = rest.trim_start();
        true
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> &'t str {
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn ternary(&mut self) -> Option<Value> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let condition = self.binary(0)?;
        let value = if self.take("?:") {
            condition.larger(self.ternary()?)
        } else if self.take("?") {
            let yes = self.ternary()?;
            self.take(":").then_some(())?;
            yes.larger(self.ternary()?)
        } else {
            condition
        };
        self.depth -= 1;
        Some(value)
    }

    fn binary(&mut self, level: usize) -> Option<Value> {
        let Some(operators) = LEVELS.get(level) else {
            return self.unary();
        };
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = operators.iter().find(|operator| self.take(operator)) {
            let right = self.binary(level + 1)?;
            left = Value(left.0.zip(right.0).and_then(|(left, right)| match *operator {
                "+" => Some(left + right),
                "-" => Some(left - right),
                "*" => Some(left * right),
                "/" => Some(left / right),
                "%" => Some(left % right),
                // True or false is no amount.
                _ => None,
            }));
        }
        Some(left)
    }

    fn unary(&mut self) -> Option<Value> {
        let mut is_negative = false;
        let mut is_logical = false;
        loop {
            if self.take("-") {
                is_negative = !is_negative;
            } else if self.take("!") {
                is_logical = true;
            } else if !self.take("+") {
                break;
            }
        }
        let Value(value) = self.primary()?;
        let value = value.filter(|_| !is_logical);
        Some(Value(value.map(|value| if is_negative { -value } else { value })))
    }

    fn primary(&mut self) -> Option<Value> {
        if self.take("(") {
            let value = self.ternary()?;
            return self.take(")").then_some(value);
        }
        if self.take("{") {
            return self.list("}").map(largest_of);
        }
        if self.take("\"") {
            let (_, rest) = self.rest.split_once('"')?;
            self.rest = rest.trim_start();
            return Some(Value(None));
        }
        if self.rest.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            let digits = self.take_while(|c| c.is_ascii_alphanumeric() || c == '.');
            self.rest = self.rest.trim_start();
            return Some(Value(Some((self.number)(digits)?)));
        }
        let name = self.take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'));
        (!name.is_empty()).then_some(())?;
        self.rest = self.rest.trim_start();
        if !self.take("(") {
            return Some(Value(None));
        }
        let arguments = self.list(")")?;
        let is = |function: &str| name.eq_ignore_ascii_case(function);
        Some(match arguments[..] {
            [_, yes, no] if is("ifThenElse") => yes.larger(no),
            [value] if ["int", "real", "ceiling", "floor", "round"].into_iter().any(is) => value,
            _ if is("max") => largest_of(arguments),
            _ => Value(None),
        })
    }

    /// Expressions up to the end of a list or call.
    fn list(&mut self, end: &str) -> Option<Vec<Value>> {
        let mut values = Vec::new();
        if self.take(end) {
            return Some(values);
        }
        loop {
            values.push(self.ternary()?);
            if self.take(end) {
                return Some(values);
            }
            self.take(",").then_some(())?;
        }
    }
}

fn largest_of(values: Vec<Value>) -> Value {
    values.into_iter().fold(Value(None), Value::larger)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> Option<f64> {
        largest(text, |digits| digits.parse().ok())
    }

    #[test]
    fn branches_tell_the_largest_value() {
        for (text, value) in [
            (
                "ifThenElse(isUndefined(MemoryUsage), 4096, MemoryUsage * 3 / 2)",
                Some(4096.0),
            ),
            (
                "NumJobStarts == 0 ? 2000 : NumJobStarts == 1 ? 4000 : 8000",
                Some(8000.0),
            ),
            (
                "ifthenelse(MemoryUsage =!= undefined, max({MemoryUsage * 2, 3000}), 2000)",
                Some(3000.0),
            ),
            ("2 * 1024", Some(2048.0)),
            ("(1+1) * 1024 - 48", Some(2000.0)),
            ("MemoryUsage ?: 512", Some(512.0)),
            ("int(3.0)", Some(3.0)),
            ("MemoryUsage * 3", None),
            ("MY.RequestMemory", None),
            ("a == \"x\" ? b : c", None),
            ("1 < 2", None),
            ("5 / 0", None),
            ("$(MEM)", None),
            ("2048 MB", None),
            ("(1", None),
            ("", None),
        ] {
            assert_eq!(of(text), value, "{text}");
        }
        assert_eq!(of(&format!("{}1{}", "(".repeat(9999), ")".repeat(9999))), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[-+*/%!?:<>=&|(){},\" a1.x]{0,40}") {
            let _ = of(&text);
        }
    }
}
