//! Expansion of `$(name)`, `$(name:default)` and `$ENV(name)` in submit descriptions.

use rustc_hash::FxHashMap;

use crate::budget::Budget;
use crate::error::ErrorKind;

/// Maximum depth of macros within macros.
const MAX_DEPTH: usize = 32;
/// Maximum length of a value in bytes.
const MAX_LENGTH: usize = 1 << 20;
/// Maximum macros that one value may lead to.
const MAX_MACROS: usize = 10_000;

/// Values of macros.
pub(crate) trait Values {
    /// Returns the value of a macro. `within` has the names of the macros around it, outermost first: a macro
    /// in its own value means an earlier one of the same name.
    ///
    /// # Errors
    /// A macro that only HTCondor knows.
    fn get(&self, name: &str, within: &[&str]) -> Result<Option<&str>, &'static str>;

    /// Returns a variable of the environment.
    fn environment(&self, name: &str) -> Option<String>;

    /// What the whole DAG may still take.
    fn budget(&self) -> &Budget;
}

/// Expands all macros in a text. As in HTCondor, a macro without a value is empty.
///
/// # Errors
/// Macros that only HTCondor can expand, that contain themselves, or that have no end.
pub(crate) fn expand(text: &str, name: &str, values: &dyn Values) -> Result<String, ErrorKind> {
    let mut out = String::with_capacity(text.len());
    let mut expander = Expander { values, macros: 0 };
    expander.expand(text, &mut vec![name], &mut out)?;
    values.budget().bytes(out.len())?;
    Ok(out)
}

struct Expander<'v> {
    values: &'v dyn Values,
    macros: usize,
}

impl Expander<'_> {
    fn expand<'t>(
        &mut self,
        text: &'t str,
        within: &mut Vec<&'t str>,
        out: &mut String,
    ) -> Result<(), ErrorKind> {
        let mut rest = text;
        let ends = Ends::of(text);
        while let Some(at) = rest.find('$') {
            let (before, from) = rest.split_at(at);
            out.push_str(before);
            let Some(found) = Macro::parse(from, text.len() - from.len(), &ends) else {
                out.push('$');
                rest = &from[1..];
                continue;
            };
            rest = &from[found.length..];
            self.values.budget().expansion()?;
            let refuse = |problem| ErrorKind::Macro {
                text: from[..found.length].to_owned(),
                problem,
            };
            self.macros += 1;
            if within.len() > MAX_DEPTH || self.macros > MAX_MACROS || out.len() > MAX_LENGTH {
                return Err(refuse("the macros in it have no end"));
            }
            match found.function {
                "" if found.name == "DOLLAR" => out.push('$'),
                "" => match self.values.get(found.name, within).map_err(refuse)? {
                    Some(value) => {
                        let value = value.to_owned();
                        let mut within = within.clone();
                        within.push(found.name);
                        self.expand(&value, &mut within, out)?;
                    }
                    None => {
                        if let Some(default) = found.default {
                            self.expand(default, within, out)?;
                        }
                    }
                },
                "ENV" => match (self.values.environment(found.name), found.default) {
                    (Some(value), _) => out.push_str(&value),
                    (None, Some(default)) => out.push_str(default),
                    (None, None) => return Err(refuse("there is no such variable in the environment")),
                },
                "$" if found.name == "DOLLARDOLLAR" => out.push_str("$$"),
                "$" => return Err(refuse("it depends on the machine that HTCondor chooses")),
                _ => return Err(refuse("functions other than $ENV are not supported")),
            }
        }
        out.push_str(rest);
        if out.len() > MAX_LENGTH {
            return Err(ErrorKind::Macro {
                text: within.first().copied().unwrap_or_default().to_owned(),
                problem: "its value has more than 1 MiB",
            });
        }
        Ok(())
    }
}

/// Where parentheses of a text end, by where they begin. Found once for all, so that the time to expand a
/// text grows with its length only.
struct Ends(FxHashMap<usize, usize>);

impl Ends {
    fn of(text: &str) -> Self {
        let (mut ends, mut open) = (FxHashMap::default(), Vec::new());
        if text.contains('$') {
            for (at, byte) in text.bytes().enumerate() {
                match byte {
                    b'(' => open.push(at),
                    b')' => {
                        if let Some(begin) = open.pop() {
                            ends.insert(begin, at);
                        }
                    }
                    _ => {}
                }
            }
        }
        Self(ends)
    }
}

/// Longest name of a function.
const MAX_FUNCTION: usize = 32;

/// A macro at the start of a text.
struct Macro<'t> {
    /// `ENV` in `$ENV(x)`, `$` in `$$(x)`, empty in `$(x)`.
    function: &'t str,
    name: &'t str,
    default: Option<&'t str>,
    length: usize,
}

