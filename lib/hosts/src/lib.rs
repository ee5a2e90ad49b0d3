//! Names of hosts, and expressions for many of them.
//!
//! An expression is a list with commas. Brackets hold numbers and ranges: `n[1-4,7].cluster`,
//! `r[1-2]n[01-16]`. A range that begins with 0 keeps the number of its digits. Slurm, Flux and the tools of
//! clusters write and read such expressions.

use std::borrow::Cow;
use std::collections::BTreeSet;

/// Maximum bytes of the name of a host.
const MAX_NAME: usize = 255;

/// Maximum digits of a number in brackets, so that it is a 64-bit one.
const MAX_DIGITS: usize = 18;

/// Names of hosts that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostsError {
    /// One of them is no name.
    #[error("{0:?} is no name of a host")]
    Name(String),
    /// Numbers or brackets are wrong.
    #[error("{0:?} is no list of hosts: brackets hold numbers and ranges, as in n[1-4,7]")]
    Brackets(String),
    /// There are too many of them.
    #[error("it names more than {0} hosts")]
    TooMany(usize),
    /// Something needs different hosts.
    #[error("it names the host {0} twice")]
    Twice(String),
}

/// Returns whether a text can be the name of a host: it stands in lines of logs, whose words are separated by
/// blanks.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && c != '"';
    (1..=MAX_NAME).contains(&text.len()) && text.chars().all(is_plain)
}

/// Reads an expression that names at most `max` different hosts.
///
/// # Errors
/// It is no expression, or names too many hosts, or one of them twice.
pub fn parse_hosts(text: &str, max: usize) -> Result<Vec<String>, HostsError> {
    let hosts = expand(text, max)?;
    let mut seen = BTreeSet::new();
    match hosts.iter().find(|host| !seen.insert(host.as_str())) {
        Some(host) => Err(HostsError::Twice(host.clone())),
        None => Ok(hosts),
    }
}

/// Returns the hosts of an expression in its order, at most `max`.
///
/// # Errors
/// It is no expression, or names too many hosts.
pub fn expand(text: &str, max: usize) -> Result<Vec<String>, HostsError> {
    let mut hosts = Vec::new();
    for item in split_outside_brackets(text) {
        let item = item.trim();
        let left = max - hosts.len();
        let names = expand_item(item, left)?.ok_or(HostsError::TooMany(max))?;
        // A name that begins with a dash would be an option of the program that gets it.
        if let Some(wrong) = names.iter().find(|name| !is_name(name) || name.starts_with('-')) {
            return Err(HostsError::Name(wrong.clone()));
        }
        hosts.extend(names);
    }
    Ok(hosts)
}

/// Splits a list at commas that are not in brackets.
fn split_outside_brackets(text: &str) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    text.split(move |c: char| {
        match c {
            '[' => is_inside = true,
            ']' => is_inside = false,
            _ => {}
        }
        c == ',' && !is_inside
    })
}

/// Returns the hosts of one item; `None` if there are more than `max`.
fn expand_item(item: &str, max: usize) -> Result<Option<Vec<String>>, HostsError> {
    let wrong = || HostsError::Brackets(item.to_owned());
    let mut names = vec![String::new()];
    let mut rest = item;
    while let Some((before, after)) = rest.split_once('[') {
        let (inside, behind) = after.split_once(']').ok_or_else(wrong)?;
        if before.contains(']') {
            return Err(wrong());
        }
        // Each name is a byte or more: this bounds the numbers, too.
        let Some(numbers) = expand_numbers(inside, max).map_err(|NoNumbers| wrong())? else {
            return Ok(None);
        };
        if names.len().saturating_mul(numbers.len()) > max {
            return Ok(None);
        }
        let with_number = |name: &String| {
            let name = format!("{name}{before}");
            numbers
                .iter()
                .map(move |number| format!("{name}{number}"))
                .collect::<Vec<_>>()
        };
        names = names.iter().flat_map(with_number).collect();
        rest = behind;
    }
    if rest.contains(']') {
        return Err(wrong());
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    Ok(Some(names).filter(|names| names.len() <= max))
}

/// A text is no list of numbers.
struct NoNumbers;

/// Returns the numbers of a list such as `1-4,07`; `None` if there are more than `max`.
fn expand_numbers(list: &str, max: usize) -> Result<Option<Vec<String>>, NoNumbers> {
    let mut numbers = Vec::new();
    for part in list.split(',') {
        let part = part.trim();
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (number(first)?, number(last)?);
        let count = to.checked_sub(from).ok_or(NoNumbers)?;
        if count >= (max - numbers.len()) as u64 {
            return Ok(None);
        }
        numbers.extend((from..=to).map(|value| padded(value, first)));
    }
    Ok(Some(numbers))
}

fn number(text: &str) -> Result<u64, NoNumbers> {
    let is_number = (1..=MAX_DIGITS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number).ok_or(NoNumbers)
}

/// Writes a number of a range that begins with these digits.
fn padded(value: u64, first: &str) -> String {
    match first.starts_with('0') {
        true => format!("{value:0width$}", width = first.len()),
        false => value.to_string(),
    }
}

/// Hosts whose names differ in one number.
struct Group<'a> {
    before: &'a str,
    behind: &'a str,
    /// First number of each range, as it is written, and the last one.
    ranges: Vec<(&'a str, u64)>,
}

/// Returns an expression for these hosts, from which [`expand`] makes the same list.
#[must_use]
pub fn compress<S: AsRef<str>>(hosts: &[S]) -> String {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut text: Vec<Cow<'_, str>> = Vec::new();
    for host in hosts.iter().map(AsRef::as_ref) {
        let Some((before, digits, behind)) = split_at_number(host) else {
            text.extend(groups.drain(..).map(|group| Cow::Owned(group.text())));
            text.push(Cow::Borrowed(host));
            continue;
        };
        let value = digits.parse().unwrap_or_default();
        match groups
            .last_mut()
            .filter(|group| (group.before, group.behind) == (before, behind))
        {
            Some(group) => match group.ranges.last_mut() {
                Some((first, last)) if value == *last + 1 && padded(value, first) == digits => *last = value,
                _ => group.ranges.push((digits, value)),
            },
            None => {
                text.extend(groups.drain(..).map(|group| Cow::Owned(group.text())));
                groups.push(Group {
                    before,
                    behind,
                    ranges: vec![(digits, value)],
                });
            }
        }
    }
    text.extend(groups.drain(..).map(|group| Cow::Owned(group.text())));
    text.join(",")
}

impl Group<'_> {
    fn text(&self) -> String {
        let Self { before, behind, .. } = self;
        let range = |(first, last): &(&str, u64)| match padded(*last, first) {
            last if last == *first => last,
            last => format!("{first}-{last}"),
        };
        let ranges: Vec<String> = self.ranges.iter().map(range).collect();
        match ranges.as_slice() {
            [one] if !one.contains('-') => format!("{before}{one}{behind}"),
            _ => format!("{before}[{}]{behind}", ranges.join(",")),
        }
    }
}

