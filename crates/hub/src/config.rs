//! The hub's configuration, a TOML file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use fleet::untrusted::{Privacy, read_trusted};
use serde::Deserialize;

use crate::error::Error;
use crate::pattern::matches_pattern;
use crate::weights::GpuModels;

/// The keys of the configuration file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubFile {
    /// Folder of the stored rows.
    pub store: PathBuf,
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// Certificate chain in PEM, leaf first.
    pub certificate: Option<PathBuf>,
    /// Private key in PEM.
    pub key: Option<PathBuf>,
    /// File with the hashes of tokens.
    pub tokens: PathBuf,
    /// Shortest time between two commits in milliseconds. Batches that arrive meanwhile share one.
    #[serde(default = "default_commit_ms")]
    pub commit_ms: u64,
    /// Largest total size in MiB of the batches that wait for a commit. Further ones get 429.
    #[serde(default = "default_waiting_mib")]
    pub waiting_mib: u32,
    #[serde(default = "default_connections")]
    pub connections: u32,
    #[serde(default, rename = "pool")]
    pub pools: Pools,
    /// Weights of GPU models that are not built in, and prices.
    #[serde(default, rename = "model")]
    pub models: GpuModels,
}

/// Pools of hosts by the names of their hosts. The first matching pool counts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Pools(Vec<HostPool>);

/// One pool of hosts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostPool {
    pub name: String,
    /// Names of hosts. A `*` at the end stands for any letters.
    pub hosts: Vec<String>,
}

fn default_listen() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9470))
}

fn default_commit_ms() -> u64 {
    200
}

fn default_waiting_mib() -> u32 {
    64
}

fn default_connections() -> u32 {
    16_384
}

impl HubFile {
    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// If the file cannot be read, has an unknown key or a wrong value, or if the hub would receive
    /// tokens from other hosts without TLS.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = read_trusted(path, Privacy::Readable)
            .map_err(|source| Error::File { key: "--config", source })?;
        let text = String::from_utf8_lossy(&bytes);
        let file: Self = toml::from_str(&text)
            .map_err(|source| Error::Toml { path: path.to_owned(), source: Box::new(source) })?;
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str, expected, got: String| {
            Err(Error::Value { what: what.to_owned(), expected, got })
        };
        if self.certificate.is_some() != self.key.is_some() {
            let got = "one of them".to_owned();
            return wrong("certificate", "`certificate` and `key`, or none of them", got);
        }
        if self.certificate.is_none() && !self.listen.ip().is_loopback() {
            let expected = "a loopback address, unless `certificate` and `key` are set";
            return wrong("listen", expected, self.listen.to_string());
        }
        // The largest message has 8 MiB.
        if !(8..=1024).contains(&self.waiting_mib) {
            return wrong("waiting_mib", "8 to 1024", self.waiting_mib.to_string());
        }
        if self.commit_ms > 10_000 {
            // Agents wait 20 s for an answer.
            return wrong("commit_ms", "at most 10000", self.commit_ms.to_string());
        }
        if self.connections == 0 {
            return wrong("connections", "at least 1", "0".to_owned());
        }
        Ok(())
    }
}

impl Pools {
    /// Returns the name of the pool of a host, or `default` if no pool has it.
    pub fn pool_of(&self, host: &str) -> &str {
        let is_match = |pattern: &String| matches_pattern(pattern, host);
        let pool = self.0.iter().find(|pool| pool.hosts.iter().any(is_match));
        pool.map_or("default", |pool| &pool.name)
    }
}

#[cfg(test)]
mod tests {
    use super::HubFile;

    fn check(text: &str) -> Result<HubFile, String> {
        let base = "store = '/s'\ntokens = '/t'\n";
        let file: HubFile = toml::from_str(&format!("{base}{text}")).map_err(|e| e.to_string())?;
        file.check().map_err(|error| error.to_string())?;
        Ok(file)
    }

    #[test]
    fn other_hosts_are_served_over_tls_only() {
        assert!(check("").is_ok());
        let error = check("listen = '0.0.0.0:1'").unwrap_err();
        assert!(error.starts_with("listen: expected a loopback address"), "{error}");
        assert!(check("listen = '0.0.0.0:1'\ncertificate = '/c'\nkey = '/k'").is_ok());
        assert!(check("certificate = '/c'").unwrap_err().contains("one of them"));
        assert!(check("prot = 1").unwrap_err().contains("unknown field `prot`"));
    }

    #[test]
    fn a_host_belongs_to_the_first_pool_that_matches() {
        let text =
            "[[pool]]\nname = 'a'\nhosts = ['gpu-1', 'a*']\n[[pool]]\nname = 'b'\nhosts = ['*']";
        let pools = check(text).unwrap().pools;
        assert_eq!(["gpu-1", "gpu-12", "a7"].map(|host| pools.pool_of(host)), ["a", "b", "a"]);
        assert_eq!(check("").unwrap().pools.pool_of("x"), "default");
    }
}
