//! A PostgreSQL server for the tests, from the programs of this machine, in a temporary directory.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, getuid};
use postgres::types::Type;
use postgres::{Client, Config, NoTls, SimpleQueryMessage};

use crate::support::QUERIES;

/// Password of the only account: a unique text, to find it in messages.
pub const PASSWORD: &str = "open-sesame";
const ACCOUNT: &str = "loader";

/// A server, which ends with the last test that uses it.
pub struct Server {
    home: tempfile::TempDir,
    port: u16,
    process: Child,
}

static RUNNING: Mutex<Weak<Server>> = Mutex::new(Weak::new());
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// Finds the directory of the server's programs. Distributions do not put all of them on `PATH`.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<_> = std::env::split_paths(&path).collect();
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    places.extend(versions.map(|version| version.path().join("bin")));
    places.push(PathBuf::from("/usr/pgsql/bin"));
    places
        .into_iter()
        .find(|dir| dir.join("initdb").exists() && dir.join("postgres").exists())
}

/// Returns a command that runs without root, as the server demands.
fn unprivileged(program: &Path) -> Command {
    let mut command = if getuid().is_root() {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"])
            .arg(program);
        command
    } else {
        Command::new(program)
    };
    command
        .stdin(Stdio::null())
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .current_dir("/");
    command
}

/// Changes the owner of a file to the account of the server.
fn own(path: &Path) {
    if getuid().is_root() {
        let user = User::from_name("postgres")
            .unwrap()
            .expect("the package makes this account");
        chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
    }
}

impl Server {
    /// Returns the shared server; the first call starts it. `None` without its programs, unless
    /// `PMC_TEST_POSTGRESQL` demands them.
    pub fn shared() -> Option<Arc<Self>> {
        let Some(programs) = programs() else {
            assert!(
                std::env::var_os("PMC_TEST_POSTGRESQL").is_none(),
                "no initdb and postgres on this machine"
            );
            eprintln!("SKIPPED: no programs of a PostgreSQL server on this machine (Debian: postgresql)");
            return None;
        };
        let mut running = RUNNING.lock().unwrap();
        if let Some(server) = running.upgrade() {
            return Some(server);
        }
        let server = Arc::new(Self::start(&programs, None));
        *running = Arc::downgrade(&server);
        Some(server)
    }

    /// Starts a server with encryption and these rules for accounts. `None` as above.
    pub fn encrypted(certificate: &Path, key: &Path, rules: &str) -> Option<Self> {
        // Checks for the programs.
        Self::shared()?;
        Some(Self::start(&programs()?, Some((certificate, key, rules))))
    }

    fn start(programs: &Path, tls: Option<(&Path, &Path, &str)>) -> Self {
        let home = tempfile::Builder::new().prefix("pg").tempdir_in("/tmp").unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let place = home.path().join("server");
        fs::create_dir(&place).unwrap();
        let secret = place.join("secret");
        fs::write(&secret, PASSWORD).unwrap();
        for path in [&place, &secret] {
            own(path);
        }
        let data = place.join("data");
        let made = unprivileged(&programs.join("initdb"))
            .args([
                "--no-sync",
                "--locale=C",
                "--encoding=UTF8",
                "--auth=scram-sha-256",
                "--username",
                ACCOUNT,
            ])
            .arg("--pwfile")
            .arg(&secret)
            .arg("-D")
            .arg(&data)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        if let Some((certificate, key, rules)) = tls {
            let (hosts, settings) = (data.join("pg_hba.conf"), data.join("postgresql.auto.conf"));
            let files = [data.join("server.crt"), data.join("server.key"), hosts, settings];
            fs::copy(certificate, &files[0]).unwrap();
            fs::copy(key, &files[1]).unwrap();
            fs::set_permissions(&files[1], fs::Permissions::from_mode(0o600)).unwrap();
            fs::write(&files[2], rules).unwrap();
            fs::write(&files[3], "ssl = on\n").unwrap();
            files.iter().for_each(|path| own(path));
        }
        let process = unprivileged(&programs.join("postgres"))
            .arg("-D")
            .arg(&data)
            .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-F"])
            .arg("-k")
            .arg(&place)
            .args(["-c", "full_page_writes=off", "-c", "shared_buffers=32MB"])
            .stdout(Stdio::null())
            .stderr(fs::File::create(home.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut server = Self { home, port, process };
        let start = Instant::now();
        while let Err(error) = server.try_client("postgres") {
            let log = || fs::read_to_string(server.home.path().join("log")).unwrap_or_default();
            assert!(start.elapsed() < Duration::from_secs(60), "{error}: {}", log());
            assert_eq!(server.process.try_wait().unwrap(), None, "{}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }

    fn try_client(&self, database: &str) -> Result<Client, postgres::Error> {
        Config::new()
            .host_path(self.home.path().join("server"))
            .port(self.port)
            .user(ACCOUNT)
            .password(PASSWORD)
            .dbname(database)
            .connect(NoTls)
    }

    /// Returns the URL for a host, account, database and options.
    pub fn url_at(&self, host: &str, account: &str, database: &str, options: &str) -> String {
        let port = self.port;
        format!("postgresql://{account}:{PASSWORD}@{host}:{port}/{database}?{options}")
    }

    pub fn client(&self, database: &str) -> Client {
        self.try_client(database).unwrap()
    }

    /// Creates an empty database.
    pub fn database(&self) -> String {
        let name = format!("d{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        self.client("postgres")
            .batch_execute(&format!("CREATE DATABASE {name}"))
            .unwrap();
        name
    }

    pub fn url(&self, database: &str) -> String {
        format!(
            "postgresql://{ACCOUNT}:{PASSWORD}@127.0.0.1:{}/{database}",
            self.port
        )
    }

    /// Returns the URL with the socket of the server.
    pub fn socket_url(&self, database: &str) -> String {
        let place = self.home.path().join("server");
        format!(
            "postgresql+psycopg2://{ACCOUNT}:{PASSWORD}@/{database}?host={}&port={}",
            place.display(),
            self.port
        )
    }

    /// Like [`crate::support::dump`].
    pub fn dump(&self, database: &str) -> String {
        let mut client = self.client(database);
        let mut out = String::new();
        for sql in QUERIES {
            let kinds: Vec<_> = client
                .prepare(sql)
                .unwrap()
                .columns()
                .iter()
                .map(|column| column.type_().clone())
                .collect();
            for message in client.simple_query(sql).unwrap() {
                let SimpleQueryMessage::Row(row) = message else {
                    continue;
                };
                for (column, kind) in kinds.iter().enumerate() {
                    match row.get(column) {
                        None => out.push('-'),
                        Some(text) if *kind == Type::NUMERIC => {
                            _ = write!(out, "{}", text.parse::<f64>().unwrap())
                        }
                        Some(text) => out.push_str(text),
                    }
                    out.push('|');
                }
                out.push('\n');
            }
            out.push('\n');
        }
        out
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.process.id()) {
            // Ends its child processes, too.
            let _ = kill(Pid::from_raw(pid), Signal::SIGQUIT);
        }
        let _ = self.process.wait();
    }
}
