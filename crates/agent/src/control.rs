//! The agent's endpoints: a Unix socket whose callers the kernel identifies, a TLS port whose
//! callers send tokens, and plain HTTP for scrapers. One thread serves all connections.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request, State as From};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::{Extension, Router};
use fleet::ipc::socket::SocketPlace;
use fleet::untrusted::{Privacy, read_trusted};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::TlsAcceptor;

use crate::config::{Config, ConfigError, Listen, Verb};
use crate::gate::{Admission, Peer};
use crate::uids::Uids;

mod caller;
pub mod dynolog;
pub mod route;

pub use caller::{Caller, CallerSecret, ServiceContext, equal_secrets, page_secrets, secret};

/// Timeout of a TLS handshake, and of receiving the head of a request.
const HEAD_PATIENCE: Duration = Duration::from_secs(3);
/// Longest lifetime of a connection of a client that sends commands.
const LIFE: Duration = Duration::from_secs(600);
/// Longest lifetime of a scraper's connection to the pages.
const PAGE_LIFE: Duration = Duration::from_secs(60);
/// Largest size in bytes of a request's head, and of the answers buffered for one connection.
const HEAD_MAX: usize = 32 << 10;
/// Largest size in bytes of a request's body.
const BODY_MAX: usize = 64 << 10;

/// Loads the certificate and key of the TLS port.
///
/// # Errors
/// If a file cannot be read or parsed, or the key does not belong to the certificate.
pub fn tls(listen: &Listen) -> Result<Arc<ServerConfig>, ConfigError> {
    let wrong = |path: &Path, problem: String| ConfigError::Tls { path: path.to_owned(), problem };
    let read = |path: &Path, privacy| read_trusted(path, privacy).map_err(ConfigError::file);
    let certificate = read(&listen.certificate, Privacy::Readable)?;
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(&certificate).collect();
    let chain = chain.map_err(|error| pem_error(&listen.certificate, "a certificate", error))?;
    if chain.is_empty() {
        let problem = "expected a certificate in PEM, got none".to_owned();
        return Err(wrong(&listen.certificate, problem));
    }
    let key = read(&listen.key, Privacy::Secret)?;
    let key = PrivateKeyDer::from_pem_slice(&key);
    let key = key.map_err(|error| pem_error(&listen.key, "a private key", error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| wrong(&listen.key, error.to_string()))?;
    let config = builder.with_no_client_auth().with_single_cert(chain, key);
    config.map(Arc::new).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            let certificate = listen.certificate.display();
            let problem =
                format!("expected the key of {certificate}, got the key of another certificate");
            wrong(&listen.key, problem)
        }
        rustls::Error::InvalidCertificate(problem) => {
            let problem = format!("expected an X.509 certificate, got another one: {problem}");
            wrong(&listen.certificate, problem)
        }
        error => wrong(&listen.key, error.to_string()),
    })
}

/// Describes the defect of a PEM file that should contain `expected`, such as a private key.
fn pem_error(path: &Path, expected: &str, error: pem::Error) -> ConfigError {
    let got = match error {
        pem::Error::Io(source) => return ConfigError::Read { path: path.to_owned(), source },
        pem::Error::NoItemsFound => "none",
        pem::Error::MissingSectionEnd { .. } => "a section without its END line",
        pem::Error::IllegalSectionStart { .. } => "a line of dashes that begins no section",
        pem::Error::Base64Decode(_) => "a section that is not base64",
        _ => "another text",
    };
    let problem = format!("expected {expected} in PEM, got {got}");
    ConfigError::Tls { path: path.to_owned(), problem }
}

/// The listening sockets of all endpoints. The sockets are bound before the agent reports that it
/// runs.
pub struct Listeners {
    unix: Option<UnixListener>,
    metrics: Option<TcpListener>,
    tls: Option<(TcpListener, TlsAcceptor)>,
    dynolog: Option<TcpListener>,
}

