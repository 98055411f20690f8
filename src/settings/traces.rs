//! Settings of tracing, which have variables and no flags: those of OpenTelemetry's SDK, and the `TRACING_…` of
//! envoyproxy/ratelimit, which win. The SDK reads most of its own itself. Here are those that it does not read or would
//! ignore if they are wrong, and what our own connections need.

use std::{path::Path, time::Duration};

use percent_encoding::percent_decode_str;

use super::values::{boolean, decimal, milliseconds, number};
use crate::{
    foundation::header_text::{is_token, is_value},
    net::dial::{self, Dial, DialError},
    observe::traces::{
        Sampling,
        export::{Options, OtlpTransport},
    },
};

/// Why spans cannot be sent. No text contains the value of a variable, which can be a secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TracesError {
    #[error("spans cannot be sent to `{0}`")]
    Endpoint(String, #[source] DialError),
    #[error("{0}: {1}")]
    Value(String, String),
}

/// How to export spans; `None` if tracing is off.
///
/// # Errors
///
/// If a variable or a file that it names is not valid.
pub(crate) fn from_environment() -> Result<Option<Options>, TracesError> {
    Variables(|name: &str| std::env::var_os(name)?.into_string().ok()).options()
}

/// Reads variables. One that is empty counts as unset.
struct Variables<R>(R);

impl<R: Fn(&str) -> Option<String>> Variables<R> {
    fn options(&self) -> Result<Option<Options>, TracesError> {
        let is_off =
            self.is("OTEL_SDK_DISABLED", "true") || self.is("OTEL_TRACES_EXPORTER", "none");
        let endpoint = self.text(&self.of_exporter("ENDPOINT"));
        let is_on = self.parse("TRACING_ENABLED", boolean)?;
        if is_off || !is_on.unwrap_or(endpoint.is_some()) {
            return Ok(None);
        }
        let transport = match self.parse("TRACING_EXPORTER_PROTOCOL", transport)? {
            Some(transport) => Some(transport),
            None => self.parse(&self.of_exporter("PROTOCOL"), transport)?,
        };
        let transport = transport.unwrap_or(OtlpTransport::Http);
        let server = endpoint.unwrap_or_else(|| match transport {
            OtlpTransport::Http => "http://localhost:4318".to_owned(),
            OtlpTransport::Grpc => "http://localhost:4317".to_owned(),
        });
        let path = match self.text("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") {
            Some(whole) => path_of(&whole),
            None => path_of(&server).trim_end_matches('/').to_owned() + "/v1/traces",
        };
        let dial = self.dial(&server, transport)?;
        let timeout = self.parse(&self.of_exporter("TIMEOUT"), milliseconds)?;
        // The two spans of a call; the SDK reserves memory for all places.
        let max_queue = self.parse("OTEL_BSP_MAX_QUEUE_SIZE", number(2..=65_536))?;
        // The SDK reads these; nonsense would be ignored, and with a delay of 0 it never rests.
        self.parse("OTEL_BSP_SCHEDULE_DELAY", milliseconds)?;
        self.parse("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", number::<u64>(1..))?;
        self.parse(&self.of_exporter("COMPRESSION"), |name| match name {
            "gzip" | "none" => Ok(()),
            _ => Err("expected gzip or none".to_owned()),
        })?;
        let is_header = |name: &str, value: &str| is_token(name) && is_value(value);
        let headers = self.pairs(&self.of_exporter("HEADERS"), is_header)?;
        let mut attributes = self.pairs("OTEL_RESOURCE_ATTRIBUTES", |name, _| !name.is_empty())?;
        for (key, name) in [
            ("service.name", "OTEL_SERVICE_NAME"),
            ("service.name", "TRACING_SERVICE_NAME"),
            ("service.namespace", "TRACING_SERVICE_NAMESPACE"),
            ("service.instance.id", "TRACING_SERVICE_INSTANCE_ID"),
        ] {
            attributes.extend(self.text(name).map(|value| (key.to_owned(), value)));
        }
        Ok(Some(Options {
            sampling: self.sampling()?,
            transport,
            dial,
            path,
            headers,
            timeout: timeout.unwrap_or(Duration::from_secs(10)),
            max_queue: max_queue.unwrap_or(2048),
            attributes,
        }))
    }

    fn sampling(&self) -> Result<Sampling, TracesError> {
        if let Some(rate) = self.parse("TRACING_SAMPLING_RATE", decimal)? {
            return Ok(Sampling::of_callers(rate));
        }
        let share = self.parse("OTEL_TRACES_SAMPLER_ARG", decimal)?;
        let sampling = self.parse("OTEL_TRACES_SAMPLER", |name| {
            let of_root = name.strip_prefix("parentbased_");
            Ok(Sampling {
                follows_caller: of_root.is_some(),
                rate: match of_root.unwrap_or(name) {
                    "always_on" => 1.0,
                    "always_off" => 0.0,
                    "traceidratio" => share.unwrap_or(1.0),
                    _ => return Err(SAMPLERS.to_owned()),
                },
            })
        });
        Ok(sampling?.unwrap_or(Sampling::of_callers(1.0)))
    }

    fn dial(&self, server: &str, transport: OtlpTransport) -> Result<Dial, TracesError> {
        let file = |what| self.text(&self.of_exporter(what));
        let [ca, certificate, key] = ["CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"].map(file);
        let own = certificate.as_deref().zip(key.as_deref());
        if certificate.is_some() != key.is_some() {
            let names = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and …_CLIENT_KEY".to_owned();
            return Err(TracesError::Value(names, "set both".to_owned()));
        }
        let dial = Dial::new(&dial::Options {
            server,
            tls: false,
            ca: ca.as_deref().map(Path::new),
            ca_setting: "OTEL_EXPORTER_OTLP_CERTIFICATE",
            pair: own.map(|(certificate, key)| (Path::new(certificate), Path::new(key))),
            authority: None,
            http2: transport == OtlpTransport::Grpc,
        });
        dial.map_err(|error| TracesError::Endpoint(shown(server), error))
    }

    fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.text(name)
            .is_some_and(|given| given.eq_ignore_ascii_case(value))
    }

    fn parse<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, TracesError> {
        let parsed = self.text(name).map(|value| parse(&value)).transpose();
        parsed.map_err(|expected| TracesError::Value(name.to_owned(), expected))
    }

    /// A list of `NAME=VALUE` with percent-encoded values; empty if it is not set.
    fn pairs(
        &self,
        name: &str,
        is_fit: impl Fn(&str, &str) -> bool,
    ) -> Result<Vec<(String, String)>, TracesError> {
        let is_hex = |byte: u8| byte.is_ascii_hexdigit();
        let is_escape = |rest: &str| rest.len() > 1 && rest.bytes().take(2).all(is_hex);
        let pair = |item: &str| {
            let (name, value) = item.split_once('=')?;
            let is_encoded = value.split('%').skip(1).all(is_escape);
            let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
            let pair = (name.trim().to_owned(), value.into_owned());
            (is_encoded && is_fit(&pair.0, &pair.1)).then_some(pair)
        };
        let pairs = self.parse(name, |list| {
            let items = list.split(',').map(str::trim);
            let pairs = items.filter(|item| !item.is_empty()).map(pair);
            pairs.collect::<Option<_>>().ok_or_else(|| PAIRS.to_owned())
        });
        Ok(pairs?.unwrap_or_default())
    }

    /// The name of a variable of the exporter: that for traces if it is set, or else that for all signals.
    fn of_exporter(&self, what: &str) -> String {
        let of_traces = format!("OTEL_EXPORTER_OTLP_TRACES_{what}");
        match self.text(&of_traces) {
            Some(_) => of_traces,
            None => format!("OTEL_EXPORTER_OTLP_{what}"),
        }
    }
}

const SAMPLERS: &str =
    "expected always_on, always_off or traceidratio, or one of these after parentbased_";

/// The names of the reference and of OpenTelemetry.
fn transport(text: &str) -> Result<OtlpTransport, String> {
    match text {
        "http" | "http/protobuf" => Ok(OtlpTransport::Http),
        "grpc" => Ok(OtlpTransport::Grpc),
        _ => Err("expected http or grpc".to_owned()),
    }
}

const PAIRS: &str = "expected NAME=VALUE, separated by commas and percent-encoded";

/// The path of a URL, with its query; that of a socket has none.
fn path_of(url: &str) -> String {
    let (_, rest) = url.split_once("://").unwrap_or(("", url));
    let path = rest.find(['/', '?', '#']).map(|at| &rest[at..]);
    path.filter(|_| !url.starts_with("unix:"))
        .unwrap_or_default()
        .to_owned()
}

/// A URL without the part before its host, which can contain a password.
fn shown(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    match rest.rfind('@') {
        Some(at) => format!("{scheme}://…{}", &rest[at..]),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Options>, String> {
        let value = |name: &str| {
            let mut variables = variables.iter();
            let found = variables.find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Variables(value)
            .options()
            .map_err(|error| error.to_string())
    }

    #[test]
    fn an_endpoint_or_the_reference_s_variable_turns_tracing_on() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://h:1");
        for (variables, is_on) in [
            (&[][..], false),
            (&[endpoint], true),
            (
                &[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://h:1")],
                true,
            ),
            (&[("TRACING_ENABLED", "true")], true),
            (&[endpoint, ("TRACING_ENABLED", "false")], false),
            (&[endpoint, ("OTEL_SDK_DISABLED", "True")], false),
            (&[endpoint, ("OTEL_SDK_DISABLED", "false")], true),
            (&[endpoint, ("OTEL_TRACES_EXPORTER", "none")], false),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], false),
        ] {
            let options = read(variables).unwrap();
            assert_eq!(options.is_some(), is_on, "{variables:?}");
        }
    }

    #[test]
    fn the_samplers_of_the_sdk_are_known() {
        for (sampler, rate) in [
            ("always_on", 1.0),
            ("always_off", 0.0),
            ("traceidratio", 0.25),
        ] {
            for (prefix, follows_caller) in [("", false), ("parentbased_", true)] {
                let sampler = format!("{prefix}{sampler}");
                let options = read(&[
                    ("TRACING_ENABLED", "1"),
                    ("OTEL_TRACES_SAMPLER", &sampler),
                    ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
                ]);
                let expected = Sampling {
                    follows_caller,
                    rate,
                };
                assert_eq!(options.unwrap().unwrap().sampling, expected, "{sampler}");
            }
        }
        let error = read(&[("TRACING_ENABLED", "1"), ("OTEL_TRACES_SAMPLER", "xray")]);
        assert!(error.unwrap_err().starts_with("OTEL_TRACES_SAMPLER: "));
    }

    #[test]
    fn nonsense_is_refused_by_the_name_of_its_variable() {
        for (name, value) in [
            ("OTEL_BSP_SCHEDULE_DELAY", "0"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "999999999"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=secret%zz"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=b,secret=%0A"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "two words=secret"),
            ("OTEL_RESOURCE_ATTRIBUTES", "secret"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "secret"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ] {
            let error = read(&[("TRACING_ENABLED", "1"), (name, value)]).unwrap_err();
            assert!(
                error.starts_with(name) && !error.contains("secret"),
                "{error}"
            );
        }
    }
}
