//! The messages and services that `build.rs` generates from `proto/`, and their forms in proto3 JSON.

#![allow(
    missing_debug_implementations,
    unreachable_pub,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "generated code"
)]

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};

use envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

/// The schemas of the served messages, for reflection; in them `Entry.key` and `value` are strings.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The packages, nested as the generated paths expect them.
pub mod envoy {
    pub mod config {
        pub mod core {
            pub mod v3 {
                tonic::include_proto!("envoy.config.core.v3");
            }
        }
    }
    pub mod extensions {
        pub mod common {
            pub mod ratelimit {
                pub mod v3 {
                    tonic::include_proto!("envoy.extensions.common.ratelimit.v3");
                }
            }
        }
    }
    pub mod service {
        pub mod discovery {
            pub mod v3 {
                tonic::include_proto!("envoy.service.discovery.v3");
            }
        }
        pub mod ratelimit {
            pub mod v3 {
                tonic::include_proto!("envoy.service.ratelimit.v3");
            }
        }
    }
    pub mod r#type {
        pub mod v3 {
            tonic::include_proto!("envoy.r#type.v3");
        }
    }
}

pub mod google {
    pub mod rpc {
        tonic::include_proto!("google.rpc");
    }
}

/// A number as a field of 32 bits reports it: a larger one is reported as the largest.
pub(crate) fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Most opening braces: descriptors, entries, and those in texts. An empty part is 3 bytes of text and a thousand in
/// memory while it is parsed.
const MAX_PARTS: usize = 1 << 14;

const COMPILED: &str = "the schemas were compiled with the program";

static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).expect(COMPILED));

fn schema(name: &str) -> MessageDescriptor {
    let name = format!("envoy.service.ratelimit.v3.{name}");
    POOL.get_message_by_name(&name).expect(COMPILED)
}

/// Parses the request in `text`: names in lowerCamel or snake case, enums by name or number, 64-bit numbers as
/// numbers or strings.
///
/// # Errors
///
/// If it is not JSON, has a field that the message does not have, or has too many parts.
pub(crate) fn request(text: &[u8]) -> Result<RateLimitRequest, serde_json::Error> {
    let parts = text.iter().filter(|&&byte| byte == b'{').count();
    if parts > MAX_PARTS {
        return Err(serde::de::Error::custom("too many parts"));
    }
    let mut json = serde_json::Deserializer::from_slice(text);
    let message = DynamicMessage::deserialize(schema("RateLimitRequest"), &mut json)?;
    json.end()?;
    let bytes = message.encode_to_vec();
    Ok(RateLimitRequest::decode(bytes.as_slice()).expect("both are of one schema"))
}

/// `request` as JSON.
///
/// # Errors
///
/// If a key or a value is no text.
pub(crate) fn request_text(request: &RateLimitRequest) -> Result<String, serde_json::Error> {
    let bytes = request.encode_to_vec();
    let message = DynamicMessage::decode(schema("RateLimitRequest"), bytes.as_slice());
    let message = message.map_err(serde::ser::Error::custom)?;
    serde_json::to_string(&message)
}

/// `response` as JSON; fields with their default are left out unless `with_defaults`.
///
/// # Errors
///
/// If it contains a value that JSON cannot express, such as NaN.
pub(crate) fn response(
    response: &RateLimitResponse,
    with_defaults: bool,
) -> Result<Vec<u8>, serde_json::Error> {
    let bytes = response.encode_to_vec();
    let message = DynamicMessage::decode(schema("RateLimitResponse"), bytes.as_slice())
        .expect("both are of one schema");
    let mut text = Vec::new();
    message.serialize_with_options(
        &mut serde_json::Serializer::new(&mut text),
        &SerializeOptions::new().skip_default_fields(!with_defaults),
    )?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_in_every_spelling() {
        let camel = r#"{"domain":"d","hitsAddend":3,"descriptors":[{"entries":[{"key":"k","value":"v"}],"hitsAddend":"7","limit":{"requestsPerUnit":5,"unit":"DAY"},"isNegativeHits":true}]}"#;
        let snake = r#"{"domain":"d","hits_addend":3,"descriptors":[{"entries":[{"key":"k","value":"v"}],"hits_addend":7,"limit":{"requests_per_unit":5,"unit":4},"is_negative_hits":true}]}"#;
        let message = request(camel.as_bytes()).unwrap();
        assert_eq!(message, request(snake.as_bytes()).unwrap());
        assert_eq!(message.hits_addend, 3);
        let descriptor = &message.descriptors[0];
        assert_eq!(descriptor.entries[0].value, "v");
        assert_eq!(descriptor.hits_addend, Some(7));
        assert_eq!(descriptor.limit.unwrap().unit, 4);
        assert!(descriptor.is_negative_hits);
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for text in ["", "{", "[]", "{\"nonsense\":1}", "{} {}", "{\"domain\":5}"] {
            assert!(request(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn many_empty_parts_are_not_read() {
        let empty =
            |parts: usize| format!(r#"{{"descriptors":[{}]}}"#, vec!["{}"; parts].join(","));
        assert!(request(empty(1_000).as_bytes()).is_ok());
        assert!(request(empty(MAX_PARTS).as_bytes()).is_err());
    }

    #[test]
    fn defaults_are_left_out_unless_wanted() {
        let message = RateLimitResponse {
            overall_code: 1,
            ..RateLimitResponse::default()
        };
        let text =
            |with_defaults| String::from_utf8(response(&message, with_defaults).unwrap()).unwrap();
        assert_eq!(text(false), r#"{"overallCode":"OK"}"#);
        assert!(text(true).contains(r#""statuses":[]"#));
    }
}
