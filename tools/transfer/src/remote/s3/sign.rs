//! Signatures of Amazon, version 4 (`AWS4-HMAC-SHA256`), in headers. The algorithm is that of "Authenticating
//! Requests (AWS Signature Version 4)" in the reference of the S3 interface.
//!
//! The library `rusty-s3` signs addresses only: the body is not signed then, which is needed without TLS, and
//! proxies log addresses.

use std::fmt::Write as _;

use chrono::{DateTime, Utc};
use ring::{digest, hmac};

use crate::remote::http::{Request, split};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// A key of a store.
pub(super) struct Key {
    pub(super) id: String,
    pub(super) secret: String,
    /// Of a temporary key.
    pub(super) token: Option<String>,
}

/// Returns the headers that sign a request to the service `s3` in a region. `body`: what is sent, `None` if
/// it is not signed. Of the headers of the request, those of Amazon are signed.
pub(super) fn headers(
    key: &Key,
    region: &str,
    request: &Request<'_>,
    body: Option<&[u8]>,
    now: DateTime<Utc>,
) -> Vec<(String, String)> {
    let content = body.map_or_else(
        || UNSIGNED.to_owned(),
        |body| hexadecimal(digest::digest(&digest::SHA256, body).as_ref()),
    );
    let time = now.format("%Y%m%dT%H%M%SZ").to_string();
    let mut added = vec![
        ("x-amz-content-sha256".to_owned(), content.clone()),
        ("x-amz-date".to_owned(), time.clone()),
    ];
    added.extend(
        key.token
            .iter()
            .map(|token| ("x-amz-security-token".to_owned(), token.clone())),
    );

    let (_, host, rest) = split(&request.address).unwrap_or_default();
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut query: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
    query.sort_unstable();
    let amazon = request
        .headers
        .iter()
        .filter(|(name, _)| name.starts_with("x-amz-"));
    let mut signed: Vec<(&str, &str)> = amazon
        .chain(&added)
        .map(|(name, value)| (name.as_str(), value.trim()))
        .chain([("host", host)])
        .collect();
    signed.sort_unstable();
    let names: Vec<&str> = signed.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");

    let mut canonical = format!("{}\n{}\n{}\n", request.method, path, query.join("&"));
    for (name, value) in &signed {
        let _ = writeln!(canonical, "{name}:{value}");
    }
    let _ = write!(canonical, "\n{names}\n{content}");
    let canonical = digest::digest(&digest::SHA256, canonical.as_bytes());

    let day = &time[..8];
    let scope = format!("{day}/{region}/s3/aws4_request");
    let text = format!(
        "{ALGORITHM}\n{time}\n{scope}\n{}",
        hexadecimal(canonical.as_ref())
    );
    let mut signing = format!("AWS4{}", key.secret).into_bytes();
    for part in [day, region, "s3", "aws4_request"] {
        signing = keyed(&signing, part);
    }
    let signature = hexadecimal(&keyed(&signing, &text));
    let proof = format!(
        "{ALGORITHM} Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
        key.id
    );
    added.push(("authorization".to_owned(), proof));
    added
}

fn keyed(key: &[u8], text: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of Amazon's reference that sign no other headers than this module does.
    #[test]
    fn signatures_are_those_of_the_reference() {
        let key = Key {
            id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            token: None,
        };
        let now = "2013-05-24T00:00:00Z".parse().expect("a time");
        for (query, signature) in [
            (
                "lifecycle",
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                "prefix=J&max-keys=2",
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ] {
            // An empty value is written in the text that is signed.
            let query = if query.contains('=') {
                query.to_owned()
            } else {
                format!("{query}=")
            };
            let address = format!("https://examplebucket.s3.amazonaws.com/?{query}");
            let request = Request::new("GET", address);
            let found = headers(&key, "us-east-1", &request, Some(b""), now);
            let (_, proof) = found.last().expect("a proof");
            let expected = format!(
                "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
                 SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature={signature}"
            );
            assert_eq!(*proof, expected, "{query}");
        }
    }

    #[test]
    fn tokens_and_headers_of_amazon_are_signed() {
        let key = Key {
            id: "i".to_owned(),
            secret: "s".to_owned(),
            token: Some("t".to_owned()),
        };
        let mut request = Request::new("PUT", "http://h:1/b/x".to_owned());
        request
            .headers
            .push(("x-amz-copy-source".to_owned(), "/b/y".to_owned()));
        request.headers.push(("range".to_owned(), "bytes=1-".to_owned()));
        let found = headers(&key, "r", &request, None, Utc::now());
        let value = |name: &str| {
            found
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.as_str())
        };
        assert_eq!(value("x-amz-content-sha256"), Some("UNSIGNED-PAYLOAD"));
        assert_eq!(value("x-amz-security-token"), Some("t"));
        let names =
            "SignedHeaders=host;x-amz-content-sha256;x-amz-copy-source;x-amz-date;x-amz-security-token,";
        assert!(value("authorization").is_some_and(|text| text.contains(names)));
    }
}
