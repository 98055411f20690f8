//! Settings of tracing: which calls become spans, and where the spans go.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use tonic::codegen::http::{HeaderName, HeaderValue};

use super::shapes::ArgShape as _;
use super::values::{Hidden, decimal, file_path, milliseconds, number};
use crate::{
    net::dial::{self, Dial, DialError},
    observe::traces::{self, export},
};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Traces")]
pub(crate) struct Traces {
    /// Send spans of each sampled call to an OpenTelemetry collector
    #[arg(long, env = "TRACING_ENABLED", boolean = false)]
    pub tracing: bool,

    /// The service.name of the spans
    #[arg(long, env = "TRACING_SERVICE_NAME", text = ("NAME", "RateLimit"))]
    pub tracing_service_name: String,

    /// The service.namespace of the spans
    #[arg(long, env = "TRACING_SERVICE_NAMESPACE", value_name = "NAME")]
    pub tracing_service_namespace: Option<String>,

    /// The service.instance.id of the spans [default: a random UUID]
    #[arg(long, env = "TRACING_SERVICE_INSTANCE_ID", value_name = "ID")]
    pub tracing_service_instance_id: Option<String>,

    /// Protocol of the collector: http (protobuf over HTTP) or grpc
    #[arg(long, env = "TRACING_EXPORTER_PROTOCOL", text = ("PROTOCOL", "http"), value_parser = protocol)]
    pub tracing_protocol: export::Protocol,

    /// Share of calls to sample, from 0 to 1, where the caller has not decided
    #[arg(long, env = "TRACING_SAMPLING_RATE", text = ("RATE", "1"), value_parser = decimal)]
    pub tracing_sampling_rate: f64,

    /// URL of the collector; over HTTP, v1/traces is appended [default: http://localhost:4318, or
    /// http://localhost:4317 for gRPC]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", hidden = "URL")]
    pub otlp_endpoint: Option<Hidden>,

    /// Full URL for spans, used unchanged; takes precedence over --otlp-endpoint
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", hidden = "URL")]
    pub otlp_traces_endpoint: Option<Hidden>,

    /// Extra headers, such as an API key: name=value, separated by commas; special characters percent-encoded
    #[arg(long, env = "OTEL_EXPORTER_OTLP_HEADERS", hidden = "K=V[,K=V…]")]
    pub otlp_headers: Option<Hidden>,

    /// How long the collector may take to answer, in milliseconds
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TIMEOUT", text = ("MS", "10000"), value_parser = milliseconds)]
    pub otlp_timeout: Duration,

    /// CA certificate to verify the collector, in PEM; required for an https:// URL
    #[arg(long, env = "OTEL_EXPORTER_OTLP_CERTIFICATE", value_parser = file_path, value_name = "FILE")]
    pub otlp_certificate: Option<PathBuf>,

    /// Client certificate for the collector, in PEM
    #[arg(long, env = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", value_parser = file_path, value_name = "FILE")]
    pub otlp_client_certificate: Option<PathBuf>,

    /// Key of that certificate, in PEM
    #[arg(long, env = "OTEL_EXPORTER_OTLP_CLIENT_KEY", value_parser = file_path, value_name = "FILE")]
    pub otlp_client_key: Option<PathBuf>,

    /// Further attributes of all spans: name=value, separated by commas
    #[arg(long, env = "OTEL_RESOURCE_ATTRIBUTES", value_name = "K=V[,K=V…]")]
    pub otel_resource_attributes: Option<String>,

    /// Most spans that can wait to be sent; any more are dropped and counted
    #[arg(long, env = "OTEL_BSP_MAX_QUEUE_SIZE", text = ("N", "2048"), value_parser = number::<usize>(1..=1_000_000))]
    pub otel_max_queue: usize,

    /// Most spans in one message
    #[arg(
        long,
        env = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
        default_value_t = 512,
        value_parser = number::<usize>(1..=100_000),
        value_name = "N",
    )]
    pub otel_max_batch: usize,

    /// How long a span can wait for others, in milliseconds
    #[arg(long, env = "OTEL_BSP_SCHEDULE_DELAY", text = ("MS", "5000"), value_parser = milliseconds)]
    pub otel_delay: Duration,
}

/// As in the reference, an empty text means HTTP.
fn protocol(text: &str) -> Result<export::Protocol, String> {
    match text {
        "" | "http" => Ok(export::Protocol::Http),
        "grpc" => Ok(export::Protocol::Grpc),
        _ => Err("expected http or grpc".to_owned()),
    }
}

/// Why spans cannot be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TracesError {
    #[error("spans cannot be sent to `{0}`")]
    Endpoint(String, #[source] DialError),
    #[error("OTEL_EXPORTER_OTLP_HEADERS (--otlp-headers) is not NAME=VALUE, separated by commas")]
    Headers,
    #[error(
        "OTEL_RESOURCE_ATTRIBUTES (--otel-resource-attributes) is not NAME=VALUE, separated by commas"
    )]
    Attributes,
}

impl Traces {
    /// Sampling and the bound on waiting spans.
    pub(crate) fn sampling(&self) -> traces::Options {
        traces::Options {
            sampling_rate: self.tracing_sampling_rate,
            max_queue: self.otel_max_queue,
        }
    }

