//! Creates TLS certificates for servers that run inside a test.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skip::has_program;

/// The files of a certificate for `localhost` and 127.0.0.1, and of its private key.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Creates a self-signed certificate in a folder. If `openssl` is missing, it prints that `what` is
/// skipped and returns `None`.
pub fn create_certificate(folder: &Path, what: &str) -> Option<CertificateFiles> {
    if !has_program("openssl", what) {
        return None;
    }
    let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
                 -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 \
                 -addext basicConstraints=critical,CA:FALSE";
    let mut openssl = Command::new("openssl");
    openssl.args(words.split_whitespace()).arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    let output = openssl.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(CertificateFiles { certificate, key })
}
