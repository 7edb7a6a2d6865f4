//! The agent's endpoints: a Unix socket with the peer's user from the kernel, a TLS port with
//! tokens, and plain HTTP for scrapers. One thread serves all connections.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::DefaultBodyLimit;
use axum::{Extension, Router};
use fleet::ipc::socket::SocketPlace;
use fleet::wire;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::config::{CallerToken, Config, ConfigError, Listen, Verb};
use crate::net::Net;
use crate::secret::read_secret;
use crate::state::AgentState;
use crate::traces::{Traces, Uids};

pub mod dynolog;
pub mod route;

/// Connections at once, of all doors together.
const CONNECTIONS_MAX: usize = 256;
/// A handshake, and the head of a request, take no longer.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// A connection lives no longer, whatever it does.
const LIFE: Duration = Duration::from_secs(600);
/// Bytes of a request's body.
const BODY_MAX: usize = 64 << 10;

/// Who calls.
#[derive(Clone, Debug)]
pub struct Caller {
    /// In audit lines.
    pub name: String,
    /// What may be asked.
    pub verbs: Vec<Verb>,
    /// Whose processes.
    pub uids: Uids,
}

/// A token as it is held.
#[derive(Clone)]
pub struct Secret {
    token: CallerToken,
    secret: Vec<u8>,
    nets: Vec<Net>,
}

/// What connections need.
#[derive(Clone)]
pub struct Doors {
    /// The agent.
    pub state: Arc<AgentState>,
    /// Its orders.
    pub traces: Arc<Traces>,
    /// Fields of the page for DCGM's boards.
    pub fields: Arc<Vec<crate::page::dcgm::Field>>,
    /// Who may call from elsewhere.
    pub secrets: Arc<Vec<Secret>>,
}

/// Reads the secrets of a configuration.
///
/// # Errors
/// A file cannot be read, is open to others, or holds too short a secret.
pub fn secrets(config: &Config) -> Result<Vec<Secret>, ConfigError> {
    config.tokens.iter().map(secret).collect()
}

fn secret(token: &CallerToken) -> Result<Secret, ConfigError> {
    let secret = read_secret(&token.file)?;
    let nets = token.hosts.iter().filter_map(|host| Net::parse(host)).collect();
    Ok(Secret { token: token.clone(), secret, nets })
}

/// Who calls with a token, if anyone may.
pub fn authorize(secrets: &[Secret], header: Option<&str>, from: IpAddr) -> Option<Caller> {
    let given = header?.strip_prefix("Bearer ")?.as_bytes();
    // Every secret is compared to its end, whichever fits.
    let mut found = None;
    for secret in secrets {
        let is_from = secret.nets.is_empty() || secret.nets.iter().any(|net| net.has(from));
        if is_equal(&secret.secret, given) && is_from {
            found = Some(secret);
        }
    }
    let token = &found?.token;
    let uids = if token.users.is_empty() { Uids::All } else { Uids::Only(token.users.clone()) };
    Some(Caller { name: format!("{}@{from}", token.name), verbs: token.verbs.clone(), uids })
}

/// Takes as long for any two of a length.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && std::hint::black_box(differences) == 0
}

/// Where the agent's own socket is: beside that of PyTorch.
pub fn own_socket(place: &SocketPlace) -> PathBuf {
    match place {
        SocketPlace::Folder(folder) => folder.join(wire::NAME),
        SocketPlace::Abstract => PathBuf::from(format!("@{}", wire::NAME)),
    }
}

