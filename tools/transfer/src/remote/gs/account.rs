//! Service accounts of Google. Their tokens are texts that they sign themselves (JSON Web Tokens, RFC 7519,
//! with RS256 of RFC 7518), so that no server is asked for one.

use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, TimeDelta, Utc};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::json;

/// What a token allows.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
/// How long a token is valid: the longest time that Google accepts.
const LIFETIME: TimeDelta = TimeDelta::hours(1);
/// A token that is valid for a shorter time is made anew: a request may take some of it.
const MARGIN: TimeDelta = TimeDelta::minutes(5);

/// The file of a key, as far as it matters here.
#[derive(Deserialize)]
struct KeyFile {
    client_email: String,
    private_key: String,
    #[serde(default)]
    private_key_id: String,
    #[serde(default)]
    project_id: String,
}

/// A service account.
pub(super) struct Account {
    pub(super) project: String,
    email: String,
    key: RsaKeyPair,
    key_id: String,
    /// The last token, and when it ends.
    token: Mutex<Option<(String, DateTime<Utc>)>>,
}

impl Account {
    /// Reads the file of a key.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let file: KeyFile = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let no_key = |why: &str| format!("private_key: {why}");
        let der = PrivateKeyDer::from_pem_slice(file.private_key.as_bytes());
        let key = match der.map_err(|_| no_key("it is no private key in PEM"))? {
            PrivateKeyDer::Pkcs8(key) => RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()),
            PrivateKeyDer::Pkcs1(key) => RsaKeyPair::from_der(key.secret_pkcs1_der()),
            _ => return Err(no_key("it is no RSA key")),
        };
        Ok(Self {
            project: file.project_id,
            email: file.client_email,
            key: key.map_err(|error| no_key(&error.to_string()))?,
            key_id: file.private_key_id,
            token: Mutex::default(),
        })
    }

    /// Returns a token that is valid for some time.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(super) fn token(&self, now: DateTime<Utc>) -> Result<String, String> {
        let mut last = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((token, end)) = &*last
            && *end - now > MARGIN
        {
            return Ok(token.clone());
        }
        let token = self.make_token(now)?;
        *last = Some((token.clone(), now + LIFETIME));
        Ok(token)
    }

    fn make_token(&self, now: DateTime<Utc>) -> Result<String, String> {
        let head = json!({"alg": "RS256", "typ": "JWT", "kid": self.key_id});
        let claims = json!({
            "iss": self.email,
            "sub": self.email,
            "scope": SCOPE,
            "iat": now.timestamp(),
            "exp": (now + LIFETIME).timestamp(),
        });
        let encode = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", encode(&head), encode(&claims));
        let mut signature = vec![0; self.key.public().modulus_len()];
        self.key
            .sign(
                &RSA_PKCS1_SHA256,
                &SystemRandom::new(),
                text.as_bytes(),
                &mut signature,
            )
            .map_err(|_| "a token cannot be signed".to_owned())?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};

    use super::*;

    fn account() -> Account {
        // Generated for this test and used nowhere else.
        let key = json!({"client_email": "me@project", "private_key_id": "k", "project_id": "p",
            "private_key": include_str!("test-key.pem")});
        Account::parse(key.to_string().as_bytes()).expect("a key")
    }

    #[test]
    fn a_key_makes_tokens_that_it_has_signed() {
        let account = account();
        let now = Utc::now();
        let token = account.token(now).expect("a token");
        let (text, signature) = token.rsplit_once('.').expect("a signature");
        let signature = URL_SAFE_NO_PAD.decode(signature).expect("encoded");
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, account.key.public());
        public
            .verify(text.as_bytes(), &signature)
            .expect("its own signature");
        let (_, claims) = text.split_once('.').expect("claims");
        let claims = URL_SAFE_NO_PAD.decode(claims).expect("encoded");
        let claims: serde_json::Value = serde_json::from_slice(&claims).expect("JSON");
        assert_eq!(
            (claims["iss"].as_str(), claims["scope"].as_str()),
            (Some("me@project"), Some(SCOPE))
        );
        assert_eq!(claims["exp"].as_i64(), Some(now.timestamp() + 3600));
    }

    #[test]
    fn tokens_are_made_anew_before_they_end() {
        let account = account();
        let now = Utc::now();
        let first = account.token(now).expect("a token");
        assert_eq!(
            account.token(now + TimeDelta::minutes(54)).expect("a token"),
            first
        );
        assert_ne!(
            account.token(now + TimeDelta::minutes(56)).expect("a token"),
            first
        );
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for (text, why) in [
            ("{}", "missing field `client_email`"),
            (
                r#"{"client_email": "a", "private_key": "x"}"#,
                "no private key in PEM",
            ),
            ("[]", "invalid"),
        ] {
            let error = Account::parse(text.as_bytes()).err().expect("no account");
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
