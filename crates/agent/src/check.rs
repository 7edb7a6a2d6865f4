//! Checks everything that could keep the agent from starting, before it changes anything. The
//! checks run at every start. With `--check`, the agent exits after them.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use fleet::allocation::JobMapping;
use fleet::ipc::socket::Socket;
use fleet::ipc::{control as own_socket, socket::SocketPlace};
use fleet::untrusted::{MissingFolder, OwnFolder};

use crate::audit::Audit;
use crate::config::{Config, ConfigError};
use crate::control::{self, CallerSecret};
use crate::counters::{self, gpu};
use crate::hub::Hub;
use crate::page::dcgm::{self, Field};
use crate::pods;

/// The secrets of tokens and the list of page fields, as read from files during the checks.
pub struct Checked {
    /// Secrets of the tokens that callers from other hosts must send.
    pub secrets: Arc<Vec<CallerSecret>>,
    /// Secrets that allow reading the pages over plain HTTP. If the list is empty, everyone may
    /// read them.
    pub page_secrets: Arc<Vec<CallerSecret>>,
    /// Fields that the page `/metrics/dcgm` lists.
    pub fields: Arc<Vec<Field>>,
}

/// The problems of a configuration that the checks have found.
#[derive(Default)]
struct Problems(Vec<ConfigError>);

impl Problems {
    /// Unwraps the result of the check of the key `key`. A failed check is added to the problems
    /// and gives the default value.
    fn take<T: Default, E: Into<ConfigError>>(&mut self, key: &str, checked: Result<T, E>) -> T {
        checked.map_err(ConfigError::at_key(key)).unwrap_or_else(|problem| {
            self.add(problem);
            T::default()
        })
    }

    /// Adds a problem unless it is already listed, because nested folders fail for the same reason.
    fn add(&mut self, problem: ConfigError) {
        if self.0.iter().all(|other| other.to_string() != problem.to_string()) {
            self.0.push(problem);
        }
    }
}

/// Checks every file, folder, address and token that a configuration names.
///
/// # Errors
/// Returns every problem that would keep the agent from starting.
pub fn everything(config: &Config) -> Result<Checked, Vec<ConfigError>> {
    let mut problems = Problems(config.problems());
    let mut secrets = Vec::new();
    for token in &config.tokens {
        let key = format!("token {:?}: file", token.name);
        secrets.extend(problems.take(&key, control::secret(token).map(Some)));
    }
    if let Some((one, other)) = control::equal_secrets(&secrets) {
        problems.add(ConfigError::Value {
            what: format!("token {other:?}: file"),
            expected: "a secret of its own for each token".to_owned(),
            got: format!("the secret of token {one:?}"),
        });
    }
    let page_secrets = problems.take("metrics_token_file", control::page_secrets(config));
    let fields = problems.take("dcgm_fields", dcgm::fields(config.dcgm_fields.as_deref()));
    if let Some(listen) = &config.listen {
        problems.take("listen", control::tls(listen).map(drop));
    }
    if let Some(hub) = &config.hub {
        Hub::check(hub).into_iter().for_each(|problem| problems.add(problem));
    }
    let mut folders = vec![config.state(), config.spool()];
    folders.extend(config.hub.is_some().then(|| config.state().join("hub")));
    folders.extend(config.periodic.is_some().then(|| config.state().join("periodic")));
    for path in folders {
        problems.take("state_dir", folder(&path));
    }
    let rows = config.json.as_ref().filter(|path| !is_stdout(path));
    for (key, path) in [("audit", config.audit.as_ref()), ("json", rows)] {
        problems.take(key, path.map_or(Ok(()), |path| Audit::check(path)));
    }
    problems.take("socket_dir", sockets(&config.place()));
    let listen = config.listen.as_ref().map(|listen| listen.address);
    let addresses =
        [("metrics", config.metrics), ("dynolog", config.dynolog), ("listen: address", listen)];
    for (key, address) in addresses {
        problems.take(key, address.map_or(Ok(()), |address| listens(config, address)));
    }
    if !problems.0.is_empty() {
        return Err(problems.0);
    }
    let (secrets, page_secrets) = (Arc::new(secrets), Arc::new(page_secrets));
    Ok(Checked { secrets, page_secrets, fields: Arc::new(fields) })
}

/// Lists data sources that do not respond, each with the consequence and a remedy. The agent starts
/// without them and tries them again periodically.
pub fn silent_sources(config: &Config) -> Vec<String> {
    let library = config.nvml.as_deref();
    let driver = gpu::load(library).map(drop);
    let driver = driver.map_err(|problem| gpu::driver_note(&problem, library));
    let pods = config.pod_resources.as_ref().map(|socket| pods::ask(socket).map(drop));
    let page = config.dcgm_page.as_ref().map(|url| counters::dcgm::ask(url));
    let mapping = config.job_mapping.as_ref().map(|folder| JobMapping::read(folder).check());
    let fields = config.dcgm_fields.as_ref().map(|path| dcgm::check_known(path));
    let kubernetes = config.kubernetes.as_ref().map(|kubernetes| kubernetes.ask().map(drop));
    let answers = [Some(driver), pods, kubernetes, page, mapping, fields];
    answers.into_iter().flatten().filter_map(Result::err).collect()
}

/// Whether rows are written to stdout, which the path `-` selects.
fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Checks a folder of the agent. A missing folder passes if its parent is safe, because the agent
/// creates the folder at the start.
fn folder(path: &Path) -> Result<(), ConfigError> {
    match OwnFolder::open(path, MissingFolder::Refuse) {
        Err(error) if !error.is_missing() => Err(error.into()),
        _ => Ok(()),
    }
}

fn sockets(place: &SocketPlace) -> Result<(), ConfigError> {
    Socket::check(place)?;
    if let SocketPlace::Folder(path) = place {
        // If another user has created a socket there, only root can remove it, so the agent could
        // not bind.
        own_socket::check(path)?;
    }
    Ok(())
}

/// Checks that an address can be bound. If an agent already runs on this socket, a failure is
/// ignored, because that agent may hold the address until it is replaced.
fn listens(config: &Config, address: SocketAddr) -> Result<(), ConfigError> {
    match TcpListener::bind(address) {
        Err(error) if own_socket::connect(&config.place()).is_err() => {
            Err(ConfigError::start(format!("{address}: cannot listen"))(error))
        }
        _ => Ok(()),
    }
}
