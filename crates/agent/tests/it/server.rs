//! A small HTTPS server for tests, built from axum and rustls in a thread of its own. One closure
//! answers all requests.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Maps a request's path, head in lower case, and body to an answer. With `None` the server answers
/// that it is busy.
type Answer = dyn Fn(&str, &str, &[u8]) -> Option<Vec<u8>> + Send + Sync;

/// Starts the server, which runs until the test process ends. Returns its address.
pub fn serve(
    certificate: &Path,
    key: &Path,
    answer: impl Fn(&str, &str, &[u8]) -> Option<Vec<u8>> + Send + Sync + 'static,
) -> SocketAddr {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(certificate).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let answer: Arc<Answer> = Arc::new(answer);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || runtime.block_on(accept(listener, acceptor, answer)));
    address
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, answer: Arc<Answer>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (acceptor, answer) = (acceptor.clone(), Arc::clone(&answer));
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let router = Router::new().fallback(move |request| reply(request, answer));
            let service = TowerToHyperService::new(router);
            let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // Errors at the end of a connection concern only the client, which reports them.
            let _ = served.await;
        });
    }
}

async fn reply(request: Request, answer: Arc<Answer>) -> Response {
    let path = request.uri().path().to_owned();
    let head = format!("{:?}", request.headers()).replace("\": \"", ": ").to_lowercase();
    let bytes = to_bytes(request.into_body(), 16 << 20).await.unwrap();
    let answered = tokio::task::spawn_blocking(move || answer(&path, &head, &bytes)).await;
    match answered.unwrap() {
        Some(bytes) => Body::from(bytes).into_response(),
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}
