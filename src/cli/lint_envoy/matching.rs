//! The virtual host and the route that Envoy takes for a request.

use std::cell::Cell;

use anyhow::Context as _;
use percent_encoding::percent_decode_str;
use regex::bytes::RegexBuilder;

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
    /// How many regular expressions are still read.
    regexes_left: Cell<usize>,
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
            path: format!("/{}", path.strip_prefix('/').unwrap_or(path)),
            headers: headers.iter().map(header).collect::<anyhow::Result<_>>()?,
            regexes_left: Cell::new(MAX_REGEXES),
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

    /// The first value of a parameter of the query. Actions decode names and values, and routes do not.
    pub(super) fn parameter(&self, name: &str, is_decoded: bool) -> Option<String> {
        let decoded = |text: &str| match is_decoded {
            true => percent_decode_str(text).decode_utf8_lossy().into_owned(),
            false => text.to_owned(),
        };
        let (_, query) = self.path.split_once('?')?;
        let pairs = query.split('&');
        let mut pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let (_, value) = pairs.find(|(known, _)| decoded(known) == name)?;
        Some(decoded(value))
    }
}

/// Whether Envoy adds a header to requests.
pub(super) fn is_set_by_envoy(header: &str) -> bool {
    let is_prefixed = header.starts_with("x-envoy-") || header.starts_with("x-forwarded-");
    is_prefixed || matches!(header, ":scheme" | "x-request-id")
}

/// Most regular expressions that are read, and most bytes of one once it is compiled.
const MAX_REGEXES: usize = 1_000;
const MAX_REGEX_BYTES: usize = 64 << 10;

/// Whether something matches a request; or a setting that is not read.
pub(super) type Matches = Result<bool, String>;

