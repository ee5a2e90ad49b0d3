//! The older text form: groups of four lines.
//!
//! ```text
//! # src 1 siteA
//! file:///data/f.a
//! # dst 1 siteB
//! file:///scratch/f.a
//! ```
//!
//! Lines of up to four characters are ignored. A URL directly after a complete pair is the next source, on
//! the site of the previous source.

use super::{Location, SpecError, Transfer, Work, site_label};
use crate::url::{Lookup, Url};

/// The role of the next URL.
enum Next {
    Source,
    Destination,
    Nothing,
}

pub(super) fn parse(input: &[u8], env: Lookup<'_>) -> Result<Vec<Work>, SpecError> {
    let mut work = Vec::new();
    let mut next = Next::Nothing;
    let mut source: Option<Location> = None;
    let (mut source_site, mut destination_site) = (String::new(), String::new());
    let mut last = 0;
    for (index, line) in input.split(|b| *b == b'\n').enumerate() {
        let line = line.trim_ascii();
        last = index + 1;
        let error = |message: &str| SpecError::Line {
            line: index + 1,
            message: message.to_owned(),
        };
        if line.len() <= 4 {
            continue;
        }
        if let Some(comment) = line.strip_prefix(b"#") {
            let mut words = comment
                .split(u8::is_ascii_whitespace)
                .filter(|word| !word.is_empty());
            let (kind, site) = (words.next(), words.nth(1));
            let site = || {
                let text = site.and_then(|site| std::str::from_utf8(site).ok());
                text.map(site_label)
                    .ok_or_else(|| error("'# src NUMBER SITE' or '# dst NUMBER SITE' is needed"))
            };
            match kind {
                Some(b"src") => {
                    source_site = site()?;
                    next = Next::Source;
                }
                Some(b"dst") => {
                    destination_site = site()?;
                    next = Next::Destination;
                }
                _ => {}
            }
            continue;
        }
        let url = Url::parse(line, env).map_err(|cause| error(&cause.to_string()))?;
        let at = |site: &str| Location {
            site: site.to_owned(),
            url,
            image: None,
        };
        match next {
            Next::Source => source = Some(at(&source_site)),
            Next::Destination => {
                let Some(source) = source.take() else {
                    return Err(error("a destination without a source before it"));
                };
                work.push(Work::Transfer(Transfer {
                    lfn: Vec::new(),
                    linkage: "unknown".to_owned(),
                    sources: vec![source],
                    destination: at(&destination_site),
                    verify_symlink_source: true,
                    generate_checksum: false,
                    optional: false,
                    verify_checksum: false,
                }));
                next = Next::Source;
            }
            Next::Nothing => return Err(error("a URL without '# src' or '# dst' before it")),
        }
    }
    match source {
        None => Ok(work),
        Some(_) => Err(SpecError::Line {
            line: last,
            message: "the last source has no destination".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(String, String, String, String)>, String> {
        let work = parse(text.as_bytes(), &|_| None).map_err(|error| error.to_string())?;
        Ok(work
            .into_iter()
            .map(|work| match work {
                Work::Transfer(t) => {
                    let from = &t.sources[0];
                    (
                        from.site.clone(),
                        from.url.shown(),
                        t.destination.site.clone(),
                        t.destination.url.shown(),
                    )
                }
                other => panic!("{other:?}"),
            })
            .collect())
    }

    #[test]
    fn pairs() {
        let text =
            "# src 1 a-b\nfile:///x/1\n\n# dst 1 c\r\nfile:///y/1\nfile:///x/2\n#  dst  2   c\n/y/two\n";
        let row = |a: &str, b: &str, c: &str, d: &str| (a.into(), b.into(), c.into(), d.into());
        assert_eq!(
            read(text),
            Ok(vec![
                row("a_b", "file:///x/1", "c", "file:///y/1"),
                row("a_b", "file:///x/2", "c", "file:///y/two"),
            ])
        );
    }

    #[test]
    fn errors_name_the_line() {
        for (text, message) in [
            (
                "# src 1 a\nfile:///x\n",
                "line 3: the last source has no destination",
            ),
            (
                "# dst 1 a\nfile:///x\n",
                "line 2: a destination without a source before it",
            ),
            (
                "# source\nfile:///x\n",
                "line 2: a URL without '# src' or '# dst' before it",
            ),
            (
                "# src 1\n",
                "line 1: '# src NUMBER SITE' or '# dst NUMBER SITE' is needed",
            ),
            (
                "# src 1 a\nfoo:bar\n",
                "line 2: 'foo:bar' is not a URL: a path or PROTOCOL://HOST/PATH is needed",
            ),
        ] {
            assert_eq!(read(text), Err(message.to_owned()), "{text}");
        }
    }
}
