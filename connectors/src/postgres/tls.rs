//! Encryption of connections.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;
use turnflow_engine::connector::ConnectorError;

use crate::remote::passing;

/// How the certificate of a server is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verified {
    /// Any is accepted: the server may as well refuse to encrypt.
    No,
    /// It must be valid for the server's name, by the system's certificates.
    System,
    /// The same, by the certificates in this PEM file.
    File(PathBuf),
}

/// Takes what the driver does not know from a URL: `sslrootcert`, and the names that PostgreSQL's own tools have for a
/// connection whose certificate is checked.
pub(super) fn verified(url: &str) -> Result<(String, Verified), String> {
    let Some((address, query)) = url.split_once('?') else { return Ok((url.to_owned(), Verified::No)) };
    let (mut rest, mut verified, mut roots) = (Vec::new(), Verified::No, None);
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("sslmode", "require" | "verify-ca" | "verify-full")) => {
                verified = Verified::System;
                rest.push("sslmode=require");
            }
            Some(("sslrootcert", path)) => {
                let path = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
                if !Path::new(&*path).is_absolute() {
                    return Err(format!("`sslrootcert={path}` in `url` must be an absolute path"));
                }
                roots = Some(path.into_owned());
            }
            _ => rest.push(pair),
        }
    }
    let verified = match (verified, roots) {
        (Verified::No, Some(_)) => return Err("`sslrootcert` in `url` needs `sslmode=verify-full`".to_owned()),
        (_, Some(roots)) => Verified::File(roots.into()),
        (verified, None) => verified,
    };
    Ok((if rest.is_empty() { address.to_owned() } else { format!("{address}?{}", rest.join("&")) }, verified))
}

/// Encrypts connections.
pub(super) fn connector(verified: &Verified) -> Result<MakeRustlsConnect, ConnectorError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().map_err(passing)?;
    let config = match verified {
        Verified::No => {
            let any = Arc::new(Unverified(provider));
            builder.dangerous().with_custom_certificate_verifier(any).with_no_client_auth()
        }
        Verified::System => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                let hint = "name a file in `url`, as in `&sslrootcert=/etc/ca.pem`";
                return Err(passing(format!("the system has no certificates to check that of the server; {hint}")));
            }
            builder.with_root_certificates(roots).with_no_client_auth()
        }
        Verified::File(path) => builder.with_root_certificates(roots_of(path).map_err(passing)?).with_no_client_auth(),
    };
    Ok(MakeRustlsConnect::new(config))
}

/// The certificates of a file. It is read for each connection, so it can be replaced.
fn roots_of(path: &Path) -> Result<RootCertStore, String> {
    let failed = |error: &dyn std::fmt::Display| format!("`sslrootcert={}`: {error}", path.display());
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))?;
    let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(|error| failed(&error))?;
    let mut roots = RootCertStore::empty();
    // As of those of the system, one that cannot be read does not spoil the others.
    roots.add_parsable_certificates(certificates);
    if roots.is_empty() { Err(failed(&"the file has no certificate in PEM")) } else { Ok(roots) }
}

/// Accepts any certificate.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
