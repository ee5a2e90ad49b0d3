//! Access tokens of service accounts.
//!
//! Source: RFC 7523 (JSON web tokens for OAuth 2.0), as Google's documentation "Using OAuth 2.0 for server to server
//! applications" describes it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::SignatureScheme;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;

use crate::error::{Retry, TransferError};
use crate::remote::http::{Call, Client, Payload, encode};

const SCOPE: &str = "https://www.googleapis.com/auth/devstorage.read_write";
/// Time before its end after which a token is not used any more.
const MARGIN: Duration = Duration::from_secs(120);

/// The key file of a service account.
#[derive(Deserialize)]
pub(super) struct Account {
    client_email: String,
    private_key: String,
    #[serde(default)]
    pub(super) project_id: String,
    #[serde(default = "usual_token_uri")]
    token_uri: String,
}

fn usual_token_uri() -> String {
    "https://oauth2.googleapis.com/token".to_owned()
}

/// A token and when it ends.
#[derive(Clone)]
pub(super) struct Token {
    pub(super) text: String,
    end: Instant,
}

impl Token {
    pub(super) fn is_fresh(&self) -> bool {
        Instant::now() + MARGIN < self.end
    }
}

#[derive(Deserialize)]
struct Answer {
    access_token: String,
    #[serde(default)]
    expires_in: u64,
}

impl Account {
    /// Asks for a token.
    pub(super) fn token(&self, client: &Client) -> Result<Token, TransferError> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let assertion = self.assertion(now)?;
        let grant = encode(b"urn:ietf:params:oauth:grant-type:jwt-bearer", false);
        let form = format!("grant_type={grant}&assertion={assertion}");
        let mut call = Call::new("POST", self.token_uri.clone());
        call.headers.push((
            "content-type".to_owned(),
            "application/x-www-form-urlencoded".to_owned(),
        ));
        call.payload = Payload::Bytes(form.as_bytes());
        call.follow = false;
        let mut answer = client.send(&call)?;
        if answer.status != 200 {
            return Err(answer.failure());
        }
        let answer: Answer = serde_json::from_str(&answer.text()?).map_err(|error| {
            TransferError::remote(format!("{} gave no token: {error}", self.token_uri), Retry::Later)
        })?;
        Ok(Token {
            text: answer.access_token,
            end: Instant::now() + Duration::from_secs(answer.expires_in),
        })
    }

    /// The signed claim to be the account, at `now` in seconds of the epoch.
    fn assertion(&self, now: u64) -> Result<String, TransferError> {
        let claims = serde_json::json!({
            "iss": self.client_email,
            "scope": SCOPE,
            "aud": self.token_uri,
            "iat": now,
            "exp": now + 3600,
        });
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"RS256","typ":"JWT"}"#);
        let text = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let unusable = || {
            TransferError::Credentials(format!(
                "the private key of {} cannot be used",
                crate::shown::bytes(self.client_email.as_bytes())
            ))
        };
        let key = PrivateKeyDer::from_pem_slice(self.private_key.as_bytes()).map_err(|_| unusable())?;
        let signature = rustls::crypto::ring::sign::any_supported_type(&key)
            .ok()
            .and_then(|key| key.choose_scheme(&[SignatureScheme::RSA_PKCS1_SHA256]))
            .and_then(|signer| signer.sign(text.as_bytes()).ok())
            .ok_or_else(unusable)?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}
