//! What the processes of a cluster share.

use std::fmt;

use super::ConfigError;

/// What the processes of a cluster share, so that no stranger gets in.
#[derive(Clone)]
pub struct Secret([u8; blake3::KEY_LEN]);

impl Secret {
    /// Minimum length in bytes.
    pub const LENGTH: usize = 16;

    /// The secret with these bytes, which should be random: who can connect to a process can try to guess them.
    ///
    /// # Errors
    ///
    /// It is shorter than [`Secret::LENGTH`].
    pub fn new(secret: &[u8]) -> Result<Self, ConfigError> {
        match secret.len() {
            length if length < Self::LENGTH => Err(ConfigError::ShortSecret(length)),
            _ => Ok(Self::of(secret)),
        }
    }

    fn of(secret: &[u8]) -> Self {
        Self(blake3::derive_key("turnflow cluster handshake 2026-10-02", secret))
    }

    /// What processes without a secret share, as everyone does.
    pub(super) fn none() -> Self {
        Self::of(b"")
    }

    /// A key that all processes of the cluster have, for links to documents, which any of them makes.
    pub fn link_key(&self) -> [u8; blake3::KEY_LEN] {
        blake3::derive_key("turnflow links to documents 2026-11-29", &self.0)
    }

    /// What the private key of all processes is made from.
    pub(super) fn seed(&self) -> [u8; blake3::KEY_LEN] {
        blake3::derive_key("turnflow cluster private key 2026-11-30", &self.0)
    }

    /// A number by which processes see that they have the same secret.
    pub(super) fn fingerprint(&self) -> [u8; blake3::KEY_LEN] {
        blake3::derive_key("turnflow cluster fingerprint of the secret 2026-11-30", &self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
