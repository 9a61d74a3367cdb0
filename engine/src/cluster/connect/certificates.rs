//! Certificates from files, by which processes know each other.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::{ClientConfig, WebPkiServerVerifier, danger::ServerCertVerifier as _};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{CertificateError, Error, InconsistentKeys, RootCertStore};

use super::ConfigError;
use crate::wording::count;

/// Files in PEM.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The certificate of this process, and after it those between it and the authority, if there are any. It is valid for
    /// the host that the process has in the list of addresses.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The certificates of the authorities that sign those of the processes.
    pub authorities: PathBuf,
}

impl CertificateFiles {
    /// How processes with these files make handshakes. `own` is the host of this process.
    ///
    /// # Errors
    ///
    /// A file cannot be read or used, or the others would refuse the certificate.
    pub(super) fn configs(
        &self,
        provider: &Arc<CryptoProvider>,
        own: &ServerName<'_>,
    ) -> Result<(ClientConfig, ServerConfig), ConfigError> {
        let mut roots = RootCertStore::empty();
        for authority in certificates_in(&self.authorities)? {
            let added = roots.add(authority);
            added.map_err(|error| unusable(&self.authorities, self.reason(&error)))?;
        }
        let roots = Arc::new(roots);
        let chain = certificates_in(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?).map_err(|error| match error {
            pem::Error::NoItemsFound => {
                unusable(&self.key, "it has no private key in PEM form; one with a password cannot be used")
            }
            error => unusable(&self.key, error),
        })?;
        let key = provider.key_provider.load_private_key(key);
        let key = key
            .map_err(|_| unusable(&self.key, "no key of this kind can be used: make one for ECDSA, Ed25519 or RSA"))?;
        let key = CertifiedKey::new(chain, key);
        match key.keys_match() {
            Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(Error::InconsistentKeys(_)) => {
                let reason = format!("it is not the key of the certificate in `{}`", self.certificate.display());
                return Err(unusable(&self.key, reason));
            }
            Err(error) => return Err(unusable(&self.certificate, self.reason(&error))),
        }
        // What any process says of it, all would say.
        let of_own = |error: &Error| unusable(&self.certificate, self.reason(error));
        let servers = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
        let servers = servers.map_err(|error| unusable(&self.authorities, error))?;
        let clients = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build();
        let clients = clients.map_err(|error| unusable(&self.authorities, error))?;
        let (shown, between) = key.cert.split_first().ok_or_else(|| unusable(&self.certificate, NO_CERTIFICATE))?;
        servers.verify_server_cert(shown, between, own, &[], UnixTime::now()).map_err(|error| of_own(&error))?;
        clients.verify_client_cert(shown, between, UnixTime::now()).map_err(|error| of_own(&error))?;
        let shown = Arc::new(SingleCertAndKey::from(key));
        let client = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[&TLS13]);
        let client = client.map_err(|error| of_own(&error))?;
        let client = client.with_webpki_verifier(servers).with_client_cert_resolver(shown.clone());
        let server = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[&TLS13]);
        let server = server.map_err(|error| of_own(&error))?;
        Ok((client, server.with_client_cert_verifier(clients).with_cert_resolver(shown)))
    }

    /// Why a certificate is refused, in plain words.
    pub(super) fn reason(&self, error: &Error) -> String {
        let Error::InvalidCertificate(error) = error else { return error.to_string() };
        match error {
            CertificateError::Expired => "it has expired".to_owned(),
            CertificateError::ExpiredContext { time, not_after } => {
                let ago = time.as_secs().saturating_sub(not_after.as_secs());
                let ago = if ago < DAY { count(ago, "second") } else { count(ago / DAY, "day") };
                format!("it expired {ago} ago")
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "it is not valid yet".to_owned()
            }
            // The second is said if an authority has the same name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                format!("no authority in `{}` has signed it", self.authorities.display())
            }
            CertificateError::BadEncoding => "it cannot be read as a certificate".to_owned(),
            error => error.to_string(),
        }
    }
}

/// Seconds of a day.
const DAY: u64 = 24 * 60 * 60;

const NO_CERTIFICATE: &str = "it has no certificate in PEM form";

fn unusable(file: &Path, reason: impl Display) -> ConfigError {
    ConfigError::Certificate { file: file.display().to_string(), reason: reason.to_string() }
}

fn read(file: &Path) -> Result<Vec<u8>, ConfigError> {
    std::fs::read(file).map_err(|error| unusable(file, error))
}

fn certificates_in(file: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let text = read(file)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| unusable(file, error))?;
    match all.is_empty() {
        true => Err(unusable(file, NO_CERTIFICATE)),
        false => Ok(all),
    }
}
