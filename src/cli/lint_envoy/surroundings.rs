//! Lists of `rate_limits` with their surroundings, which show which values every request has, and the hits that an
//! item sends.

use crate::cli::lint_envoy::{
    actions::{self, KnownEntries},
    document::DocumentValue,
};

/// A list `rate_limits`, and the parts of the configuration around it.
#[derive(Debug)]
pub(super) struct ItemList<'s, 'd> {
    pub(super) items: &'s [DocumentValue<'d>],
    pub(super) route: Option<&'s DocumentValue<'d>>,
    pub(super) host: Option<&'s DocumentValue<'d>>,
    pub(super) manager: Option<&'s DocumentValue<'d>>,
}

/// A value of a request that an action needs and a client can leave out.
#[derive(Debug)]
pub(super) struct OptionalValue<'d> {
    /// The action, such as a `request_headers`.
    pub(super) action: DocumentValue<'d>,
    kind: ValueSource,
    name: &'d str,
    /// Whether the action then leaves out only its entry, rather than the whole descriptor.
    pub(super) is_skipped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueSource {
    Header,
    Parameter,
}

impl OptionalValue<'_> {
    /// ``header `x-api-key` ``
    pub(super) fn shown(&self) -> String {
        let kind = match self.kind {
            ValueSource::Header => "header",
            ValueSource::Parameter => "query parameter",
        };
        format!("{kind} `{}`", self.name)
    }
}

/// Parts of the names of filters that add headers, or refuse requests without a header.
const AUTHENTICATING: [&str; 12] = [
    "api_key_auth",
    "basic_auth",
    "dynamic_modules",
    "ext_authz",
    "ext_proc",
    "golang",
    "header_mutation",
    "jwt_authn",
    "lua",
    "oauth2",
    "rbac",
    "wasm",
];

impl<'d> ItemList<'_, 'd> {
    /// The values that `item` needs and clients can leave out.
    pub(super) fn optional_values(&self, item: &DocumentValue<'d>) -> Vec<OptionalValue<'d>> {
        let actions = item.list("actions");
        let values = actions.iter().filter_map(optional_value);
        values.filter(|value| !self.always_brings(value)).collect()
    }

    /// The request header that the hits of `item` are read from, if a client can leave it out.
    pub(super) fn optional_addend(&self, item: &DocumentValue<'d>) -> Option<&'d str> {
        let names = request_headers(item);
        let is_certain = names.iter().any(|name| self.always_brings_header(name));
        names.first().copied().filter(|_| !is_certain)
    }

    /// Whether some item limits every request, even without optional values.
    pub(super) fn has_fallback(&self) -> bool {
        let includes_host = self.route.is_some_and(actions::includes_host);
        let of_host = self.host.filter(|_| includes_host);
        let of_host = of_host.map_or_else(Vec::new, |host| host.list("rate_limits"));
        let mut all = self.items.iter().chain(&of_host);
        all.any(|item| self.limits_every_request(item))
    }

    /// The entries of `item` without the optional ones; `None` if Envoy would not shorten the item, or if another item
    /// limits such requests.
    pub(super) fn shorter(&self, item: &DocumentValue<'d>) -> Option<KnownEntries<'d>> {
        let optional = self.optional_values(item);
        if optional.is_empty() || !optional.iter().all(|value| value.is_skipped) {
            return None;
        }
        let others: Vec<_> = self
            .items
            .iter()
            .filter(|other| other.path() != item.path())
            .collect();
        if others.iter().any(|other| self.limits_every_request(other)) {
            return None;
        }
        let mut actions = item.list("actions");
        actions
            .retain(|action| optional_value(action).is_none_or(|value| self.always_brings(&value)));
        actions::all_entries(&actions).filter(|entries| !entries.is_empty())
    }

    fn limits_every_request(&self, item: &DocumentValue<'d>) -> bool {
        let actions = item.list("actions");
        // At least one entry must remain, because no rule matches an empty descriptor.
        let has_certain = actions.iter().any(|action| self.is_certain(action));
        let is_sent = actions.iter().all(|action| {
            self.is_certain(action) || optional_value(action).is_some_and(|value| value.is_skipped)
        });
        has_certain && is_sent && !item.is_true("apply_on_stream_done")
    }

    /// Whether the action yields an entry for every request, as far as the file shows.
    fn is_certain(&self, action: &DocumentValue<'d>) -> bool {
        if let Some(value) = optional_value(action) {
            return self.always_brings(&value);
        }
        for (name, matchers) in [
            ("header_value_match", "headers"),
            ("query_parameter_value_match", "query_parameters"),
        ] {
            if let Some(action) = action.get(name) {
                let is_inverted = action.text_of("expect_match") == Some("false");
                return is_inverted || action.list(matchers).iter().any(accepts_absence);
            }
        }
        true
    }

    fn always_brings(&self, value: &OptionalValue<'d>) -> bool {
        match value.kind {
            ValueSource::Header => self.always_brings_header(value.name),
            ValueSource::Parameter => self.is_required(value.name, "query_parameters"),
        }
    }

    fn always_brings_header(&self, name: &str) -> bool {
        self.is_set_by_envoy(name)
            || self.manager.is_some_and(adds_headers)
            || self.is_required(name, "headers")
    }

    /// Whether Envoy itself sets the header in every request.
    fn is_set_by_envoy(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let is_on = |key: &str| self.manager.is_none_or(|manager| manager.is_true(key));
        let is_off = |key: &str| {
            let manager = self.manager;
            manager.is_some_and(|manager| manager.text_of(key) == Some("false"))
        };
        match &*name {
            "host" | "x-forwarded-proto" => true,
            "x-request-id" => !is_off("generate_request_id"),
            "x-forwarded-for" | "x-envoy-external-address" => is_on("use_remote_address"),
            name => name.starts_with(':'),
        }
    }

    /// Whether the route, or every route of the virtual host, matches only requests that have the value.
    fn is_required(&self, name: &str, matchers: &str) -> bool {
        let requires = |route: &DocumentValue<'_>| {
            let Some(of_route) = route.get("match") else {
                return false;
            };
            of_route.list(matchers).iter().any(|matcher| {
                let is_it = matcher
                    .text_of("name")
                    .is_some_and(|other| other.eq_ignore_ascii_case(name));
                is_it && !accepts_absence(matcher)
            })
        };
        match (self.route, self.host) {
            (Some(route), _) => requires(route),
            (None, Some(host)) => {
                let routes = host.list("routes");
                !routes.is_empty() && routes.iter().all(requires)
            }
            (None, None) => false,
        }
    }
}

/// The value that an action reads from a header or a query parameter.
fn optional_value<'d>(action: &DocumentValue<'d>) -> Option<OptionalValue<'d>> {
    let (kind, action, name) = match action.get("request_headers") {
        Some(action) => (ValueSource::Header, action, "header_name"),
        None => (
            ValueSource::Parameter,
            action.get("query_parameters")?,
            "query_parameter_name",
        ),
    };
    Some(OptionalValue {
        name: action.text_of(name)?,
        is_skipped: action.is_true("skip_if_absent"),
        kind,
        action,
    })
}