impl<'t> Macro<'t> {
    /// Parses a text that begins with a dollar sign; `None` if it begins no macro. It is at this position of
    /// the text that has these parentheses.
    fn parse(text: &'t str, at: usize, ends: &Ends) -> Option<Self> {
        let after = &text[1..];
        let open = after.bytes().take(MAX_FUNCTION).position(|byte| byte == b'(')?;
        let function = &after[..open];
        if !matches!(function, "" | "$" | "ENV") && !is_function(function) {
            return None;
        }
        // Parentheses may be part of a default.
        let begin = at + 1 + open;
        let close = ends.0.get(&begin)? - begin - 1;
        let inner = &after[open + 1..][..close];
        // Any character may be in the name of a variable.
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/');
        let end = match function {
            "" => inner.find(|c| !is_of_name(c)),
            _ => inner.find(':'),
        };
        let (name, default) = match end.map(|end| inner.split_at(end)) {
            Some((name, default)) => (name, Some(default.strip_prefix(':')?)),
            None => (inner, None),
        };
        Some(Macro {
            function,
            name,
            default,
            length: 1 + open + 1 + close + 1,
        })
    }
}

/// Returns whether this is a function of HTCondor's macros, other than `ENV`.
fn is_function(name: &str) -> bool {
    const FUNCTIONS: [&str; 10] = [
        "BASENAME",
        "CHOICE",
        "DIRNAME",
        "EVAL",
        "INT",
        "RANDOM_CHOICE",
        "RANDOM_INTEGER",
        "REAL",
        "STRING",
        "SUBSTR",
    ];
    // `$F(x)`, `$Fnx(x)`: parts of a path.
    let of_path = name.strip_prefix('F');
    FUNCTIONS.contains(&name) || of_path.is_some_and(|parts| parts.bytes().all(|b| b.is_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Fixed(&'static [(&'static str, &'static str)], Budget);

    impl Values for Fixed {
        fn get(&self, name: &str, _: &[&str]) -> Result<Option<&str>, &'static str> {
            let found = self.0.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
            Ok(found.map(|(_, value)| *value))
        }
        fn environment(&self, name: &str) -> Option<String> {
            (name == "HOME").then(|| "/home/$(a)".to_owned())
        }
        fn budget(&self) -> &Budget {
            &self.1
        }
    }

    fn values() -> Fixed {
        Fixed(VALUES, Budget::default())
    }

    const VALUES: &[(&str, &str)] = &[
        ("a", "1"),
        ("b", "<$(a)$(A)>"),
        ("loop", "$(loop)x"),
        ("bomb", "$(b1)$(b1)$(b1)$(b1)$(b1)$(b1)$(b1)$(b1)"),
        ("b1", "$(b2)$(b2)$(b2)$(b2)$(b2)$(b2)$(b2)$(b2)"),
        ("b2", "$(b3)$(b3)$(b3)$(b3)$(b3)$(b3)$(b3)$(b3)"),
        ("b3", "$(b4)$(b4)$(b4)$(b4)$(b4)$(b4)$(b4)$(b4)"),
        ("b4", "$(b)$(b)$(b)$(b)$(b)$(b)$(b)$(b)"),
    ];

    #[test]
    fn macros_are_expanded() {
        for (text, expected) in [
            ("x$(a)y$(b)z", "x1y<11>z"),
            ("$(none)|$(none:d(e)f)|$(none:$(a))", "|d(e)f|1"),
            ("$ENV(HOME) $ENV(X:y)", "/home/$(a) y"),
            // As HTCondor 25.14 expands them.
            ("5$ $(DOLLAR)(a) $x $x(a) $( a ) $", "5$ $(a) $x $x(a) $( a ) $"),
            ("$()$(:)$(:x) $($(a)) $(a-b) $(a", "x $(1) $(a-b) $(a"),
            ("$(a:b:c) $(none:b:c)", "1 b:c"),
        ] {
            assert_eq!(expand(text, "", &values()).unwrap(), expected, "{text}");
        }
        for text in [
            "$$(OpSys)",
            "$ENV(X)",
            "$RANDOM_CHOICE(1,2)",
            "$(loop)",
            "$(bomb)",
        ] {
            assert!(expand(text, "", &values()).is_err(), "{text}");
        }
    }

    /// A mebibyte of parentheses that never end, or end all at once.
    #[test]
    fn long_texts_are_expanded_in_linear_time() {
        let start = std::time::Instant::now();
        for text in [
            "$(".repeat(1 << 19),
            format!("{}{}", "$(".repeat(1 << 18), ")".repeat(1 << 18)),
            "$".repeat(1 << 20),
            format!("{}(", "$".repeat((1 << 20) - 1)),
            "$(x:".repeat(1 << 18),
        ] {
            let _ = expand(&text, "", &values());
        }
        assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    }

    proptest! {
        #[test]
        fn any_text_is_expanded_or_refused(text in "([$(){}:a-c é]|loop|ENV|none)*") {
            let _ = expand(&text, "", &values());
        }

        #[test]
        fn text_without_macros_is_kept(text in "[^$]*") {
            prop_assert_eq!(expand(&text, "", &values()).unwrap(), text);
        }
    }
}