    /// How to export spans. `random_id` generates the instance id if no flag sets it.
    ///
    /// # Errors
    ///
    /// If an address, a file or a list is not valid.
    pub(crate) fn export(
        &self,
        random_id: impl Fn() -> String,
    ) -> Result<export::Options, TracesError> {
        let (server, path) = self.target();
        let dial = self.dial(&server);
        Ok(export::Options {
            protocol: self.tracing_protocol,
            dial: dial.map_err(|error| TracesError::Endpoint(shown(&server), error))?,
            path,
            headers: self.headers().ok_or(TracesError::Headers)?,
            resource: self.resource(random_id).ok_or(TracesError::Attributes)?,
            batch: self.otel_max_batch,
            delay: self.otel_delay,
            timeout: self.otlp_timeout,
        })
    }

    /// The URL of the collector, and the path for traces over HTTP.
    fn target(&self) -> (String, String) {
        if let Some(whole) = given(self.otlp_traces_endpoint.as_deref()) {
            let path = path_of(&whole);
            let path = if path.is_empty() {
                "/".to_owned()
            } else {
                path
            };
            return (whole, path);
        }
        let base = given(self.otlp_endpoint.as_deref()).unwrap_or_else(|| {
            let default = match self.tracing_protocol {
                export::Protocol::Http => "http://localhost:4318",
                export::Protocol::Grpc => "http://localhost:4317",
            };
            default.to_owned()
        });
        let path = format!("{}/v1/traces", path_of(&base).trim_end_matches('/'));
        (base, path)
    }

    fn dial(&self, server: &str) -> Result<Dial, DialError> {
        let file = |path: &Option<PathBuf>| {
            let path = path.clone();
            path.filter(|path| !path.as_os_str().is_empty())
        };
        let (ca, certificate, key) = (
            file(&self.otlp_certificate),
            file(&self.otlp_client_certificate),
            file(&self.otlp_client_key),
        );
        Dial::new(&dial::Options {
            server,
            tls: false,
            ca: ca.as_deref(),
            ca_setting: "OTEL_EXPORTER_OTLP_CERTIFICATE (--otlp-certificate)",
            pair: certificate.as_deref().zip(key.as_deref()),
            authority: None,
            http2: self.tracing_protocol == export::Protocol::Grpc,
        })
    }

    /// The headers of each export; `None` if the list is invalid.
    fn headers(&self) -> Option<Vec<(HeaderName, HeaderValue)>> {
        let header = |(name, value): (String, String)| {
            let name = HeaderName::try_from(name).ok()?;
            Some((name, HeaderValue::try_from(value).ok()?))
        };
        let headers = given(self.otlp_headers.as_deref()).unwrap_or_default();
        pairs(&headers)?.into_iter().map(header).collect()
    }

    /// The attributes of this process; `None` if the list is invalid. The reference's own variables take precedence
    /// over the general one.
    fn resource(&self, random_id: impl Fn() -> String) -> Option<Vec<(String, String)>> {
        let attributes = given(self.otel_resource_attributes.as_deref()).unwrap_or_default();
        let mut resource = pairs(&attributes)?;
        let instance = given(self.tracing_service_instance_id.as_deref());
        for (key, value) in [
            ("service.name", Some(self.tracing_service_name.clone())),
            (
                "service.namespace",
                given(self.tracing_service_namespace.as_deref()),
            ),
            (
                "service.instance.id",
                Some(instance.unwrap_or_else(random_id)),
            ),
        ] {
            if let Some(value) = value {
                resource.retain(|(known, _)| known != key);
                resource.push((key.to_owned(), value));
            }
        }
        Some(resource)
    }
}

/// The text of a setting, unless it is empty.
fn given(text: Option<&str>) -> Option<String> {
    text.filter(|text| !text.is_empty()).map(str::to_owned)
}

/// A URL without the part before its host, which can contain a password.
fn shown(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    match rest.rfind('@') {
        Some(at) => format!("{scheme}://…{}", &rest[at..]),
        None => url.to_owned(),
    }
}

/// The part of a URL after its host.
fn path_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find('/')
        .map_or_else(String::new, |at| rest[at..].to_owned())
}

/// `k=v,k=v`, with percent-encoded bytes (W3C Baggage, as in OpenTelemetry).
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let items = text
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty());
    items
        .map(|item| {
            let (key, value) = item.split_once('=')?;
            let key = key.trim();
            (!key.is_empty()).then(|| Some((key.to_owned(), decoded(value.trim())?)))?
        })
        .collect()
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(next) = rest.next() {
        if next == b'%' {
            let digits = [rest.next()?, rest.next()?];
            let digits = std::str::from_utf8(&digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
        } else {
            bytes.push(next);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_nonsense_is_not() {
        let shown = |text: &str| {
            let pairs = pairs(text)?;
            let shown = pairs.iter().map(|(key, value)| format!("{key}→{value}"));
            Some(shown.collect::<Vec<_>>().join(" "))
        };
        assert_eq!(shown("").as_deref(), Some(""));
        assert_eq!(shown("a=b, c=d=e ,").as_deref(), Some("a→b c→d=e"));
        assert_eq!(shown("a=b%20c%2C").as_deref(), Some("a→b c,"));
        for bad in ["a", "=b", "a=%", "a=%zz", "a=%ff"] {
            assert_eq!(shown(bad), None, "{bad}");
        }
    }

    #[test]
    fn paths_are_what_stands_after_the_host() {
        assert_eq!(path_of("http://h:1"), "");
        assert_eq!(path_of("http://h:1/a/b"), "/a/b");
        assert_eq!(path_of("h/x"), "/x");
    }
}
