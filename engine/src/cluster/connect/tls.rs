//! How this process makes handshakes: with the key of the secret, or with certificates.

use std::net::Ipv4Addr;
use std::sync::Arc;

use rustls::client::{ClientConfig, Resumption, verify_server_name};
use rustls::pki_types::ServerName;
use rustls::server::{NoServerSessionStorage, ParsedCertificate, ServerConfig};
use rustls::{AlertDescription, CertificateError, ClientConnection, Connection, Error, ServerConnection};

use super::certificates::CertificateFiles;
use super::{ConfigError, Host, Member, Secret, pinned};

/// What handshakes are made with.
pub(super) struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    /// The names that the certificates of the processes are valid for, in order; none without certificates.
    names: Vec<ServerName<'static>>,
    files: Option<CertificateFiles>,
}

impl Tls {
    /// Reads the files of this process, if it has certificates.
    ///
    /// # Errors
    ///
    /// They cannot be used.
    pub fn of(member: &Member) -> Result<Self, ConfigError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let files = member.certificates.clone();
        let (names, (mut client, mut server)) = match &files {
            Some(files) => {
                let name = |address: &String| Host::of(address).and_then(Host::name);
                let name = |address: &String| name(address).ok_or_else(|| ConfigError::Address(address.clone()));
                let names: Vec<_> = member.hosts.iter().map(name).collect::<Result<_, _>>()?;
                let configs = files.configs(&provider, &names[member.process])?;
                (names, configs)
            }
            None => {
                let secret = member.secret.clone().unwrap_or_else(Secret::none);
                let configs = pinned::configs(&secret, &provider);
                (Vec::new(), configs.map_err(|error| ConfigError::Tls(error.to_string()))?)
            }
        };
        // Each connection is made once. Nothing is sent after a handshake but what the processes write.
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self { client: Arc::new(client), server: Arc::new(server), names, files })
    }

    /// The side of the connector, to this process.
    pub fn connector(&self, process: usize) -> Result<Connection, Error> {
        // Without certificates, the name is not used.
        let name = self.names.get(process).cloned().unwrap_or(ServerName::IpAddress(Ipv4Addr::LOCALHOST.into()));
        ClientConnection::new(self.client.clone(), name).map(Connection::Client)
    }

    /// The side of the acceptor.
    pub fn acceptor(&self) -> Result<Connection, Error> {
        ServerConnection::new(self.server.clone()).map(Connection::Server)
    }

    /// Checks that the certificate of a connector is that of the process that it says it is.
    ///
    /// # Errors
    ///
    /// It is another one's.
    pub fn check_connector(&self, connection: &Connection, process: usize) -> Result<(), String> {
        let Some(name) = self.names.get(process) else { return Ok(()) };
        let shown = connection.peer_certificates().and_then(<[_]>::first);
        let shown = shown.ok_or_else(|| "it has no certificate".to_owned())?;
        let valid = ParsedCertificate::try_from(shown).and_then(|shown| verify_server_name(&shown, name));
        valid.map_err(|error| format!("it says it is process {process}, but {}", self.refusal(&error)))
    }

    /// Why a handshake failed, in plain words.
    pub fn explain(&self, error: &Error) -> String {
        const MIXED: &str = "one of the two processes has certificates and the other has none";
        match (error, &self.files) {
            (Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure), None) => {
                "it does not prove that it has the same secret".to_owned()
            }
            (Error::AlertReceived(AlertDescription::AccessDenied), None) => {
                "it does not prove that it has the same secret: it refuses that of this process".to_owned()
            }
            (Error::InvalidCertificate(_) | Error::NoCertificatesPresented, _) => self.refusal(error),
            (Error::PeerIncompatible(_) | Error::AlertReceived(AlertDescription::HandshakeFailure), _) => {
                MIXED.to_owned()
            }
            (Error::AlertReceived(alert), Some(files)) => {
                let reason = match alert {
                    AlertDescription::UnknownCA | AlertDescription::DecryptError => {
                        "it does not know the authority that signed it".to_owned()
                    }
                    AlertDescription::CertificateExpired => "it has expired, or is not valid yet, there".to_owned(),
                    alert => format!("{alert:?}"),
                };
                format!("it refuses the certificate of this process (`{}`): {reason}", files.certificate.display())
            }
            (error, _) => format!("the TLS handshake failed: {error}"),
        }
    }

    fn refusal(&self, error: &Error) -> String {
        let reason = self.files.as_ref().map_or_else(|| error.to_string(), |files| files.reason(error));
        format!("its certificate is refused: {reason}")
    }
}