/// The virtual host for a request: one that has its name, or else the longest wildcard.
pub(super) fn host_for<'m, 'd>(
    table: &'m RouteLevel<'d>,
    request: &LintRequest,
) -> Option<&'m RouteLevel<'d>> {
    let ignores_port = table.value.is_true("ignore_port_in_host_matching");
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let without_port = request.host.rsplit_once(':');
    let without_port = without_port.filter(|(_, port)| ignores_port && is_port(port));
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

/// The first route that matches, and settings of routes before it that are not read, with their routes.
pub(super) fn route_for<'m, 'd>(
    host: &'m RouteLevel<'d>,
    request: &LintRequest,
) -> (Option<&'m RouteLevel<'d>>, Vec<(EnvoyValue<'d>, String)>) {
    let mut unread = Vec::new();
    for route in &host.below {
        let conditions = route.value.get("match");
        match conditions.map_or(Ok(true), |of| route_matches(of, request)) {
            Ok(true) => return (Some(route), unread),
            Ok(false) => {}
            Err(setting) => unread.push((route.value, format!("{setting} of an earlier route"))),
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
    let ignores_case = of.is_false("case_sensitive");
    let same = |a: &str, b: &str| a == b || ignores_case && a.eq_ignore_ascii_case(b);
    let begins = |prefix: &str| same(path.get(..prefix.len()).unwrap_or_default(), prefix);
    all(of.children().map(|(key, value)| {
        let text = value.text().unwrap_or_default();
        let is_whole = || matches!(path.as_bytes().get(text.len()), None | Some(b'/'));
        match snake_case(key).as_str() {
            "prefix" => Ok(begins(text)),
            "path" => Ok(same(path, text)),
            "path_separated_prefix" => Ok(begins(text) && is_whole()),
            "safe_regex" => regex_matches(value, path, request),
            "case_sensitive" => Ok(true),
            "headers" => headers_match(of, request),
            "query_parameters" => parameters_match(of, request, false),
            "grpc" => {
                let kind = request.header("content-type").unwrap_or_default();
                let kind = kind.strip_prefix("application/grpc");
                Ok(kind.is_some_and(|rest| rest.is_empty() || rest.starts_with('+')))
            }
            other => Err(format!("`{other}`")),
        }
    }))
}

/// Whether all matchers at `headers` match.
pub(super) fn headers_match(of: EnvoyValue<'_>, request: &LintRequest) -> Matches {
    all(of.list("headers").into_iter().map(|matcher| {
        let name = matcher.text_of("name").to_ascii_lowercase();
        let values = request.values(&name);
        let is_inverted = matcher.is_true("invert_match");
        // Without another condition the header has to be there.
        let keys = matcher.children().map(|(key, _)| snake_case(key));
        let conditions = keys.filter(|key| !is_setting(key));
        let asks_presence = matcher.has("present_match") || conditions.count() == 0;
        let is_empty = matcher.is_true("treat_missing_header_as_empty");
        match values.is_empty() {
            true if is_set_by_envoy(&name) => Err(format!("the header `{name}`")),
            true if !is_empty && !asks_presence => Ok(false),
            true if !is_empty => Ok(matcher.is_false("present_match") != is_inverted),
            _ => text_matches(matcher, &values.join(","), request).map(|is| is != is_inverted),
        }
    }))
}

/// Whether all matchers at `query_parameters` match.
pub(super) fn parameters_match(
    of: EnvoyValue<'_>,
    request: &LintRequest,
    decodes: bool,
) -> Matches {
    all(of.list("query_parameters").into_iter().map(|matcher| {
        match request.parameter(matcher.text_of("name"), decodes) {
            Some(value) => text_matches(matcher, &value, request),
            None => Ok(matcher.is_false("present_match")),
        }
    }))
}

/// Whether a key of a matcher is no condition.
fn is_setting(key: &str) -> bool {
    let of_values = matches!(key, "ignore_case" | "invert_match");
    of_values || matches!(key, "name" | "treat_missing_header_as_empty")
}

/// Whether a matcher of headers, parameters or texts matches.
fn text_matches(matcher: EnvoyValue<'_>, text: &str, request: &LintRequest) -> Matches {
    let ignores_case = matcher.is_true("ignore_case");
    let fold = |text: &str| match ignores_case {
        true => text.to_ascii_lowercase(),
        false => text.to_owned(),
    };
    let folded = fold(text);
    all(matcher.children().map(|(key, value)| {
        let wanted = fold(value.text().unwrap_or_default());
        match snake_case(key).as_str() {
            "exact" | "exact_match" => Ok(folded == wanted),
            "prefix" | "prefix_match" => Ok(folded.starts_with(&wanted)),
            "suffix" | "suffix_match" => Ok(folded.ends_with(&wanted)),
            "contains" | "contains_match" => Ok(folded.contains(&wanted)),
            "safe_regex" | "safe_regex_match" => regex_matches(value, text, request),
            "present_match" => Ok(matcher.is_true("present_match")),
            "string_match" => text_matches(value, text, request),
            setting if is_setting(setting) => Ok(true),
            other => Err(format!("`{other}`")),
        }
    }))
}

/// Whether a regular expression matches all of a text. As in RE2, its classes are those of ASCII.
fn regex_matches(matcher: EnvoyValue<'_>, text: &str, request: &LintRequest) -> Matches {
    let pattern = format!("^(?:{})$", matcher.text_of("regex"));
    let mut regex = RegexBuilder::new(&pattern);
    let regex = regex.unicode(false).size_limit(MAX_REGEX_BYTES);
    let left = request.regexes_left.get();
    request.regexes_left.set(left.saturating_sub(1));
    let is_read = left > 0 && text.is_ascii();
    match is_read.then(|| regex.build()) {
        Some(Ok(regex)) => Ok(regex.is_match(text.as_bytes())),
        _ => Err("a regular expression".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::document::EnvoyFile, *};

    /// Whether conditions of a route, or of an action, match a request; `None` if it is not known.
    fn matches(
        conditions: &str,
        request: &str,
        header: Option<&str>,
        is_route: bool,
    ) -> Option<bool> {
        let file = EnvoyFile::parse(conditions).unwrap();
        let of = file.roots().next().unwrap();
        let headers: Vec<_> = header.into_iter().map(str::to_owned).collect();
        let request = LintRequest::parse(request, &headers).unwrap();
        let matched = match is_route {
            true => route_matches(of, &request),
            false => all([
                headers_match(of, &request),
                parameters_match(of, &request, true),
            ]
            .into_iter()),
        };
        matched.ok()
    }

    #[test]
    fn conditions_of_routes_match_as_in_envoy() {
        for (conditions, request, expected) in [
            ("{ prefix: /a }", "a.b/ab", Some(true)),
            ("{ prefix: /a }", "a.b//a", Some(false)),
            ("{ path: //a }", "a.b//a", Some(true)),
            ("{ path: / }", "a.b?c=d", Some(true)),
            ("{ path: /A, case_sensitive: Off }", "a.b/a", Some(true)),
            ("{ path_separated_prefix: /a }", "a.b/ab", Some(false)),
            ("{ safe_regex: { regex: /\\w+ } }", "a.b/ab", Some(true)),
            ("{ safe_regex: { regex: /a } }", "a.b/ab", Some(false)),
            ("{ safe_regex: { regex: /.* } }", "a.b/é", None),
            (
                "{ safe_regex: { regex: '(?:\\w{999}){99}' } }",
                "a.b/",
                None,
            ),
            ("{ runtime_fraction: {} }", "a.b/", None),
            ("{ prefix: /b, runtime_fraction: {} }", "a.b/a", Some(false)),
            ("{ grpc: {} }", "a.b/", Some(false)),
            // Values of parameters are compared as they are written.
            (
                "{ query_parameters: [{ name: a, string_match: { exact: x y } }] }",
                "a.b/?a=x%20y",
                Some(false),
            ),
            (
                "{ query_parameters: [{ name: a, string_match: { exact: x%20y } }] }",
                "a.b/?a=x%20y",
                Some(true),
            ),
        ] {
            let matched = matches(conditions, request, None, true);
            assert_eq!(matched, expected, "{conditions} {request}");
        }
    }

    #[test]
    fn headers_and_parameters_match_as_in_envoy() {
        let header = |of: &str| format!("{{ headers: [{{ name: X-A, {of} }}] }}");
        for (of, value, expected) in [
            ("", Some("x-a:b"), Some(true)),
            ("", None, Some(false)),
            ("invert_match: true", None, Some(true)),
            ("present_match: true", None, Some(false)),
            ("present_match: no", None, Some(true)),
            ("present_match: no", Some("x-a:b"), Some(false)),
            ("treat_missing_header_as_empty: true", None, Some(true)),
            (
                "present_match: true, treat_missing_header_as_empty: Yes",
                None,
                Some(true),
            ),
            ("string_match: { exact: b }", None, Some(false)),
            (
                "string_match: { exact: b }, invert_match: true",
                None,
                Some(false),
            ),
            (
                "string_match: { exact: '' }, treat_missing_header_as_empty: true",
                None,
                Some(true),
            ),
            (
                "string_match: { exact: B, ignore_case: true }",
                Some("X-A: b"),
                Some(true),
            ),
            ("string_match: { custom: {} }", Some("x-a:b"), None),
        ] {
            let matched = matches(&header(of), "a.b/", value, false);
            assert_eq!(matched, expected, "{of} {value:?}");
        }
        let proto = "{ headers: [{ name: x-forwarded-proto, string_match: { exact: http } }] }";
        assert_eq!(matches(proto, "a.b/", None, false), None);
        let given = Some("x-forwarded-proto:http");
        assert_eq!(matches(proto, "a.b/", given, false), Some(true));
        // Actions decode names and values, and a dot is no line break.
        for (value, query, expected) in [
            ("exact: x y", "a=x%20y", true),
            ("exact: x y", "%61=x%20y", true),
            ("safe_regex: { regex: a.b }", "a=acb", true),
            ("safe_regex: { regex: a.b }", "a=a%0Ab", false),
        ] {
            let of =
                format!("{{ query_parameters: [{{ name: a, string_match: {{ {value} }} }}] }}");
            let matched = matches(&of, &format!("a.b/?{query}"), None, false);
            assert_eq!(matched, Some(expected), "{value} {query}");
        }
    }

    #[test]
    fn a_virtual_host_is_the_longest_that_matches() {
        let hosts = "{ ignore_port_in_host_matching: true, virtual_hosts: [{ name: six, domains: ['[::1]'] }, { name: \
                     exact, domains: [a.b.c] }, { name: end, domains: ['*.c'] }, { name: longer, domains: ['*.b.c'] }, \
                     { name: begin, domains: ['a.*'] }, { name: rest, domains: ['*'] }] }";
        let file = EnvoyFile::parse(hosts).unwrap();
        let table = RouteLevel::new(file.roots().next().unwrap(), 0);
        for (request, expected) in [
            ("[::1]/", "six"),
            ("[::1]:80/", "six"),
            ("A.b.c:80/", "exact"),
            ("x.b.c/", "longer"),
            ("x.c/", "end"),
            ("a.x/", "begin"),
            ("x/", "rest"),
        ] {
            let request = LintRequest::parse(request, &[]).unwrap();
            let host = host_for(&table, &request).unwrap();
            assert_eq!(host.value.text_of("name"), expected, "{}", request.text);
        }
    }
}
