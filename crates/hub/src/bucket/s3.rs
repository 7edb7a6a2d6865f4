//! A bucket by the crate `object_store`, whose requests are sent by the hub's other HTTP client.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::{Body, to_bytes};
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpService,
};
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use tokio::runtime::Runtime;
use ureq::tls::TlsConfig;

use super::BucketConfig;
use crate::error::Error;
use crate::tls;

/// Size in bytes of the parts in which files are sent and fetched.
const PART: u64 = 16 << 20;
/// Timeout of a request.
const PATIENCE: Duration = Duration::from_secs(60);

/// A bucket of an S3 server.
#[derive(Debug)]
pub struct StoreBucket {
    store: AmazonS3,
    prefix: String,
    runtime: Runtime,
}

/// Sends the requests of `object_store`. Its thread waits meanwhile, because it has no other task.
#[derive(Clone, Debug)]
struct BlockingClient(ureq::Agent);

#[async_trait]
impl HttpService for BlockingClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let body = to_bytes(Body::new(body), usize::MAX).await;
        let body = body.map_err(|error| HttpError::new(HttpErrorKind::Request, error))?;
        let has_body = matches!(head.method.as_str(), "PUT" | "POST");
        let answer = if has_body {
            self.0.run(axum::http::Request::from_parts(head, &body[..]))
        } else {
            self.0.run(axum::http::Request::from_parts(head, ()))
        };
        let failed = |error: ureq::Error| {
            let kind = match &error {
                ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
                ureq::Error::Io(_) | ureq::Error::ConnectionFailed => HttpErrorKind::Connect,
                _ => HttpErrorKind::Unknown,
            };
            HttpError::new(kind, error)
        };
        let (head, mut body) = answer.map_err(failed)?.into_parts();
        let bytes = body.with_config().limit(2 * PART).read_to_vec().map_err(failed)?;
        Ok(HttpResponse::from_parts(head, bytes.into()))
    }
}

impl HttpConnector for BlockingClient {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

fn client(tls: TlsConfig) -> BlockingClient {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_global(Some(PATIENCE))
        .tls_config(tls)
        .build();
    BlockingClient(config.new_agent())
}

/// Returns a closure for `map_err` that adds the key of an object and the failed action.
fn failed<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    key: &str,
    action: &'static str,
) -> impl FnOnce(E) -> Error {
    move |source| Error::Bucket { key: key.to_owned(), action, source: source.into() }
}

impl StoreBucket {
    /// Prepares access to a bucket. No request is sent.
    ///
    /// # Errors
    /// If the configuration is wrong.
    pub fn open(config: &BucketConfig) -> Result<Self, Error> {
        let name = &config.name;
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(name)
            .with_region(&config.region)
            .with_allow_http(true)
            .with_http_connector(client(tls::trust(config.ca.as_deref(), "bucket: ca")?));
        if let Some(endpoint) = &config.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let store = builder.build().map_err(failed(name, "use the bucket"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(failed(name, "use the bucket"))?;
        Ok(Self { store, prefix: config.prefix.clone(), runtime })
    }

    fn path(&self, key: &str) -> Result<ObjectPath, Error> {
        let whole = format!("{}/{key}", self.prefix);
        ObjectPath::parse(whole.trim_matches('/')).map_err(failed(key, "name"))
    }

    /// Copies a file to the bucket. The object appears when it is whole.
    ///
    /// # Errors
    /// If the file cannot be read, or the server refuses.
    pub fn put(&self, key: &str, path: &Path) -> Result<(), Error> {
        let (object, refused) = (self.path(key)?, || failed(key, "store"));
        let mut file = File::open(path).map_err(Error::io(path, "open"))?;
        let size = file.metadata().map_err(Error::io(path, "read"))?.len();
        let mut next = || -> Result<PutPayload, Error> {
            let mut part = Vec::with_capacity(PART.min(size) as usize);
            let read = Read::take(&mut file, PART).read_to_end(&mut part);
            read.map_err(Error::io(path, "read"))?;
            Ok(part.into())
        };
        self.runtime.block_on(async {
            if size <= PART {
                return self.store.put(&object, next()?).await.map(drop).map_err(refused());
            }
            let mut upload = self.store.put_multipart(&object).await.map_err(refused())?;
            for _ in 0..size.div_ceil(PART) {
                upload.put_part(next()?).await.map_err(refused())?;
            }
            upload.complete().await.map(drop).map_err(refused())
        })
    }

    /// Copies an object to a new file.
    ///
    /// # Errors
    /// If the object is missing, or the file cannot be written.
    pub fn get(&self, key: &str, path: &Path) -> Result<(), Error> {
        let (object, refused) = (self.path(key)?, || failed(key, "fetch"));
        let mut file = File::create(path).map_err(Error::io(path, "create"))?;
        self.runtime.block_on(async {
            let size = self.store.head(&object).await.map_err(refused())?.size;
            for start in (0..size).step_by(PART as usize) {
                let range = start..size.min(start + PART);
                let bytes = self.store.get_range(&object, range).await.map_err(refused())?;
                file.write_all(&bytes).map_err(Error::io(path, "write"))?;
            }
            Ok(())
        })
    }

    /// Deletes an object, which may be missing.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn delete(&self, key: &str) -> Result<(), Error> {
        let object = self.path(key)?;
        match self.runtime.block_on(self.store.delete(&object)) {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            result => result.map_err(failed(key, "delete")),
        }
    }

    /// Lists the keys of all objects.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn list(&self) -> Result<Vec<String>, Error> {
        let prefix = self.path("")?;
        let objects = self.store.list(Some(&prefix)).try_collect::<Vec<_>>();
        let objects = self.runtime.block_on(objects).map_err(failed(&self.prefix, "list"))?;
        let skipped = if self.prefix.is_empty() { 0 } else { self.prefix.len() + 1 };
        let keys = objects.iter().filter_map(|object| object.location.as_ref().get(skipped..));
        Ok(keys.map(str::to_owned).collect())
    }
}