/// Whether a matcher of a header or a query parameter also matches requests without it.
fn accepts_absence(matcher: &DocumentValue<'_>) -> bool {
    matcher.text_of("present_match") == Some("false")
        || matcher.is_true("invert_match")
        || matcher.is_true("treat_missing_header_as_empty")
}

/// Whether a filter before the rate limit filter could add headers, or refuse requests without one.
fn adds_headers(manager: &DocumentValue<'_>) -> bool {
    let filters = manager.list("http_filters");
    let names = filters.iter().map(|filter| {
        let config = filter.get("typed_config");
        let message = config.and_then(|config| config.message().map(|(name, _)| name));
        message.or(filter.text_of("name")).unwrap_or_default()
    });
    names
        .take_while(|name| !name.contains(".http.ratelimit"))
        .any(|name| AUTHENTICATING.iter().any(|part| name.contains(part)))
}

/// Commands of formats that have a value for refused requests as well.
const ALWAYS_KNOWN: [&str; 6] = [
    "BYTES_RECEIVED",
    "BYTES_SENT",
    "CEL",
    "DURATION",
    "REQ",
    "REQUEST_HEADER",
];

/// A part of an answer that hits can be read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerPart {
    Headers,
    Trailers,
}

/// Whether an item that is sent at the end of the stream has hits for a refused request. A number always has a value,
/// and without `hits_addend` there is one hit.
pub(super) fn has_value_on_refusal(item: &DocumentValue<'_>) -> bool {
    let Some(format) = format(item) else {
        return true;
    };
    command(format).is_some_and(|(name, _)| ALWAYS_KNOWN.contains(&name))
}

/// The request headers that the hits are read from, of which the first that is there counts; none if they come from
/// elsewhere.
pub(super) fn request_headers<'d>(item: &DocumentValue<'d>) -> Vec<&'d str> {
    match format(item).and_then(command) {
        Some(("REQ" | "REQUEST_HEADER", names)) => names.split('?').collect(),
        _ => Vec::new(),
    }
}

/// The part of the answer that the hits are read from.
pub(super) fn part_of_answer(item: &DocumentValue<'_>) -> Option<AnswerPart> {
    match format(item).and_then(command)?.0 {
        "RESP" | "RESPONSE_HEADER" => Some(AnswerPart::Headers),
        "TRAILER" | "RESPONSE_TRAILER" => Some(AnswerPart::Trailers),
        _ => None,
    }
}

/// The text of the format, unless it is empty.
pub(super) fn format<'d>(item: &DocumentValue<'d>) -> Option<&'d str> {
    let format = item.at(&["hits_addend", "format"])?.text()?;
    Some(format).filter(|format| !format.is_empty())
}

/// The name and the argument of a format of one command, such as `%REQ(x-tokens)%`.
fn command(format: &str) -> Option<(&str, &str)> {
    let command = format.strip_prefix('%')?.strip_suffix('%')?;
    let (name, rest) = command.split_once('(').unwrap_or((command, ""));
    // A greatest length can follow.
    let argument = rest.rsplit_once(')').map_or("", |(argument, _)| argument);
    Some((name, argument))
}