/// Loads certificate and key.
///
/// # Errors
/// A file cannot be read, holds none, or the two do not belong together.
pub fn tls(listen: &Listen) -> Result<Arc<ServerConfig>, ConfigError> {
    let wrong = |path: &Path, problem: String| ConfigError::Tls { path: path.to_owned(), problem };
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_file_iter(&listen.certificate).and_then(Iterator::collect);
    let chain = chain.map_err(|error| wrong(&listen.certificate, error.to_string()))?;
    if chain.is_empty() {
        let problem = "expected a certificate in PEM, got none".to_owned();
        return Err(wrong(&listen.certificate, problem));
    }
    let key = PrivateKeyDer::from_pem_file(&listen.key);
    let key = key.map_err(|error| wrong(&listen.key, error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| wrong(&listen.key, error.to_string()))?;
    let config = builder.with_no_client_auth().with_single_cert(chain, key);
    config.map(Arc::new).map_err(|error| wrong(&listen.key, error.to_string()))
}

/// The listeners, bound before the agent reports that it runs.
pub struct Listeners {
    unix: Option<UnixListener>,
    metrics: Option<TcpListener>,
    tls: Option<(TcpListener, TlsAcceptor)>,
    dynolog: Option<TcpListener>,
}

impl Listeners {
    /// Binds every configured listener; reports the addresses on `told`.
    ///
    /// # Errors
    /// An address is taken, or certificate and key do not fit.
    pub async fn bind(config: &Config, told: &mut Vec<String>) -> Result<Self, ConfigError> {
        let unix = unix(&config.place())?;
        let tcp = |address: SocketAddr| async move {
            let bound = TcpListener::bind(address).await;
            bound.map_err(ConfigError::start(format!("{address}: cannot listen")))
        };
        let at = |listener: &TcpListener| {
            listener.local_addr().map_or_else(|_| String::new(), |at| at.to_string())
        };
        let mut metrics = None;
        if let Some(address) = config.metrics {
            let listener = tcp(address).await?;
            told.push(format!("metrics at http://{}/metrics", at(&listener)));
            metrics = Some(listener);
        }
        let mut secured = None;
        if let Some(listen) = &config.listen {
            let acceptor = TlsAcceptor::from(tls(listen)?);
            let listener = tcp(listen.address).await?;
            told.push(format!("traces at https://{}", at(&listener)));
            secured = Some((listener, acceptor));
        }
        let mut dynolog = None;
        if let Some(address) = config.dynolog {
            let listener = tcp(address).await?;
            told.push(format!("dynolog's requests at {}", at(&listener)));
            dynolog = Some(listener);
        }
        Ok(Self { unix, metrics, tls: secured, dynolog })
    }

    /// Serves until the runtime ends.
    pub async fn serve(self, doors: Doors) {
        let limit = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut tasks = Vec::new();
        if let Some(listener) = self.unix {
            tasks.push(tokio::spawn(serve_unix(listener, doors.clone(), Arc::clone(&limit))));
        }
        if let Some(listener) = self.metrics {
            tasks.push(tokio::spawn(serve_pages(listener, doors.clone(), Arc::clone(&limit))));
        }
        if let Some(listener) = self.dynolog {
            let state = Arc::clone(&doors.state);
            tasks.push(tokio::spawn(dynolog::serve(listener, state, Arc::clone(&limit))));
        }
        if let Some((listener, acceptor)) = self.tls {
            tasks.push(tokio::spawn(serve_tls(listener, acceptor, doors, limit)));
        }
        for task in tasks {
            // A task that panicked leaves the others at work.
            let _ = task.await;
        }
        std::future::pending::<()>().await;
    }
}

fn unix(place: &SocketPlace) -> Result<Option<UnixListener>, ConfigError> {
    let SocketPlace::Folder(folder) = place else {
        let name = format!("@{}", wire::NAME);
        let address = {
            use std::os::linux::net::SocketAddrExt;
            std::os::unix::net::SocketAddr::from_abstract_name(wire::NAME)
        };
        let bound = address.and_then(|address| {
            let listener = std::os::unix::net::UnixListener::bind_addr(&address)?;
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        });
        return bound.map(Some).map_err(ConfigError::start(format!("{name}: cannot listen")));
    };
    let path = folder.join(wire::NAME);
    if std::os::unix::net::UnixStream::connect(&path).is_err() {
        // Nobody answers: an agent that died left it.
        let _ = fs::remove_file(&path);
    }
    let what = format!("{}: cannot listen", path.display());
    let listener = UnixListener::bind(&path).map_err(ConfigError::start(what.clone()))?;
    let open = fs::Permissions::from_mode(0o666);
    fs::set_permissions(&path, open).map_err(ConfigError::start(what))?;
    Ok(Some(listener))
}

async fn serve_unix(listener: UnixListener, doors: Doors, limit: Arc<Semaphore>) {
    let router = route::commands(doors.clone());
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(HEAD_PATIENCE / 100).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&limit).try_acquire_owned() else { continue };
        let Ok(peer) = stream.peer_cred() else { continue };
        let uid = peer.uid();
        let verbs = vec![Verb::Status, Verb::Trace, Verb::Pause];
        let own = fleet::process::own_uid();
        // Counters belong to whoever runs the agent.
        let verbs = if uid == 0 || uid == own { verbs } else { verbs[..2].to_vec() };
        let uids = if uid == 0 { Uids::All } else { Uids::Only(vec![uid]) };
        let caller = Caller { name: format!("user {uid}"), verbs, uids };
        let router = router.clone().layer(Extension(caller));
        tokio::spawn(async move {
            connection(stream, router).await;
            drop(permit);
        });
    }
}

