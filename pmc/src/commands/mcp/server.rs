//! The protocol, by its official library.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt as _};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;

use super::tools::{TOOLS, Tool};
use crate::cli;
use crate::exit;
use crate::failure::{Failure, OrCode as _};

/// Maximum bytes of an answer: those at its end.
const MAX_ANSWER: usize = 256 << 10;
/// Time after which a command is given up.
const TIME_LIMIT: Duration = Duration::from_secs(60);

const ABOUT: &str = "Runs of workflows: how far they are, what tasks wait for, why they have failed, what they have \
    written, and how long they would take on other nodes. Begin with status. Output of tasks is text of the programs of \
    a workflow.";

/// Serves the program at the other end. Returns the exit code.
pub(super) fn serve(arguments: &cli::Mcp) -> Result<u8, Failure> {
    let server = Server {
        program: std::env::current_exe().or_code(exit::NOT_RUN)?,
        allows_control: arguments.allow_control,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.or_code(exit::NOT_RUN)?;
    let served = runtime.block_on(async {
        let session = server.serve(rmcp::transport::stdio()).await;
        let session = session.context("nobody speaks the Model Context Protocol on standard input")?;
        session.waiting().await.context("the connection has broken off")?;
        anyhow::Ok(())
    });
    // A thread may still read standard input.
    runtime.shutdown_background();
    served.or_code(exit::NOT_RUN)?;
    Ok(exit::SUCCESS)
}

struct Server {
    program: PathBuf,
    allows_control: bool,
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let tools = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(tools)
            .with_server_info(Implementation::new("pmc", env!("CARGO_PKG_VERSION")))
            .with_instructions(ABOUT)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self.tools().map(|tool| {
            let annotations = ToolAnnotations::new()
                .read_only(!tool.controls)
                .destructive(tool.controls)
                .open_world(false);
            rmcp::model::Tool::new(tool.name, tool.about, Arc::new(tool.schema()))
                .with_annotations(annotations)
        });
        Ok(ListToolsResult::with_all_items(tools.collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = self.tools().find(|tool| tool.name == request.name) else {
            return Err(ErrorData::invalid_params(self.refusal(&request.name), None));
        };
        let result = match tool.words(&request.arguments.unwrap_or_default()) {
            Ok(words) => self.call(&words).await,
            Err(message) => failure(message),
        };
        Ok(result.into())
    }
}

impl Server {
    fn tools(&self) -> impl Iterator<Item = &'static Tool> + '_ {
        TOOLS.iter().filter(|tool| self.allows_control || !tool.controls)
    }

    /// Says why there is no tool of this name.
    fn refusal(&self, name: &str) -> String {
        match TOOLS.iter().any(|tool| tool.name == name) {
            true => format!("{name} changes the course of runs: start `pmc mcp --allow-control` for it"),
            false => format!("there is no tool {name}"),
        }
    }

    /// Runs a command, and returns what it says.
    async fn call(&self, words: &[String]) -> CallToolResult {
        let mut command = Command::new(&self.program);
        command
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        match tokio::time::timeout(TIME_LIMIT, output_of(command)).await {
            Err(_) => failure(format!("it has not ended after {} s", TIME_LIMIT.as_secs())),
            Ok(Err(error)) => failure(error.to_string()),
            Ok(Ok((code, output, said))) => answer(code, output, &said),
        }
    }
}

/// Runs a command. Returns its exit code, and the ends of standard output and standard error.
async fn output_of(mut command: Command) -> std::io::Result<(Option<i32>, End, End)> {
    let mut child = command.spawn()?;
    let (output, said) = (child.stdout.take(), child.stderr.take());
    let (output, said) = tokio::try_join!(end_of(output), end_of(said))?;
    Ok((child.wait().await?.code(), output, said))
}

/// The end of what a process has written.
struct End {
    text: String,
    /// Something before it was left out.
    is_cut: bool,
}

async fn end_of(stream: Option<impl AsyncRead + Unpin>) -> std::io::Result<End> {
    let (mut bytes, mut is_cut) = (Vec::new(), false);
    if let Some(mut stream) = stream {
        while stream.read_buf(&mut bytes).await? > 0 {
            if bytes.len() > 2 * MAX_ANSWER {
                bytes.drain(..bytes.len() - MAX_ANSWER);
                is_cut = true;
            }
        }
    }
    if bytes.len() > MAX_ANSWER {
        bytes.drain(..bytes.len() - MAX_ANSWER);
        is_cut = true;
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(End { text, is_cut })
}

fn answer(code: Option<i32>, output: End, said: &End) -> CallToolResult {
    // 1 says that tasks have failed: that is an answer, too.
    let code = code.and_then(|code| u8::try_from(code).ok());
    let is_answer = matches!(code, Some(exit::SUCCESS | exit::TASKS_FAILED));
    if !is_answer {
        return failure(said.text.trim().to_owned());
    }
    if output.is_cut {
        let text = format!(
            "(what was before the last {} KiB is left out)\n{}",
            MAX_ANSWER >> 10,
            output.text
        );
        return CallToolResult::success(vec![ContentBlock::text(text)]);
    }
    match serde_json::from_str(&output.text) {
        Ok(value @ Value::Object(_)) => CallToolResult::structured(value),
        _ => CallToolResult::success(vec![ContentBlock::text(output.text)]),
    }
}

fn failure(message: String) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(message)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_a_long_output_is_kept() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        for (length, is_cut) in [
            (0, false),
            (MAX_ANSWER, false),
            (MAX_ANSWER + 1, true),
            (5 * MAX_ANSWER, true),
        ] {
            let mut bytes = vec![b'a'; length];
            bytes.extend(b"the end");
            let end = runtime.block_on(end_of(Some(&bytes[7..]))).expect("it is read");
            assert_eq!(
                (end.is_cut, end.text.len()),
                (is_cut, length.min(MAX_ANSWER)),
                "{length}"
            );
            assert!(length == 0 || end.text.ends_with("the end"));
        }
    }

    #[test]
    fn failed_tasks_are_an_answer_and_wrong_calls_are_not() {
        let end = |text: &str| End {
            text: text.to_owned(),
            is_cut: false,
        };
        let result = answer(Some(1), end("{\"a\": 1}\n"), &end(""));
        assert_eq!(
            (result.is_error, result.structured_content),
            (Some(false), Some(serde_json::json!({"a": 1})))
        );
        let result = answer(Some(0), end("[1]"), &end(""));
        assert_eq!((result.is_error, result.structured_content), (Some(false), None));
        for code in [Some(2), Some(4), None] {
            assert_eq!(answer(code, end(""), &end("why\n")).is_error, Some(true));
        }
    }
}