impl Listeners {
    /// Binds every configured endpoint and appends the bound addresses to `messages`.
    ///
    /// # Errors
    /// If an address is in use, or the certificate and the key do not belong together.
    pub async fn bind(config: &Config, messages: &mut Vec<String>) -> Result<Self, ConfigError> {
        let unix = Some(unix(&config.place())?);
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
            messages.push(format!("metrics at http://{}/metrics", at(&listener)));
            metrics = Some(listener);
        }
        let mut secured = None;
        if let Some(listen) = &config.listen {
            let acceptor = TlsAcceptor::from(tls(listen)?);
            let listener = tcp(listen.address).await?;
            messages.push(format!("traces at https://{}", at(&listener)));
            secured = Some((listener, acceptor));
        }
        let mut dynolog = None;
        if let Some(address) = config.dynolog {
            let listener = tcp(address).await?;
            messages.push(format!("dynolog's requests at {}", at(&listener)));
            dynolog = Some(listener);
        }
        Ok(Self { unix, metrics, tls: secured, dynolog })
    }

    /// Serves all endpoints until the runtime shuts down.
    pub async fn serve(self, context: ServiceContext) {
        let mut tasks = Vec::new();
        if let Some(listener) = self.unix {
            tasks.push(tokio::spawn(serve_unix(listener, context.clone())));
        }
        if let Some(listener) = self.metrics {
            tasks.push(tokio::spawn(serve_pages(listener, context.clone())));
        }
        if let Some(listener) = self.dynolog {
            let state = Arc::clone(&context.state);
            tasks.push(tokio::spawn(dynolog::serve(listener, state)));
        }
        if let Some((listener, acceptor)) = self.tls {
            tasks.push(tokio::spawn(serve_tls(listener, acceptor, context)));
        }
        for task in tasks {
            // A task that panics must not end the endpoints of the other tasks, so its error is
            // ignored.
            let _ = task.await;
        }
        std::future::pending::<()>().await;
    }
}

fn unix(place: &SocketPlace) -> Result<UnixListener, ConfigError> {
    let listener = fleet::ipc::control::bind(place)?;
    let ready = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
    ready.map_err(ConfigError::start("the agent's own socket"))
}

async fn serve_unix(listener: UnixListener, context: ServiceContext) {
    let router = route::commands(context.clone());
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(HEAD_PATIENCE / 100).await;
            continue;
        };
        let Ok(peer) = stream.peer_cred() else { continue };
        let uid = peer.uid();
        let Some(pass) = context.state.gates.commands.enter(Peer::User(uid)) else { continue };
        let verbs = vec![Verb::Status, Verb::Trace, Verb::Pause];
        let own = fleet::process::own_uid();
        // Only root and the agent's own user may pause counters, because a pause affects all users.
        let verbs = if uid == 0 || uid == own { verbs } else { verbs[..2].to_vec() };
        let uids = if uid == 0 { Uids::All } else { Uids::Only(vec![uid]) };
        let caller = Caller { name: format!("user {uid}"), verbs, uids };
        let router = router.clone().layer(Extension(caller));
        tokio::spawn(connection(stream, router, pass, LIFE));
        // Yield so that the accepted connection is read before the next one is accepted. The
        // connection may already hold a whole request.
        tokio::task::yield_now().await;
    }
}

async fn serve_pages(listener: TcpListener, context: ServiceContext) {
    let router = route::pages(context.clone());
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(HEAD_PATIENCE / 100).await;
            continue;
        };
        let Some(pass) = context.state.gates.pages.enter(Peer::at(from.ip())) else { continue };
        let router = router.clone().layer(Extension(from));
        tokio::spawn(connection(stream, router, pass, PAGE_LIFE));
        tokio::task::yield_now().await;
    }
}

async fn serve_tls(listener: TcpListener, acceptor: TlsAcceptor, context: ServiceContext) {
    let router = route::remote(context.clone());
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(HEAD_PATIENCE / 100).await;
            continue;
        };
        // The gate decides before the TLS handshake, because the handshake is the most expensive
        // work that an unknown caller can cause.
        let Some(pass) = context.state.gates.remote.enter(Peer::at(from.ip())) else { continue };
        let router = router.clone().layer(Extension(from));
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            // The handshake runs in the connection's own task, so a slow client does not delay
            // other connections.
            let shaken = tokio::time::timeout(HEAD_PATIENCE, acceptor.accept(stream));
            let shaken = tokio::select! {
                shaken = shaken => shaken,
                () = pass.ended() => return,
            };
            if let Ok(Ok(stream)) = shaken {
                connection(stream, router, pass, LIFE).await;
            }
        });
        tokio::task::yield_now().await;
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    pass: Admission,
    life: Duration,
) {
    let pass = Arc::new(pass);
    let router = router.layer(DefaultBodyLimit::max(BODY_MAX));
    let router = router.layer(middleware::from_fn_with_state(Arc::clone(&pass), answer));
    let service = TowerToHyperService::new(router);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_PATIENCE);
    builder.max_buf_size(HEAD_MAX);
    let served = builder.serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // An error of a connection affects only its caller, so it is neither logged nor returned.
        _ = tokio::time::timeout(life, served) => {}
        () = pass.ended() => {}
    }
}

/// Handles a request whose head has arrived. While it runs, the gate does not close the connection
/// to make room for another one.
async fn answer(From(pass): From<Arc<Admission>>, request: Request, next: Next) -> Response {
    let _busy = pass.busy();
    next.run(request).await
}
