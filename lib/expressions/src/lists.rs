//! Lists that are repeated, and texts of lists. Both can have any length, and the language folds constants
//! before it counts what an evaluation costs. So both are found in the text of an expression.

/// Words that end an operand.
const WORDS: [&str; 7] = ["and", "else", "if", "in", "is", "not", "or"];

/// What is between two operators that bind less than a product, as far as it has been read.
#[derive(Clone, Copy, Default)]
struct Product {
    has_list: bool,
    is_repeated: bool,
    /// Something is looked for in it: whatever it is, the result is no list.
    is_searched: bool,
}

/// A pair of brackets, or the whole expression.
#[derive(Clone, Copy, Default)]
struct Group {
    /// Its value may be a list.
    may_be_list: bool,
    /// The brackets are those of a call, whose value is no list.
    is_call: bool,
    product: Product,
}

impl Group {
    /// Begins the next product.
    fn begin(&mut self, product: Product) {
        let ended = std::mem::replace(&mut self.product, product);
        self.may_be_list |= ended.has_list && !ended.is_searched;
    }
}

/// Returns what an expression must not have: a list as a factor, or the operator `~`, which Python lacks.
pub(crate) fn forbidden(text: &str) -> Option<&'static str> {
    let mut groups = vec![Group::default()];
    // The name that ends here; empty behind operators, numbers and brackets.
    let mut word = String::new();
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        let group = groups.last_mut()?;
        match c {
            '~' => return Some("`~` is no operator"),
            '\'' | '"' => skip_text(&mut characters, c),
            '*' => group.product.is_repeated = true,
            '/' | '%' => {}
            '[' | '(' => {
                let is_call = c == '(' && !word.is_empty() && !WORDS.contains(&word.as_str());
                groups.push(Group {
                    may_be_list: c == '[',
                    is_call,
                    ..Group::default()
                });
            }
            ']' | ')' => {
                let mut closed = groups.pop()?;
                closed.begin(Product::default());
                // One too many: the parser says so.
                let group = groups.last_mut()?;
                group.product.has_list |= closed.may_be_list && !closed.is_call;
            }
            ',' => {
                group.begin(Product::default());
                group.may_be_list = true;
            }
            c if c.is_alphanumeric() || c == '_' => {
                word.push(c);
                let ends = |next: &char| !next.is_alphanumeric() && *next != '_';
                if characters.peek().is_none_or(ends) && WORDS.contains(&word.as_str()) {
                    group.begin(Product {
                        is_searched: word == "in",
                        ..Product::default()
                    });
                }
                continue;
            }
            // `max (1)` is a call, too.
            c if c.is_whitespace() => {
                match characters.peek() {
                    Some('(') => {}
                    _ => word.clear(),
                }
                continue;
            }
            _ => group.begin(Product::default()),
        }
        word.clear();
        let product = groups.last()?.product;
        if product.has_list && product.is_repeated {
            return Some("a list cannot be repeated");
        }
    }
    None
}

/// Skips the rest of a text in quotes.
fn skip_text(characters: &mut impl Iterator<Item = char>, quote: char) {
    while let Some(c) = characters.next() {
        match c {
            '\\' => drop(characters.next()),
            c if c == quote => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_no_factors() {
        for text in [
            "[1] * 9",
            "9 * [1]",
            "9 * -3 * ([1])",
            "len([1, 2]  *9)",
            "((1, 2)) * 3",
            "([1] if x else 3) * 4",
            "(3 if x else [1]) * 4",
            "(1 or ([2] + [3])) * 4",
            "max((1 and [1]) * 4)",
            "1 if 7 in [1] * 4 else 2",
            "1 if 7 in(1, 2) * 4 else 2",
            "[[1] * 9]",
            "[1][0] * 3",
            "x / [1] * 2",
        ] {
            assert_eq!(forbidden(text), Some("a list cannot be repeated"), "{text}");
        }
    }

    #[test]
    fn other_products_have_lists_beside_them() {
        for text in [
            "max([1, 2]) * 3",
            "max (1, 2) * max(3, 4) * int('[' + '3')",
            "m * 2 if exitcode in [137, 1] else m * 3",
            "m * 2 if exitcode not in (137, 1) and 3 * 4 > 2 else m",
            "3 * (4 + 5) * (6)",
            "(m if exitcode in [1] else 2) ** 3 + len([1, 2])",
            "[1, 2 * 3]",
            "'[1] * 2' + \"it's ~ \\\" [1] * 3\"",
            "",
            ")) * [",
        ] {
            assert_eq!(forbidden(text), None, "{text}");
        }
        assert_eq!(forbidden("'a' ~ 1"), Some("`~` is no operator"));
    }
}