async fn serve_pages(listener: TcpListener, doors: Doors, limit: Arc<Semaphore>) {
    let router = route::pages(doors);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(HEAD_PATIENCE / 100).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&limit).try_acquire_owned() else { continue };
        let router = router.clone();
        tokio::spawn(async move {
            connection(stream, router).await;
            drop(permit);
        });
    }
}

async fn serve_tls(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    doors: Doors,
    limit: Arc<Semaphore>,
) {
    let router = route::remote(doors);
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(HEAD_PATIENCE / 100).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&limit).try_acquire_owned() else { continue };
        let router = router.clone().layer(Extension(from));
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            // A slow handshake holds its own task alone.
            let shaken = tokio::time::timeout(HEAD_PATIENCE, acceptor.accept(stream)).await;
            if let Ok(Ok(stream)) = shaken {
                connection(stream, router).await;
            }
            drop(permit);
        });
    }
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    let service = TowerToHyperService::new(router.layer(DefaultBodyLimit::max(BODY_MAX)));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_PATIENCE);
    let served = builder.serve_connection(TokioIo::new(stream), service);
    // How a connection ends is the caller's affair.
    let _ = tokio::time::timeout(LIFE, served).await;
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::{Secret, authorize};
    use crate::config::{CallerToken, Verb};
    use crate::net::Net;
    use crate::traces::Uids;

    fn secret(secret: &str, users: &[u32], nets: &[&str]) -> Secret {
        let token = CallerToken {
            name: secret[..1].to_owned(),
            file: "f".into(),
            verbs: vec![Verb::Status],
            users: users.to_vec(),
            hosts: Vec::new(),
        };
        let nets = nets.iter().map(|net| Net::parse(net).unwrap()).collect();
        Secret { token, secret: secret.as_bytes().to_vec(), nets }
    }

    #[test]
    fn a_token_opens_for_its_hosts_and_users_alone() {
        let secrets = [
            secret("aaaaaaaaaaaaaaaa", &[], &[]),
            secret("bbbbbbbbbbbbbbbb", &[7], &["10.0.0.0/8"]),
        ];
        let from: IpAddr = "10.2.3.4".parse().unwrap();
        let call = |header: Option<&str>, from: IpAddr| authorize(&secrets, header, from);
        assert!(call(None, from).is_none() && call(Some("Bearer "), from).is_none());
        assert!(call(Some("aaaaaaaaaaaaaaaa"), from).is_none());
        assert!(call(Some("Bearer aaaaaaaaaaaaaaa"), from).is_none());
        assert_eq!(call(Some("Bearer aaaaaaaaaaaaaaaa"), from).unwrap().uids, Uids::All);
        let other = call(Some("Bearer bbbbbbbbbbbbbbbb"), from).unwrap();
        assert_eq!((other.name.as_str(), other.uids), ("b@10.2.3.4", Uids::Only(vec![7])));
        assert!(call(Some("Bearer bbbbbbbbbbbbbbbb"), "11.0.0.1".parse().unwrap()).is_none());
        assert!(
            call(Some("Bearer bbbbbbbbbbbbbbbb"), "::ffff:10.0.0.1".parse().unwrap()).is_some()
        );
    }
}
