//! Which certificates a client of an agent or a hub trusts. Whoever may read the file, and what a
//! missing one means, is decided by callers.

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// Returns the TLS configuration of a client that trusts only the certificates of a text in PEM, or
/// `None` if the text has none.
pub fn trust_only(pem: &[u8]) -> Option<TlsConfig> {
    let items = parse_pem(pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<Certificate<'static>> = items.collect();
    let roots = RootCerts::new_with_certs(&certificates);
    (!certificates.is_empty()).then(|| TlsConfig::builder().root_certs(roots).build())
}
