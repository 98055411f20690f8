//! The virtual host and the route that Envoy takes for a request.

use anyhow::Context as _;
use percent_encoding::percent_decode_str;
use regex::RegexBuilder;

use super::{
    document::{EnvoyValue, snake_case},
    model::RouteLevel,
};

/// A request, as `--request` and `-H` write it.
#[derive(Debug)]
pub(super) struct LintRequest {
    /// As it was written.
    pub(super) text: String,
    method: String,
    /// In lower case, with its port if it has one.
    host: String,
    /// With the query.
    path: String,
    headers: Vec<(String, String)>,
}

impl LintRequest {
    /// # Errors
    ///
    /// If one of the texts cannot be read.
    pub(super) fn parse(text: &str, headers: &[String]) -> anyhow::Result<Self> {
        let (method, url) = text.trim().rsplit_once(' ').unwrap_or(("GET", text));
        let url = url.split_once("://").map_or(url, |(_, rest)| rest);
        let (host, path) = url.split_at(url.find(['/', '?']).unwrap_or(url.len()));
        anyhow::ensure!(
            !host.is_empty() && !method.contains(['/', ' ']),
            "--request is a method, a host and a path, such as \"GET shop.example.com/cart\""
        );
        let header = |text: &String| -> anyhow::Result<_> {
            let parts = text.split_once(':');
            let (name, value) = parts.context("-H is a name and a value, such as x-user:a")?;
            Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        };
        Ok(Self {
            text: text.to_owned(),
            method: method.to_ascii_uppercase(),
            host: host.to_ascii_lowercase(),
            path: format!("/{}", path.trim_start_matches('/')),
            headers: headers.iter().map(header).collect::<anyhow::Result<_>>()?,
        })
    }

    /// The values of a header.
    fn values(&self, name: &str) -> Vec<&str> {
        match name.to_ascii_lowercase().as_str() {
            ":path" => vec![&self.path],
            ":method" => vec![&self.method],
            ":authority" | "host" => vec![&self.host],
            name => {
                let named = self.headers.iter().filter(|(known, _)| known == name);
                named.map(|(_, value)| &**value).collect()
            }
        }
    }

    /// The first value of a header, as actions read it.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.values(name).first().copied()
    }

    /// The first value of a parameter of the query.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        let (_, query) = self.path.split_once('?')?;
        let mut pairs = query
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let (_, value) = pairs.find(|(known, _)| *known == name)?;
        Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
    }
}

/// Whether something matches a request; or a setting that is not read.
pub(super) type Matches = Result<bool, String>;

/// The virtual host for a request: one that has its name, or else the longest wildcard.
pub(super) fn host_for<'m, 'd>(
    table: &'m RouteLevel<'d>,
    request: &LintRequest,
) -> Option<&'m RouteLevel<'d>> {
    let ignores_port = table.value.is_true("ignore_port_in_host_matching");
    let without_port = request.host.rsplit_once(':').filter(|_| ignores_port);
    let host = without_port.map_or(&*request.host, |(name, _)| name);
    let rank = |domain: &EnvoyValue<'_>| {
        let domain = domain.text()?.to_ascii_lowercase();
        let is_longer = host.len() >= domain.len();
        match (domain.strip_prefix('*'), domain.strip_suffix('*')) {
            _ if domain == host => Some((3, 0)),
            _ if domain == "*" => Some((0, 0)),
            (Some(end), _) => (is_longer && host.ends_with(end)).then_some((2, end.len())),
            (_, Some(begin)) => (is_longer && host.starts_with(begin)).then_some((1, begin.len())),
            (None, None) => None,
        }
    };
    let ranked = table.below.iter().filter_map(|host| {
        let domains = host.value.list("domains");
        Some((domains.iter().filter_map(rank).max()?, host))
    });
    ranked.max_by_key(|(best, _)| *best).map(|(_, host)| host)
}

/// The first route that matches, and settings of routes before it that are not read.
pub(super) fn route_for<'m, 'd>(
    host: &'m RouteLevel<'d>,
    request: &LintRequest,
) -> (Option<&'m RouteLevel<'d>>, Vec<String>) {
    let mut unread = Vec::new();
    for route in &host.below {
        let conditions = route.value.get("match");
        match conditions.map_or(Ok(true), |of| route_matches(of, request)) {
            Ok(true) => return (Some(route), unread),
            Ok(false) => {}
            Err(setting) => unread.push(format!("{setting} of an earlier route")),
        }
    }
    (None, unread)
}