/// Splits a name at the last number before its first dot.
fn split_at_number(host: &str) -> Option<(&str, &str, &str)> {
    let label = host.split('.').next().unwrap_or_default();
    let end = label.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = label[..end].trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let digits = &label[start..end];
    (digits.len() <= MAX_DIGITS).then(|| (&host[..start], digits, &host[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(text: &str) -> String {
        expand(text, 100).unwrap().join(" ")
    }

    #[test]
    fn host_expressions_are_expanded() {
        assert_eq!(all("n1"), "n1");
        assert_eq!(all("n[1-4,7]"), "n1 n2 n3 n4 n7");
        assert_eq!(
            all("n[08-11],login, x[3].cluster"),
            "n08 n09 n10 n11 login x3.cluster"
        );
        assert_eq!(all("r[1-2]n[01-02]-ib"), "r1n01-ib r1n02-ib r2n01-ib r2n02-ib");
        assert_eq!(all("n1,n1"), "n1 n1");
    }

    #[test]
    fn what_is_no_host_expression_is_refused_with_its_text() {
        for wrong in [
            "n[", "n]", "n[]", "n[1", "n[1-]", "n[a]", "n[4-1]", "n[1]]", "n[[1]]", "n[-1]",
        ] {
            assert_eq!(
                expand(wrong, 100),
                Err(HostsError::Brackets(wrong.to_owned())),
                "{wrong}"
            );
        }
        for wrong in ["", "n1,", "-oProxyCommand=x", "a b", "n\"1", "[1-2],-x"] {
            assert!(matches!(expand(wrong, 100), Err(HostsError::Name(_))), "{wrong}");
        }
        assert_eq!(
            parse_hosts("n1,n[2,1]", 9),
            Err(HostsError::Twice("n1".to_owned()))
        );
    }

    /// A few bytes must not take all memory.
    #[test]
    fn host_expressions_are_bounded() {
        assert_eq!(expand("n[1-100]", 100).unwrap().len(), 100);
        for many in [
            "n[1-101]",
            "n[0-999999999999999999]",
            "n[1-99],m[1-2]",
            "a[1-11]b[1-10]",
        ] {
            assert_eq!(expand(many, 100), Err(HostsError::TooMany(100)), "{many}");
        }
        let long = "n[9999999999999999999]";
        assert_eq!(expand(long, 100), Err(HostsError::Brackets(long.to_owned())));
        assert_eq!(expand("n1", 0), Err(HostsError::TooMany(0)));
    }

    #[test]
    fn hosts_are_written_as_an_expression() {
        let text = |hosts: &str| compress(&hosts.split(' ').collect::<Vec<_>>());
        assert_eq!(text("n1 n2 n3 n4 n7"), "n[1-4,7]");
        assert_eq!(text("n08 n09 n10 n010"), "n[08-10,010]");
        assert_eq!(text("n9 n10 m1"), "n[9-10],m1");
        assert_eq!(text("n1.a n2.a n3.b login"), "n[1-2].a,n3.b,login");
        assert_eq!(compress::<&str>(&[]), "");
    }

    proptest! {
        #[test]
        fn an_expression_stands_for_the_same_hosts(
            hosts in prop::collection::vec("[a-c]{0,2}[0-9]{0,3}[a-b.]{0,2}[a-b]", 1..20)
        ) {
            prop_assert_eq!(expand(&compress(&hosts), 1000).unwrap(), hosts);
        }

        #[test]
        fn consecutive_hosts_are_one_range(first in 0_u64..2000, count in 2_u64..50, width in 1_usize..5) {
            let hosts: Vec<String> = (first..first + count).map(|n| format!("n{n:0width$}")).collect();
            let text = compress(&hosts);
            prop_assert_eq!(text.matches('-').count(), 1);
            prop_assert_eq!(expand(&text, 1000).unwrap(), hosts);
        }

        #[test]
        fn no_text_panics(text in "\\PC*|[n0-9,\\[\\]-]*") {
            let _ = expand(&text, 50);
        }
    }
}
