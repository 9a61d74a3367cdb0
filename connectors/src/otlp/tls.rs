//! Encryption of the address at which requests come in.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use turnflow_engine::component::config;

use parking_lot::Mutex;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use turnflow_engine::connector::ConnectorError;
use turnflow_engine::spec::FilePath;

use crate::remote::lasting;

/// The protocol that gRPC is spoken in, as a client names it during the handshake.
pub(super) const SECOND: &[u8] = b"h2";

/// The files of a certificate.
#[config]
#[derive(PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, with those that it was issued by, in PEM.
    pub cert: FilePath,
    /// Its private key, in PEM.
    pub key: FilePath,
}

/// When the two files were last changed.
type Changed = [Option<SystemTime>; 2];

/// Encrypts connections. A certificate that is replaced is used for the connections after that.
pub(super) struct Tls {
    files: TlsFiles,
    current: Mutex<(Changed, TlsAcceptor)>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// They cannot be read, or are no certificate and its key.
    pub fn new(files: TlsFiles) -> Result<Self, ConnectorError> {
        // Looked at first: what is replaced meanwhile is read again.
        let changed = files.changed();
        let acceptor = files.acceptor().map_err(lasting)?;
        Ok(Self { files, current: Mutex::new((changed, acceptor)) })
    }

    /// What makes the handshake of the next connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock();
        let changed = self.files.changed();
        if current.0 != changed {
            match self.files.acceptor() {
                Ok(acceptor) => *current = (changed, acceptor),
                // Perhaps only one of the two is replaced yet.
                Err(reason) => tracing::warn!(reason, "the earlier certificate stays in use"),
            }
        }
        current.1.clone()
    }
}

impl TlsFiles {
    fn changed(&self) -> Changed {
        [&self.cert, &self.key].map(|file| std::fs::metadata(&file.path).and_then(|file| file.modified()).ok())
    }

    fn acceptor(&self) -> Result<TlsAcceptor, String> {
        let unusable = |file: &FilePath, reason: String| format!("cannot use `{}`: {reason}", file.written);
        let read = |path: &Path| CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let certificates = read(&self.cert.path).map_err(|error| unusable(&self.cert, error.to_string()))?;
        let key = PrivateKeyDer::from_pem_file(&self.key.path);
        let key = key.map_err(|error| unusable(&self.key, error.to_string()))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let mut config = builder
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, key))
            .map_err(|error| unusable(&self.cert, error.to_string()))?;
        config.alpn_protocols = vec![SECOND.to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