/// Whether all of some conditions hold. One that does not hold decides, whatever cannot be read.
fn all(conditions: impl Iterator<Item = Matches>) -> Matches {
    let mut all = Ok(true);
    for condition in conditions {
        match condition {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            unread => all = unread,
        }
    }
    all
}

fn route_matches(of: EnvoyValue<'_>, request: &LintRequest) -> Matches {
    let path = request.path.split(['?', '#']).next().unwrap_or_default();
    let ignores_case = of.text_of("case_sensitive") == "false";
    let same = |a: &str, b: &str| a == b || ignores_case && a.eq_ignore_ascii_case(b);
    let begins = |prefix: &str| same(path.get(..prefix.len()).unwrap_or_default(), prefix);
    all(of.children().map(|(key, value)| {
        let text = value.text().unwrap_or_default();
        let is_whole = || matches!(path.as_bytes().get(text.len()), None | Some(b'/'));
        match snake_case(key).as_str() {
            "prefix" => Ok(begins(text)),
            "path" => Ok(same(path, text)),
            "path_separated_prefix" => Ok(begins(text) && is_whole()),
            "safe_regex" => regex_matches(value, path),
            "case_sensitive" => Ok(true),
            "headers" => headers_match(of, request),
            "query_parameters" => parameters_match(of, request),
            "grpc" => {
                let kind = request.header("content-type").unwrap_or_default();
                Ok(kind == "application/grpc" || kind.starts_with("application/grpc+"))
            }
            other => Err(format!("`{other}`")),
        }
    }))
}

/// Whether all matchers at `headers` match.
pub(super) fn headers_match(of: EnvoyValue<'_>, request: &LintRequest) -> Matches {
    all(of.list("headers").into_iter().map(|matcher| {
        let values = request.values(matcher.text_of("name"));
        let is_inverted = matcher.is_true("invert_match");
        let is_empty = matcher.is_true("treat_missing_header_as_empty");
        // Without another condition the header has to be there.
        let keys = matcher.children().map(|(key, _)| snake_case(key));
        let conditions = keys.filter(|key| !SETTINGS.contains(&&**key));
        let is_absence = matcher.text_of("present_match") == "false";
        let asks_presence = matcher.has("present_match") || conditions.count() == 0;
        match values.is_empty() {
            true if asks_presence => Ok(is_absence != is_inverted),
            true if !is_empty => Ok(false),
            _ => text_matches(matcher, &values.join(",")).map(|is| is != is_inverted),
        }
    }))
}

/// Whether all matchers at `query_parameters` match.
pub(super) fn parameters_match(of: EnvoyValue<'_>, request: &LintRequest) -> Matches {
    all(of.list("query_parameters").into_iter().map(|matcher| {
        match request.parameter(matcher.text_of("name")) {
            Some(value) => text_matches(matcher, &value),
            None => Ok(matcher.text_of("present_match") == "false"),
        }
    }))
}

/// Keys of matchers that are no condition.
const SETTINGS: [&str; 4] = [
    "name",
    "ignore_case",
    "invert_match",
    "treat_missing_header_as_empty",
];

/// Whether a matcher of headers, parameters or texts matches.
fn text_matches(matcher: EnvoyValue<'_>, text: &str) -> Matches {
    let ignores_case = matcher.is_true("ignore_case");
    let fold = |text: &str| {
        if ignores_case {
            text.to_ascii_lowercase()
        } else {
            text.to_owned()
        }
    };
    let folded = fold(text);
    all(matcher.children().map(|(key, value)| {
        let wanted = fold(value.text().unwrap_or_default());
        match snake_case(key).as_str() {
            "exact" | "exact_match" => Ok(folded == wanted),
            "prefix" | "prefix_match" => Ok(folded.starts_with(&wanted)),
            "suffix" | "suffix_match" => Ok(folded.ends_with(&wanted)),
            "contains" | "contains_match" => Ok(folded.contains(&wanted)),
            "safe_regex" | "safe_regex_match" => regex_matches(value, text),
            "present_match" => Ok(wanted == "true"),
            "string_match" => text_matches(value, text),
            setting if SETTINGS.contains(&setting) => Ok(true),
            other => Err(format!("`{other}`")),
        }
    }))
}

/// Whether a regular expression matches all of a text.
fn regex_matches(matcher: EnvoyValue<'_>, text: &str) -> Matches {
    let pattern = format!("^(?:{})$", matcher.text_of("regex"));
    let regex = RegexBuilder::new(&pattern)
        .dot_matches_new_line(true)
        .build();
    regex.map_or_else(
        |_| Err("a regular expression".to_owned()),
        |regex| Ok(regex.is_match(text)),
    )
}
