//! The identity of this process for a control plane: its node, and the headers of its calls.

use std::collections::BTreeMap;

use prost_types::{Struct, Value, value::Kind};
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};

use super::error::XdsError;
use crate::service::grpc::proto::envoy::config::core::v3::{Node, node::UserAgentVersionType};

/// The node of requests, with free-form `metadata`.
pub(super) fn node(id: String, metadata: Vec<(String, String)>) -> Node {
    let value = |text| Value {
        kind: Some(Kind::StringValue(text)),
    };
    let fields: BTreeMap<_, _> = metadata
        .into_iter()
        .map(|(key, text)| (key, value(text)))
        .collect();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Node {
        id,
        cluster: String::new(),
        metadata: (!fields.is_empty()).then_some(Struct { fields }),
        user_agent_name: "tollgate".to_owned(),
        user_agent_version_type: Some(UserAgentVersionType::UserAgentVersion(version)),
    }
}

/// The headers in `items`, each `name:value`.
///
/// # Errors
///
/// If an item is no header. The error has its number, counted from 1.
pub(super) fn headers(items: &[String]) -> Result<MetadataMap, XdsError> {
    let mut map = MetadataMap::new();
    for (number, item) in (1..).zip(items) {
        // The text is not repeated, because it may be secret.
        let bad = || XdsError::Header(number);
        let (name, value) = item.split_once(':').ok_or_else(bad)?;
        if value.contains(':') {
            return Err(bad());
        }
        let key = AsciiMetadataKey::from_bytes(name.to_lowercase().as_bytes());
        let mut value = AsciiMetadataValue::try_from(value).map_err(|_| bad())?;
        value.set_sensitive(true);
        map.append(key.map_err(|_| bad())?, value);
    }
    Ok(map)
}
