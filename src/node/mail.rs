//! Messages of tasks that go to somebody by mail: `mailto:ADDRESS TEXT`, as in the TCS checkpoint library.
//!
//! `sendmail` of the host sends them, at most one a minute for the tasks of a process. Of those that come
//! sooner, the last one counts.

use std::io::{self, Write as _};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Beginning of a message that goes by mail.
const SCHEME: &str = "mailto:";

/// Time between two mails.
const INTERVAL: Duration = Duration::from_secs(60);

/// How long `sendmail` may take.
const SENDMAIL_TIMEOUT: Duration = Duration::from_secs(30);

/// How often it is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Where `sendmail` is, if it is not on `PATH`.
const PROGRAMS: [&str; 3] = ["sendmail", "/usr/sbin/sendmail", "/usr/lib/sendmail"];

/// Maximum characters of an address (RFC 5321).
const MAX_ADDRESS: usize = 254;

/// The mails of this process.
static POST: Mutex<Post> = Mutex::new(Post {
    sent: None,
    pending: None,
});

/// A mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Letter {
    address: String,
    subject: String,
    /// Who says it.
    body: String,
}

/// What is sent when.
#[derive(Debug)]
struct Post {
    /// When the last one was sent.
    sent: Option<Instant>,
    /// The next one. A thread sends it when its time has come.
    pending: Option<Letter>,
}

/// An address that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no mail address")]
pub(super) struct InvalidAddress(String);

/// Returns a message without its address, in one line without control characters, and the address.
pub(super) fn split(text: &str) -> Result<(String, Option<String>), InvalidAddress> {
    let plain = text.replace(char::is_control, " ");
    let mut words = plain.split_whitespace().peekable();
    let address = words
        .next_if(|word| word.starts_with(SCHEME))
        .map(|word| word.trim_start_matches(SCHEME).to_owned());
    if let Some(address) = address.as_ref().filter(|address| !is_address(address)) {
        return Err(InvalidAddress(address.chars().take(MAX_ADDRESS).collect()));
    }
    Ok((words.collect::<Vec<_>>().join(" "), address))
}

/// `user@host`. Addresses with quotes or comments do not count.
fn is_address(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~.".contains(c);
    let is_of_host = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    text.len() <= MAX_ADDRESS
        && text.split_once('@').is_some_and(|(user, host)| {
            let is_some = |part: &str| !part.is_empty() && !part.starts_with(['-', '.']);
            is_some(user) && is_some(host) && user.chars().all(is_plain) && host.chars().all(is_of_host)
        })
}

impl Letter {
    /// A mail about a task.
    pub(super) fn new(address: String, subject: String, task: &str, dag: &str) -> Self {
        let plain = |text: &str| text.replace(char::is_control, " ");
        let body = format!("Task {} of {}\n", plain(task), plain(dag));
        Self {
            address,
            subject,
            body,
        }
    }

    fn text(&self) -> String {
        let Self {
            address,
            subject,
            body,
        } = self;
        format!(
            "To: {address}\nSubject: {subject}\nMIME-Version: 1.0\n\
             Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\n\n{body}"
        )
    }

    fn send(&self) -> io::Result<()> {
        let start = |program: &str| {
            Command::new(program)
                .args(["-i", "-t"])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
        };
        let started = PROGRAMS.iter().map(|program| start(program));
        let is_there =
            |result: &io::Result<_>| !matches!(result, Err(error) if error.kind() == io::ErrorKind::NotFound);
        let missing = || io::Error::new(io::ErrorKind::NotFound, "there is no sendmail on this host");
        let mut child = started.into_iter().find(is_there).ok_or_else(missing)??;
        let written = child
            .stdin
            .take()
            .map_or(Ok(()), |mut stdin| stdin.write_all(self.text().as_bytes()));
        let begun = Instant::now();
        let status = loop {
            match child.try_wait()? {
                Some(status) => break status,
                None if begun.elapsed() >= SENDMAIL_TIMEOUT => {
                    child.kill()?;
                    break child.wait()?;
                }
                None => std::thread::sleep(POLL_INTERVAL),
            }
        };
        written?;
        match status.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!("sendmail has failed ({status})"))),
        }
    }
}

/// Sends a mail, or keeps it until the next one may be sent.
///
/// # Errors
/// It cannot be sent. One that is kept is sent later, and a failure is only logged.
pub(super) fn post(letter: Letter) -> io::Result<()> {
    let mut post = lock();
    let left = post
        .sent
        .map(|sent| INTERVAL.saturating_sub(sent.elapsed()))
        .filter(|left| !left.is_zero());
    let Some(left) = left.or_else(|| post.pending.as_ref().map(|_| Duration::ZERO)) else {
        post.sent = Some(Instant::now());
        drop(post);
        return letter.send();
    };
    if post.pending.replace(letter).is_none() {
        drop(post);
        let later = move || {
            std::thread::sleep(left);
            let mut post = lock();
            post.sent = Some(Instant::now());
            let pending = post.pending.take();
            drop(post);
            if let Some(Err(error)) = pending.map(|letter| letter.send()) {
                tracing::warn!("A message of a task cannot be sent: {}", pmc_dag::reason(&error));
            }
        };
        std::thread::Builder::new().name("mail".to_owned()).spawn(later)?;
    }
    Ok(())
}

fn lock() -> MutexGuard<'static, Post> {
    // What is inside is valid at every moment, even if a thread panicked.
    POST.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_before_the_text() {
        let read = |text| split(text).unwrap();
        assert_eq!(read(" step\t7\u{1b} of\n9"), ("step 7 of 9".to_owned(), None));
        let mail = ("step 7".to_owned(), Some("a.b+c@host.example".to_owned()));
        assert_eq!(read("mailto:a.b+c@host.example step 7"), mail);
        assert_eq!(read("step mailto:x"), ("step mailto:x".to_owned(), None));
        for text in [
            "mailto:",
            "mailto:a",
            "mailto:@b",
            "mailto:a@",
            "mailto:a@b@c",
            "mailto:-t@b x",
            "mailto:a,b@c",
        ] {
            assert!(split(text).is_err(), "{text}");
        }
        let long = format!("mailto:{}@b x", "a".repeat(300));
        assert_eq!(split(&long).unwrap_err().0.len(), MAX_ADDRESS);
    }

    #[test]
    fn a_mail_has_one_header_of_each_kind() {
        let (subject, address) = split("mailto:a@b x\r\nBcc: c@d").unwrap();
        let letter = Letter::new(address.unwrap(), subject, "t\nBcc: e@f", "/x.dag");
        let text = letter.text();
        let (headers, body) = text.split_once("\n\n").unwrap();
        assert!(
            headers.starts_with("To: a@b\nSubject: x Bcc: c@d\nMIME"),
            "{headers}"
        );
        assert!(!headers.lines().any(|line| line.starts_with("Bcc")), "{headers}");
        assert_eq!(body, "Task t Bcc: e@f of /x.dag\n");
    }
}
