//! A blocking connection: it waits for each call of the asynchronous library.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use futures_core::Stream as _;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Config, Error, Row, Statement, ToStatement};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Maximum time for a server to close a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Parameters of a statement.
pub(super) type Parameters<'p> = &'p [&'p (dyn ToSql + Sync)];

type Driver = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// A connection to a server.
pub(super) struct Client {
    runtime: Runtime,
    client: tokio_postgres::Client,
    /// Exchanges messages with the server; `None` after its end.
    driver: Option<Driver>,
}

/// Why there is no connection.
pub(super) enum NoClient {
    /// The server has not answered in time.
    Timeout,
    /// The server refused, or was not reached.
    Failed(Error),
    /// The runtime cannot start.
    System(io::Error),
}

impl Client {
    /// Connects and logs in within `limit`.
    pub fn connect(config: &Config, tls: MakeRustlsConnect, limit: Duration) -> Result<Self, NoClient> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(NoClient::System)?;
        let connected = runtime.block_on(async {
            let connecting = tokio::time::timeout(limit, config.connect(tls));
            connecting
                .await
                .map_err(|_| NoClient::Timeout)?
                .map_err(NoClient::Failed)
        });
        let (client, connection) = connected?;
        Ok(Self {
            runtime,
            client,
            driver: Some(Box::pin(connection)),
        })
    }

    pub fn batch_execute(&mut self, sql: &str) -> Result<(), Error> {
        wait(&self.runtime, &mut self.driver, self.client.batch_execute(sql))
    }

    pub fn prepare(&mut self, sql: &str) -> Result<Statement, Error> {
        wait(&self.runtime, &mut self.driver, self.client.prepare(sql))
    }

    pub fn execute<S>(&mut self, statement: &S, parameters: Parameters<'_>) -> Result<u64, Error>
    where
        S: ToStatement + ?Sized,
    {
        let work = self.client.execute(statement, parameters);
        wait(&self.runtime, &mut self.driver, work)
    }

    pub fn query<S>(&mut self, statement: &S, parameters: Parameters<'_>) -> Result<Vec<Row>, Error>
    where
        S: ToStatement + ?Sized,
    {
        let work = self.client.query(statement, parameters);
        wait(&self.runtime, &mut self.driver, work)
    }

    pub fn query_one(&mut self, sql: &str, parameters: Parameters<'_>) -> Result<Row, Error> {
        let work = self.client.query_one(sql, parameters);
        wait(&self.runtime, &mut self.driver, work)
    }

    pub fn query_opt(&mut self, sql: &str, parameters: Parameters<'_>) -> Result<Option<Row>, Error> {
        let work = self.client.query_opt(sql, parameters);
        wait(&self.runtime, &mut self.driver, work)
    }

    /// Calls `take` for each row, so that not all rows are in memory.
    pub fn each(
        &mut self,
        sql: &str,
        parameters: Parameters<'_>,
        mut take: impl FnMut(&Row),
    ) -> Result<(), Error> {
        let work = self.client.query_raw(sql, parameters.iter().copied());
        let mut rows = pin!(wait(&self.runtime, &mut self.driver, work)?);
        loop {
            let next = poll_fn(|cx| rows.as_mut().poll_next(cx).map(Option::transpose));
            match wait(&self.runtime, &mut self.driver, next)? {
                Some(row) => take(&row),
                None => return Ok(()),
            }
        }
    }

    /// Closes the connection.
    pub fn close(self) -> Result<(), Error> {
        let Self {
            runtime,
            client,
            driver,
        } = self;
        drop(client);
        match driver {
            None => Ok(()),
            Some(driver) => runtime
                .block_on(async { tokio::time::timeout(CLOSE_TIMEOUT, driver).await })
                .unwrap_or(Ok(())),
        }
    }
}

/// Waits for an answer and drives the connection meanwhile. An error that ends the connection is returned.
fn wait<T>(
    runtime: &Runtime,
    driver: &mut Option<Driver>,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let mut work = pin!(work);
    runtime.block_on(poll_fn(|cx| {
        if let Some(Poll::Ready(ended)) = driver.as_mut().map(|driver| driver.as_mut().poll(cx)) {
            *driver = None;
            if let Err(error) = ended {
                return Poll::Ready(Err(error));
            }
        }
        work.as_mut().poll(cx)
    }))
}
