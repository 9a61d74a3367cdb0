//! Opens an object store from its URL and settings.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreScheme, RetryConfig};
use reqwest::Url;
use turnflow_engine::connector::ConnectorError;

use super::http::Connector;
use crate::remote::{lasting, passing};
use crate::secret::Secret;

/// A kind of store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    S3,
    Gcs,
    Azure,
}

/// Where a corpus is.
pub(super) struct Place {
    kind: Kind,
    url: Url,
    prefix: Key,
}

impl Place {
    pub(super) fn of(url: &str) -> Result<Self, String> {
        let parsed = Url::parse(url).map_err(|error| format!("`{url}` is not a URL: {error}"))?;
        let (scheme, prefix) =
            ObjectStoreScheme::parse(&parsed).map_err(|_| format!("`{url}` is not the URL of an object store"))?;
        let kind = match scheme {
            ObjectStoreScheme::AmazonS3 => Kind::S3,
            ObjectStoreScheme::GoogleCloudStorage => Kind::Gcs,
            ObjectStoreScheme::MicrosoftAzure => Kind::Azure,
            _ => return Err(format!("`{url}` is not in S3, Google Cloud Storage or Azure Blob Storage")),
        };
        if !parsed.username().is_empty() || parsed.password().is_some() || parsed.query().is_some() {
            return Err("`url` has a user, a password or a query: use `secrets`".to_owned());
        }
        if parsed.host_str().is_none_or(str::is_empty) {
            return Err(format!("`{url}` names no bucket"));
        }
        Ok(Self { kind, url: parsed, prefix })
    }

    /// What is wrong with a setting.
    pub(super) fn problem(&self, name: &str, is_secret: bool) -> Option<String> {
        let is_known = match self.kind {
            Kind::S3 => AmazonS3ConfigKey::from_str(name).is_ok(),
            Kind::Gcs => GoogleConfigKey::from_str(name).is_ok(),
            Kind::Azure => AzureConfigKey::from_str(name).is_ok(),
        };
        if !is_known {
            return Some(format!("this kind of store has no setting `{name}`"));
        }
        let must_hide = ["secret", "token", "password", "key", "sas"];
        let is_public = ["_id", "_file", "_path", "bucket_key", "bucket_key_enabled", "token_url", "token_endpoint"];
        let lower = name.to_ascii_lowercase();
        let hidden =
            must_hide.iter().any(|part| lower.contains(part)) && !is_public.iter().any(|end| lower.ends_with(end));
        let hint = "belongs in `secrets`, so that the file has no secret";
        (hidden && !is_secret).then(|| format!("`{name}` {hint}"))
    }
}

/// Opens the store. Secrets are read now.
pub(crate) fn open(
    url: &str,
    options: &BTreeMap<String, String>,
    secrets: &BTreeMap<String, Secret>,
) -> Result<(Arc<dyn ObjectStore>, Key), ConnectorError> {
    let place = Place::of(url).map_err(lasting)?;
    let mut settings: Vec<(String, String)> =
        options.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    for (name, secret) in secrets {
        settings.push((name.clone(), secret.read().map_err(|error| passing(error.to_string()))?));
    }
    let address = place.url.to_string();
    // Failures are retried by the source, which can be stopped meanwhile.
    let retry = RetryConfig { max_retries: 2, ..RetryConfig::default() };
    let unknown = |name: &str| lasting(format!("the store has no setting `{name}`"));
    let store: Arc<dyn ObjectStore> = match place.kind {
        Kind::S3 => {
            let mut builder = AmazonS3Builder::from_env().with_url(address);
            for (name, value) in &settings {
                builder = builder.with_config(name.parse().map_err(|_| unknown(name))?, value);
            }
            Arc::new(builder.with_retry(retry).with_http_connector(Connector).build().map_err(failed)?)
        }
        Kind::Gcs => {
            let mut builder = GoogleCloudStorageBuilder::from_env().with_url(address);
            for (name, value) in &settings {
                builder = builder.with_config(name.parse().map_err(|_| unknown(name))?, value);
            }
            Arc::new(builder.with_retry(retry).with_http_connector(Connector).build().map_err(failed)?)
        }
        Kind::Azure => {
            let mut builder = MicrosoftAzureBuilder::from_env().with_url(address);
            for (name, value) in &settings {
                builder = builder.with_config(name.parse().map_err(|_| unknown(name))?, value);
            }
            Arc::new(builder.with_retry(retry).with_http_connector(Connector).build().map_err(failed)?)
        }
    };
    Ok((store, place.prefix))
}

/// An error of the store, which may pass: also wrong credentials may be replaced.
pub(super) fn failed(error: object_store::Error) -> ConnectorError {
    passing(shown(&error))
}

/// An error with its causes.
pub(crate) fn shown(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
