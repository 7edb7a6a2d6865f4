//! What keeps an agent from starting, found before anything is changed: `--check` ends here, and
//! every start comes through here first.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use fleet::ipc::socket::Socket;
use fleet::ipc::{control as own_socket, socket::SocketPlace};
use fleet::untrusted::{MissingFolder, OwnFolder};

use crate::audit::Audit;
use crate::config::{Config, ConfigError};
use crate::control::{self, Secret};
use crate::counters::{self, gpu};
use crate::hub::Hub;
use crate::page::dcgm::{self, Field};
use crate::pods;

/// What was read from files on the way.
pub struct Checked {
    /// Who may call from elsewhere.
    pub secrets: Arc<Vec<Secret>>,
    /// Who may read the pages; everyone where empty.
    pub page_secrets: Arc<Vec<Secret>>,
    /// Fields of the page for DCGM's boards.
    pub fields: Arc<Vec<Field>>,
}

/// Checks everything that a configuration names.
///
/// # Errors
/// Returns the first problem that would keep the agent from starting.
pub fn everything(config: &Config) -> Result<Checked, ConfigError> {
    let secrets = Arc::new(control::secrets(config)?);
    let page_secrets = Arc::new(control::page_secrets(config)?);
    let fields = Arc::new(dcgm::fields(config.dcgm_fields.as_deref())?);
    if let Some(listen) = &config.listen {
        control::tls(listen)?;
    }
    if let Some(hub) = &config.hub {
        Hub::check(hub)?;
    }
    let mut folders = vec![config.state(), config.spool()];
    folders.extend(config.hub.is_some().then(|| config.state().join("hub")));
    folders.extend(config.periodic.is_some().then(|| config.state().join("periodic")));
    for path in folders {
        folder(&path)?;
    }
    for path in config.audit.iter().chain(config.json.iter().filter(|path| !is_stdout(path))) {
        Audit::check(path)?;
    }
    sockets(&config.place())?;
    let addresses = [config.metrics, config.dynolog, config.listen.as_ref().map(|l| l.address)];
    for address in addresses.into_iter().flatten() {
        listens(config, address)?;
    }
    Ok(Checked { secrets, page_secrets, fields })
}

/// Sources that do not answer now, each with what that means and what to do. The agent starts all
/// the same, and tries again.
pub fn silent_sources(config: &Config) -> Vec<String> {
    let driver = gpu::load(config.nvml.as_deref()).map(drop);
    let driver = driver.map_err(|problem| gpu::driver_note(&problem));
    let pods = config.pod_resources.as_ref().map(|socket| pods::ask(socket).map(drop));
    let page = config.dcgm_page.as_ref().map(|url| counters::dcgm::ask(url));
    [Some(driver), pods, page].into_iter().flatten().filter_map(Result::err).collect()
}

/// Whether rows go to stdout.
fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// A folder that is not there yet is made below one that was found safe.
fn folder(path: &Path) -> Result<(), ConfigError> {
    match OwnFolder::open(path, MissingFolder::Refuse) {
        Err(error) if !error.is_missing() => Err(error.into()),
        _ => Ok(()),
    }
}

fn sockets(place: &SocketPlace) -> Result<(), ConfigError> {
    Socket::check(place)?;
    if let SocketPlace::Folder(path) = place {
        // What another user put there, root removes.
        own_socket::check(path)?;
    }
    Ok(())
}

/// An address may be taken by the agent that this one is to replace.
fn listens(config: &Config, address: SocketAddr) -> Result<(), ConfigError> {
    match TcpListener::bind(address) {
        Err(error) if own_socket::connect(&config.place()).is_err() => {
            Err(ConfigError::start(format!("{address}: cannot listen"))(error))
        }
        _ => Ok(()),
    }
}
