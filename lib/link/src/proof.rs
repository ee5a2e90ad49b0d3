//! The first bytes of a connection: both sides show cheaply that they know the key of the run.
//!
//! The server sends a random number with a code of it, the client answers with another code. A code is an
//! HMAC with the key of the run: who sees it learns nothing of the key, and cannot answer the next number.
//! A server drops a stranger after these bytes, without the cost of TLS. TLS follows in any case, and it
//! alone decides who is let in.

use std::io;

use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::key::RunKey;

/// Bytes of the random number.
const NUMBER: usize = 16;

/// Bytes of a code.
const CODE: usize = 32;

/// What the codes are of: neither side can use that of the other one.
const SERVER: &[u8] = b"pegasus-mpi-cluster server 1";
const CLIENT: &[u8] = b"pegasus-mpi-cluster client 1";

/// The other side does not know the key.
#[derive(Debug, thiserror::Error)]
#[error("it does not know the key of the run")]
pub(crate) struct UnknownKey;

/// Makes and checks the codes of a run.
#[derive(Clone)]
pub(crate) struct Proof(hmac::Key);

impl Proof {
    pub(crate) fn new(key: &RunKey) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()))
    }

    fn code(&self, of: &[u8], number: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(of);
        context.update(number);
        context.sign()
    }

    /// Checks a code, in a time that says nothing about it.
    fn check(&self, of: &[u8], number: &[u8], code: &[u8]) -> io::Result<()> {
        let checked = hmac::verify(&self.0, &[of, number].concat(), code);
        checked.map_err(|_| io::Error::new(io::ErrorKind::PermissionDenied, UnknownKey))
    }

    /// The server's side, before TLS.
    ///
    /// # Errors
    /// The client does not know the key, or goes away.
    pub(crate) async fn serve(&self, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
        let mut number = [0; NUMBER];
        SystemRandom::new()
            .fill(&mut number)
            .map_err(|_| io::Error::other("the system has no random numbers"))?;
        let code = self.code(SERVER, &number);
        stream.write_all(&[&number, code.as_ref()].concat()).await?;
        let mut answer = [0; CODE];
        stream.read_exact(&mut answer).await?;
        self.check(CLIENT, &number, &answer)
    }

    /// The client's side, before TLS.
    ///
    /// # Errors
    /// The server does not know the key: see [`is_unknown_key`].
    pub(crate) async fn show(&self, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
        let mut first = [0; NUMBER + CODE];
        stream.read_exact(&mut first).await?;
        let (number, code) = first.split_at(NUMBER);
        self.check(SERVER, number, code)?;
        stream.write_all(self.code(CLIENT, number).as_ref()).await?;
        stream.flush().await
    }
}

/// Returns whether a connection failed because the other side does not know the key.
pub(crate) fn is_unknown_key(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<UnknownKey>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(server: &RunKey, client: &RunKey) -> (io::Result<()>, io::Result<()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let (mut near, mut far) = tokio::io::duplex(1024);
        let (server, client) = (Proof::new(server), Proof::new(client));
        runtime.block_on(async {
            let client = async move { client.show(&mut far).await };
            tokio::join!(server.serve(&mut near), client)
        })
    }

    #[test]
    fn sides_with_one_key_know_each_other_and_others_do_not() {
        let [key, other] = [(); 2].map(|()| RunKey::generate().unwrap());
        assert!(matches!(run(&key, &key), (Ok(()), Ok(()))));
        let (server, client) = run(&key, &other);
        assert!(server.is_err());
        assert!(is_unknown_key(&client.unwrap_err()));
    }

    #[test]
    fn a_code_that_was_seen_is_no_answer_to_the_next_number() {
        let proof = Proof::new(&RunKey::generate().unwrap());
        let (seen, next) = ([1; NUMBER], [2; NUMBER]);
        let code = proof.code(CLIENT, &seen);
        assert!(proof.check(CLIENT, &seen, code.as_ref()).is_ok());
        assert!(proof.check(CLIENT, &next, code.as_ref()).is_err());
        // The own code of a server, sent back to it.
        let own = proof.code(SERVER, &next);
        assert!(proof.check(CLIENT, &next, own.as_ref()).is_err());
    }
}
