//! Serves a member of the run without a network: for the fuzzer.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::command::{self, Commands, Gang};
use crate::member::framed;

/// Bytes of an answer that nobody has read yet, at most.
const PIPE_SIZE: usize = 1 << 20;

/// Serves one who wants to run a command of a gang, says these bytes, and then nothing more. Returns how the
/// connection ended, and the answer.
///
/// # Errors
/// The system has no reactor.
pub fn serve_bytes(
    said: &[u8],
    gang: Gang,
    commands: &dyn Commands,
) -> io::Result<(io::Result<()>, Vec<u8>)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    let (caller, server) = tokio::io::duplex(PIPE_SIZE);
    let (mut from_server, mut to_server) = tokio::io::split(caller);
    let served = async {
        let framed = framed(server);
        command::serve(framed, gang, commands).await
    };
    let talk = async {
        // The server may have gone before the end.
        let _ = to_server.write_all(said).await;
        let _ = to_server.shutdown().await;
        let mut answer = Vec::new();
        let _ = from_server.read_to_end(&mut answer).await;
        answer
    };
    Ok(runtime.block_on(futures_util::future::join(served, talk)))
}
