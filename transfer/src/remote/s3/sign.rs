//! Signatures of requests, version 4 of the scheme of Amazon Web Services.
//!
//! Source: the documentation of Amazon S3, "Authenticating Requests (AWS Signature Version 4)".

use chrono::{DateTime, Utc};
use sha2::{Digest, Sha256};

use crate::integrity::hex;
use crate::remote::http::encode;

/// What stands for the hash of a body that is not hashed.
pub(super) const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// Who signs.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) access: String,
    pub(super) secret: String,
    pub(super) token: Option<String>,
}

/// What is signed.
pub(super) struct Unsigned<'a> {
    pub(super) method: &'a str,
    pub(super) host: &'a str,
    /// Encoded.
    pub(super) path: &'a str,
    /// Names and values, not encoded.
    pub(super) query: &'a [(&'a str, String)],
    /// Headers that are sent and signed, names in lower case.
    pub(super) headers: &'a [(String, String)],
    /// SHA-256 of the body in hexadecimal, or [`UNSIGNED`].
    pub(super) payload: &'a str,
    pub(super) region: &'a str,
    pub(super) time: DateTime<Utc>,
}

/// All headers to send, the given ones included.
pub(super) fn headers(unsigned: &Unsigned<'_>, key: &Key) -> Vec<(String, String)> {
    let time = unsigned.time.format("%Y%m%dT%H%M%SZ").to_string();
    let day = &time[..8];
    let mut headers = unsigned.headers.to_vec();
    headers.push(("host".to_owned(), unsigned.host.to_owned()));
    headers.push(("x-amz-content-sha256".to_owned(), unsigned.payload.to_owned()));
    headers.push(("x-amz-date".to_owned(), time.clone()));
    if let Some(token) = &key.token {
        headers.push(("x-amz-security-token".to_owned(), token.clone()));
    }
    headers.sort();
    let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(";");
    let lines: String = headers
        .iter()
        .map(|(name, value)| format!("{name}:{}\n", value.trim()))
        .collect();
    let canonical = format!(
        "{}\n{}\n{}\n{lines}\n{names}\n{}",
        unsigned.method,
        unsigned.path,
        query(unsigned.query),
        unsigned.payload
    );
    let scope = format!("{day}/{}/s3/aws4_request", unsigned.region);
    let text = format!(
        "AWS4-HMAC-SHA256\n{time}\n{scope}\n{}",
        sha256(canonical.as_bytes())
    );
    let mut derived = hmac(format!("AWS4{}", key.secret).as_bytes(), day.as_bytes());
    for part in [unsigned.region, "s3", "aws4_request", &text] {
        derived = hmac(&derived, part.as_bytes());
    }
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={}",
        key.access,
        hex(&derived)
    );
    headers.push(("authorization".to_owned(), authorization));
    headers
}

/// The query of an address, sorted and encoded as it is signed.
pub(super) fn query(pairs: &[(&str, String)]) -> String {
    let mut encoded: Vec<String> = pairs
        .iter()
        .map(|(name, value)| {
            format!(
                "{}={}",
                encode(name.as_bytes(), false),
                encode(value.as_bytes(), false)
            )
        })
        .collect();
    encoded.sort();
    encoded.join("&")
}

/// SHA-256 in hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes).into())
}

/// HMAC with SHA-256 (RFC 2104).
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    const BLOCK: usize = 64;
    let mut block = [0; BLOCK];
    if key.len() > BLOCK {
        let short: [u8; 32] = Sha256::digest(key).into();
        block[..short.len()].copy_from_slice(&short);
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let pad = |byte: u8| block.map(|key| key ^ byte);
    let inner = Sha256::new()
        .chain_update(pad(0x36))
        .chain_update(message)
        .finalize();
    Sha256::new()
        .chain_update(pad(0x5c))
        .chain_update(inner)
        .finalize()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hmac_of_the_rfc() {
        // RFC 4231, test cases 2 and 6.
        assert_eq!(
            hex(&hmac(b"Jefe", b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        let text = b"Test Using Larger Than Block-Size Key - Hash Key First";
        assert_eq!(
            hex(&hmac(&[0xaa; 131], text)),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn the_example_of_the_documentation() {
        // "GET Object" of the documentation of signature version 4.
        let time = DateTime::parse_from_rfc3339("2013-05-24T00:00:00Z")
            .expect("valid")
            .to_utc();
        let empty = sha256(b"");
        let key = Key {
            access: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            token: None,
        };
        let unsigned = Unsigned {
            method: "GET",
            host: "examplebucket.s3.amazonaws.com",
            path: "/test.txt",
            query: &[],
            headers: &[("range".to_owned(), "bytes=0-9".to_owned())],
            payload: &empty,
            region: "us-east-1",
            time,
        };
        let signed = headers(&unsigned, &key);
        let (_, authorization) = signed.last().expect("the last");
        assert_eq!(
            authorization,
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,\
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
    }
}
