//! Answers of stores, which are XML.

use crate::error::{Retry, TransferError};
use crate::remote::http::Response;

/// Converts a response to an error with the store's own code and message, if there are any.
pub(in crate::remote) fn failure(mut response: Response) -> TransferError {
    let text = response.text().unwrap_or_default();
    if first_text(&text, "Code").is_none() {
        return response.failure();
    }
    store_error(response.status, &text)
}

pub(in crate::remote) fn store_error(status: u16, text: &str) -> TransferError {
    let code = first_text(text, "Code").unwrap_or_default();
    let message = first_text(text, "Message").unwrap_or_default();
    let transient = [
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
    ];
    let retry = if status >= 500 || status == 429 || transient.contains(&code.as_str()) {
        Retry::Later
    } else {
        Retry::Never
    };
    let shown = crate::shown::bytes(message.as_bytes()).to_string();
    TransferError::remote(format!("the store answered {status} {code}: {shown}"), retry)
}

/// Returns whether the store reported a missing bucket.
pub(in crate::remote) fn is_no_bucket(error: &TransferError) -> bool {
    matches!(error, TransferError::Remote { message, .. } if message.contains(" NoSuchBucket: "))
}

/// Returns the text of the first element `name`.
pub(in crate::remote) fn first_text(xml: &str, name: &str) -> Option<String> {
    all_texts(xml, name).into_iter().next()
}

/// Returns whether a text is a complete list of objects. Something else, for example the page of a proxy,
/// must not pass for an empty list: then nothing would be removed.
pub(in crate::remote) fn is_listing(xml: &str) -> bool {
    use quick_xml::events::Event;
    let mut reader = quick_xml::Reader::from_str(xml);
    let (mut depth, mut is_list) = (0_usize, false);
    loop {
        match reader.read_event() {
            Ok(Event::Start(tag)) => {
                if depth == 0 {
                    is_list = tag.local_name().as_ref() == "ListBucketResult";
                }
                depth += 1;
            }
            Ok(Event::Empty(tag)) if depth == 0 => is_list = tag.local_name().as_ref() == "ListBucketResult",
            // The reader refuses ends without a start.
            Ok(Event::End(_)) => depth = depth.saturating_sub(1),
            Ok(Event::Eof) => return is_list && depth == 0,
            Err(_) => return false,
            Ok(_) => {}
        }
    }
}

/// Returns the texts of all elements `name`, up to the first syntax error.
pub(in crate::remote) fn all_texts(xml: &str, name: &str) -> Vec<String> {
    use quick_xml::events::Event;
    let mut reader = quick_xml::Reader::from_str(xml);
    let mut found = Vec::new();
    let mut text: Option<String> = None;
    loop {
        match reader.read_event() {
            Ok(Event::Start(tag)) if tag.local_name().as_ref() == name => text = Some(String::new()),
            Ok(Event::Text(part)) => {
                if let Some(text) = &mut text {
                    text.push_str(&part);
                }
            }
            Ok(Event::GeneralRef(reference)) => {
                if let Some(text) = &mut text {
                    let resolved = match reference.resolve_char_ref() {
                        Ok(Some(c)) => Some(c.to_string()),
                        _ => quick_xml::escape::resolve_xml_entity(&reference).map(str::to_owned),
                    };
                    text.push_str(&resolved.unwrap_or_default());
                }
            }
            Ok(Event::End(tag)) if tag.local_name().as_ref() == name => found.extend(text.take()),
            Ok(Event::Eof) | Err(_) => return found,
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_and_names_are_read_from_xml() {
        let xml =
            "<?xml version=\"1.0\"?><a xmlns=\"x\"><Key>a&amp;b&#33;</Key><b><Key>c d</Key></b><Key/></a>";
        assert_eq!(all_texts(xml, "Key"), ["a&b!", "c d"]);
        assert_eq!(all_texts("<Key>broken", "Key"), [""; 0]);
        let list = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"x\"><Key>a</Key></ListBucketResult>";
        assert!(is_listing(list) && is_listing("<ListBucketResult/>"));
        for other in [
            "",
            "<html/>",
            "<a><ListBucketResult/></a>",
            &list[..list.len() - 3],
            "<ListBucketResult>",
        ] {
            assert!(!is_listing(other), "{other}");
        }
        let slow = "<Error><Code>SlowDown</Code><Message>less</Message></Error>";
        assert_eq!(store_error(503, slow).retry(), Retry::Later);
        assert_eq!(
            store_error(400, slow).to_string(),
            "the store answered 400 SlowDown: less"
        );
        let gone = "<Error><Code>NoSuchBucket</Code></Error>";
        assert!(is_no_bucket(&store_error(404, gone)));
    }
}
