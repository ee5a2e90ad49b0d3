//! What stands before and after a line, as the PMIx library writes it.

use std::io::Write as _;

use pmc_pmix::Wants;

use crate::commands::attach::format::{readable, xml};

/// What a tool wants of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputFormat {
    tag: bool,
    rank: bool,
    timestamp: bool,
    xml: bool,
}

impl OutputFormat {
    /// What a pull asks for.
    pub fn new(wants: Wants) -> Self {
        Self {
            tag: wants.has(Wants::TAG),
            rank: wants.has(Wants::RANK),
            timestamp: wants.has(Wants::TIMESTAMP),
            xml: wants.has(Wants::XML),
        }
    }

    /// Returns whether output is passed on as it comes.
    pub fn is_plain(self) -> bool {
        self == Self::default()
    }

    /// Adds a line to `text`. `time` is as `ctime` writes it.
    pub fn add(self, text: &mut Vec<u8>, source: Source<'_>, (line, is_part): (&[u8], bool), time: &str) {
        let Source {
            namespace,
            rank,
            stream,
        } = source;
        // Writing to memory does not fail.
        let _ = if self.xml {
            let namespace = if self.tag {
                format!(" nspace=\"{namespace}\"")
            } else {
                String::new()
            };
            let time = if self.timestamp {
                format!(" timestamp=\"{time}\"")
            } else {
                String::new()
            };
            let end = if is_part { "" } else { "&#010;" };
            let line = readable(line);
            let line = xml(&line);
            writeln!(
                text,
                "<{stream}{namespace} rank=\"{rank}\"{time}>{line}{end}</{stream}>"
            )
        } else {
            let time = if self.timestamp {
                format!("[{time}]")
            } else {
                String::new()
            };
            let begun = match (self.tag, self.rank) {
                (true, _) => write!(text, "{time}[{namespace},{rank}]<{stream}>: "),
                (false, true) => write!(text, "{time}[{rank}]<{stream}>: "),
                (false, false) => write!(text, "{time}<{stream}>: "),
            };
            text.extend_from_slice(line);
            text.push(b'\n');
            begun
        };
    }
}

/// Where a line comes from.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Name of the run.
    pub namespace: &'a str,
    /// Number of the attempt.
    pub rank: u32,
    /// `stdout` or `stderr`.
    pub stream: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_the_library_writes_them() {
        let source = Source {
            namespace: "run",
            rank: 7,
            stream: "stdout",
        };
        let time = "Mon Nov 23 12:10:35 2026";
        let (tag, rank, timestamp, xml) = (
            OutputFormat {
                tag: true,
                ..OutputFormat::default()
            },
            OutputFormat {
                rank: true,
                ..OutputFormat::default()
            },
            OutputFormat {
                timestamp: true,
                ..OutputFormat::default()
            },
            OutputFormat {
                xml: true,
                ..OutputFormat::default()
            },
        );
        for (format, line, is_part, expected) in [
            (tag, &b"a\xff"[..], false, &b"[run,7]<stdout>: a\xff\n"[..]),
            (rank, b"a", false, b"[7]<stdout>: a\n"),
            (timestamp, b"a", true, b"[Mon Nov 23 12:10:35 2026]<stdout>: a\n"),
            (
                OutputFormat {
                    timestamp: true,
                    ..tag
                },
                b"a",
                false,
                b"[Mon Nov 23 12:10:35 2026][run,7]<stdout>: a\n",
            ),
            (
                xml,
                b"<a>&\x01\xff",
                false,
                b"<stdout rank=\"7\">&lt;a&gt;&amp;\\u0001\\u00ff&#010;</stdout>\n",
            ),
            (
                OutputFormat {
                    tag: true,
                    timestamp: true,
                    ..xml
                },
                b"a",
                true,
                b"<stdout nspace=\"run\" rank=\"7\" timestamp=\"Mon Nov 23 12:10:35 2026\">a</stdout>\n",
            ),
        ] {
            let mut text = Vec::new();
            format.add(&mut text, source, (line, is_part), time);
            assert_eq!(
                String::from_utf8_lossy(&text),
                String::from_utf8_lossy(expected),
                "{format:?}"
            );
        }
    }
}
