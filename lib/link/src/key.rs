//! The key of a run, and connections that only its owners can make.
//!
//! Both sides show the same raw public key (RFC 7250) and prove that they own the private one. There is no
//! certificate, so no clock and no name can make one invalid.

use std::fmt;
use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};

/// A key cannot be made or used.
#[derive(Debug, thiserror::Error)]
#[error("The key of the run is unusable: {0}")]
pub struct KeyError(String);

/// The private key of a run. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct RunKey(Vec<u8>);

impl fmt::Debug for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunKey(…)")
    }
}

impl RunKey {
    /// Makes a new key.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate() -> Result<Self, KeyError> {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        let document = document.map_err(|error| KeyError(error.to_string()))?;
        Ok(Self(document.as_ref().to_vec()))
    }

    /// Reads what [`Self::as_bytes`] returns.
    ///
    /// # Errors
    /// It is no key.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, KeyError> {
        let key = Self(bytes);
        key.certified()?;
        Ok(key)
    }

    /// The secret, for other members of the run only.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn certified(&self) -> Result<CertifiedKey, KeyError> {
        let private = PrivatePkcs8KeyDer::from(self.0.as_slice());
        let key = rustls::crypto::ring::sign::any_eddsa_type(&private).map_err(KeyError::new)?;
        let public = key.public_key();
        let public = public.ok_or_else(|| KeyError("it has no public part".to_owned()))?;
        let shown = CertificateDer::from(public.as_ref().to_vec());
        Ok(CertifiedKey::new(vec![shown], key))
    }

    fn parts(&self) -> Result<(Arc<CertifiedKey>, Arc<SameKey>), KeyError> {
        let certified = Arc::new(self.certified()?);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let public = certified.cert.first().map(|shown| shown.as_ref().to_vec());
        let public = public.unwrap_or_default();
        Ok((certified, Arc::new(SameKey { public, provider })))
    }

    pub(crate) fn server_config(&self) -> Result<ServerConfig, KeyError> {
        let (certified, same) = self.parts()?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&same.provider));
        let builder = builder
            .with_protocol_versions(&[&TLS13])
            .map_err(KeyError::new)?
            .with_client_cert_verifier(same);
        let mut config =
            builder.with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified)));
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    pub(crate) fn client_config(&self) -> Result<ClientConfig, KeyError> {
        let (certified, same) = self.parts()?;
        let builder = ClientConfig::builder_with_provider(Arc::clone(&same.provider));
        let builder = builder
            .with_protocol_versions(&[&TLS13])
            .map_err(KeyError::new)?
            .dangerous()
            .with_custom_certificate_verifier(same);
        let resolver = Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified));
        let mut config = builder.with_client_cert_resolver(resolver);
        config.resumption = rustls::client::Resumption::disabled();
        Ok(config)
    }
}

impl KeyError {
    fn new(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// Accepts a peer that has the same key.
#[derive(Debug)]
struct SameKey {
    public: Vec<u8>,
    provider: Arc<CryptoProvider>,
}

impl SameKey {
    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        if shown.as_ref() == self.public {
            Ok(())
        } else {
            Err(Error::InvalidCertificate(CertificateError::UnknownIssuer))
        }
    }
}

/// What both sides check of signatures.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("only TLS 1.3 is used".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            shown: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.check(shown)?;
            let public = SubjectPublicKeyInfoDer::from(shown.as_ref());
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls13_signature_with_raw_key(message, &public, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            let algorithms = &self.provider.signature_verification_algorithms;
            algorithms.supported_schemes()
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for SameKey {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(shown).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for SameKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(shown).map(|()| ClientCertVerified::assertion())
    }

    signatures!();
}
