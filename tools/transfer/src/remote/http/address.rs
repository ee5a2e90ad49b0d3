//! HTTP addresses: encoding, decoding, resolution of relative addresses.

use std::os::unix::ffi::OsStrExt;

use base64::Engine as _;

use crate::url::Url;

/// Returns the address of a URL under `scheme`, and the user and password in its host part.
///
/// Existing encoding (`%` with two hexadecimal digits) and `?` are kept. The fragment is removed.
pub(crate) fn of_url(url: &Url, scheme: &str) -> (String, Option<(String, String)>) {
    let (user, host) = match url.host().rsplit_once('@') {
        Some((user, host)) => {
            let (user, password) = user.split_once(':').unwrap_or((user, ""));
            (Some((decode(user), decode(password))), host)
        }
        None => (None, url.host()),
    };
    let path = url.path().as_os_str().as_bytes();
    let path = path.split(|byte| *byte == b'#').next().unwrap_or(path);
    let path = if path.is_empty() { &b"/"[..] } else { path };
    (format!("{scheme}://{host}{}", encode_part(path)), user)
}

/// Returns whether requests to an address are encrypted.
pub(crate) fn is_secure(address: &str) -> bool {
    split(address).is_some_and(|(scheme, _, _)| scheme.eq_ignore_ascii_case("https"))
}

/// Encodes only the bytes that are invalid in an address.
fn encode_part(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for (at, byte) in bytes.iter().enumerate() {
        let encoded = *byte == b'%'
            && bytes
                .get(at + 1..at + 3)
                .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let plain = byte.is_ascii_graphic() && !b"\"<>\\^`{|}%#".contains(byte);
        if plain || encoded {
            out.push(char::from(*byte));
        } else {
            push_encoded(&mut out, *byte);
        }
    }
    out
}

/// Percent-encodes all bytes but letters, digits and `-._~`, and `/` if `keep_slashes`.
pub(crate) fn encode(bytes: &[u8], keep_slashes: bool) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) || (keep_slashes && *byte == b'/') {
            out.push(char::from(*byte));
        } else {
            push_encoded(&mut out, *byte);
        }
    }
    out
}

fn push_encoded(out: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.push('%');
    out.push(char::from(DIGITS[usize::from(byte >> 4)]));
    out.push(char::from(DIGITS[usize::from(byte & 15)]));
}

/// Decodes percent-encoding.
pub(crate) fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = bytes
            .get(at + 1..at + 3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match (bytes[at], code.and_then(|code| u8::from_str_radix(code, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Returns the `Authorization` header for `user:password`.
pub(crate) fn basic_auth(login: &str) -> String {
    let encoded = base64::engine::general_purpose::STANDARD.encode(login);
    format!("Basic {encoded}")
}

/// Splits an absolute address into scheme, host with port, and the rest.
pub(crate) fn split(address: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = address.split_once("://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    Some((scheme, &rest[..end], &rest[end..]))
}

/// Resolves the `Location` of a redirection from `base`.
pub(crate) fn resolve(base: &str, location: &str) -> Option<String> {
    let location = encode_part(location.trim().split('#').next()?.as_bytes());
    let (scheme, host, path) = split(base)?;
    let target = if location.contains("://") && !location.starts_with(['/', '?']) {
        location
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{scheme}://{host}{location}")
    } else {
        let path = path.split('?').next()?;
        let directory = match (location.starts_with('?'), path.rfind('/')) {
            (true, _) => path,
            (false, Some(end)) => &path[..=end],
            (false, None) => "/",
        };
        format!(
            "{scheme}://{host}{}",
            without_dots(&format!("{directory}{location}"))
        )
    };
    let (scheme, ..) = split(&target)?;
    matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https").then_some(target)
}

/// Removes the parts `.` and `..` of a path.
fn without_dots(path: &str) -> String {
    let (path, query) = match path.find('?') {
        Some(at) => path.split_at(at),
        None => (path, ""),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let end = if !parts.is_empty() && (path.ends_with("/.") || path.ends_with("/..")) {
        "/"
    } else {
        ""
    };
    format!("/{}{end}{query}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> (String, Option<(String, String)>) {
        of_url(&Url::parse(text.as_bytes(), &|_| None).expect(text), "http")
    }

    #[test]
    fn only_invalid_bytes_are_encoded() {
        for (url, expected) in [
            ("http://h", "http://h/"),
            ("http://h:80/a/b?c=d&e", "http://h:80/a/b?c=d&e"),
            ("http://h/a b%20c%zz", "http://h/a%20b%20c%25zz"),
            ("http://h/é\n\"", "http://h/%C3%A9%0A%22"),
            ("http://h/a#b", "http://h/a"),
            ("http://me@h/a", "http://h/a"),
        ] {
            assert_eq!(address(url).0, expected, "{url}");
        }
        assert_eq!(address("http://me:pw@h/").1, Some(("me".into(), "pw".into())));
        assert_eq!(decode("a%40b%"), "a@b%");
        assert_eq!(encode("a/b ~%".as_bytes(), true), "a/b%20~%25");
        assert_eq!(encode(b"a/b", false), "a%2Fb");
    }

    #[test]
    fn redirections_are_resolved() {
        let base = "https://h:1/a/b?q";
        for (location, expected) in [
            ("http://o/x y", Some("http://o/x%20y")),
            ("//o/x", Some("https://o/x")),
            ("/x#f", Some("https://h:1/x")),
            ("x", Some("https://h:1/a/x")),
            ("./../y/./z?../q", Some("https://h:1/y/z?../q")),
            ("../../..", Some("https://h:1/")),
            ("?r=http://u", Some("https://h:1/a/b?r=http://u")),
            ("ftp://o/x", None),
            ("file:///etc/passwd", None),
        ] {
            assert_eq!(resolve(base, location).as_deref(), expected, "{location}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(base in "\\PC{0,20}", location in "\\PC{0,20}", path in proptest::collection::vec(0u8.., 0..20)) {
            let _ = resolve(&base, &location);
            let _ = resolve("http://h", &location);
            let encoded = encode(&path, false);
            proptest::prop_assert!(encoded.is_ascii());
            proptest::prop_assert_eq!(decode(&encoded).into_bytes(), String::from_utf8_lossy(&path).into_owned().into_bytes());
        }
    }
}
