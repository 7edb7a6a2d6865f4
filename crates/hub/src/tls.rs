//! Reads the certificate and the key of the hub, and the certificates that it trusts.

use std::path::Path;
use std::sync::Arc;

use fleet::untrusted::{Privacy, read_trusted};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use ureq::tls::TlsConfig;

use crate::error::Error;

/// Loads a certificate chain and its private key.
///
/// # Errors
/// If a file cannot be read or parsed, if other users may read the key, or if the key does not
/// belong to the certificate.
pub fn load(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, Error> {
    let read = |path: &Path, name, privacy| {
        read_trusted(path, privacy).map_err(|source| Error::File { key: name, source })
    };
    let wrong =
        |path: &Path, expected, got: String| Error::Pem { path: path.to_owned(), expected, got };
    let bytes = read(certificate, "certificate", Privacy::Readable)?;
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(&bytes).collect();
    let chain = chain.map_err(|error| wrong(certificate, "a certificate", error.to_string()))?;
    if chain.is_empty() {
        return Err(wrong(certificate, "a certificate", "none".to_owned()));
    }
    let bytes = read(key, "key", Privacy::Secret)?;
    let private = PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|error| wrong(key, "a private key", error.to_string()))?;
    let failed = |source| {
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        Error::Tls { certificate, key, source }
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(failed)?;
    let config = builder.with_no_client_auth().with_single_cert(chain, private);
    config.map(Arc::new).map_err(failed)
}

/// Returns the TLS configuration of a client that trusts the CA certificates in a file, or the
/// usual ones if there is no file.
///
/// # Errors
/// If the file cannot be read or has no certificate.
pub fn trust(ca: Option<&Path>, key: &'static str) -> Result<TlsConfig, Error> {
    let Some(path) = ca else { return Ok(TlsConfig::default()) };
    let bytes =
        read_trusted(path, Privacy::Readable).map_err(|source| Error::File { key, source })?;
    fleet::trust::trust_only(&bytes).ok_or_else(|| {
        let (path, expected) = (path.to_owned(), "a certificate");
        Error::Pem { path, expected, got: "none".to_owned() }
    })
}
