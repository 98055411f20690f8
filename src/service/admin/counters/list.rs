//! A page of the counters of a domain.

use std::{iter, sync::Arc};

use axum::{
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde_json::Value;

use super::{
    super::{
        json::{json_headers, parameters},
        page::json_list,
    },
    Counters, KeySource, RedisKeys, refused,
    report::{CounterReport, text},
    without_store,
};
use crate::{
    core::{
        counter::{
            KeyFormat,
            name::{DIGEST_PREFIX, domain_prefix},
        },
        window::Timestamp,
    },
    foundation::ascii_json::{ascii_json, json_without_nulls},
    service::held_bytes::Account,
    store::{
        contract::KeyPage,
        memory::MemoryCursor,
        redis::scan::{ScanCursor, ScanError},
    },
};

/// Counters on a page unless the query sets `limit`; `MOST` is the highest limit.
const USUAL: usize = 100;
const MOST: usize = 1_000;

/// Longest domain, in bytes.
const MAX_DOMAIN_BYTES: usize = 4 << 10;

/// The parameters of `/counters`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListQuery {
    domain: Vec<u8>,
    /// About how many counters a page has.
    limit: usize,
    cursor: Option<String>,
    /// Whether to list counters whose keys are digests too. Their domain is unknown.
    digests: bool,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadQuery {
    #[error("say which domain: /counters?domain=NAME")]
    NoDomain,
    #[error("a domain is longer than {MAX_DOMAIN_BYTES} bytes")]
    LongDomain,
    #[error("limit is not a number from 1 to {MOST}")]
    BadLimit,
    #[error("cursor is not one that an earlier page ended with")]
    BadCursor,
    #[error("digests is not true or false")]
    BadDigests,
    #[error("a parameter is not one of domain, limit, cursor and digests")]
    Unknown,
}

impl ListQuery {
    /// Parses the part of a URL after the `?`.
    pub(super) fn parse(query: &str) -> Result<Self, BadQuery> {
        let mut found = Self {
            limit: USUAL,
            ..Self::default()
        };
        for (name, value) in parameters(query) {
            let text = str::from_utf8(&value);
            match name {
                "domain" => found.domain = value,
                "limit" => {
                    let limit = text.ok().and_then(|limit| limit.parse().ok());
                    let limit = limit.filter(|limit| (1..=MOST).contains(limit));
                    found.limit = limit.ok_or(BadQuery::BadLimit)?;
                }
                "cursor" => found.cursor = Some(text.map_err(|_| BadQuery::BadCursor)?.to_owned()),
                "digests" => {
                    let digests = text.ok().and_then(|digests| digests.parse().ok());
                    found.digests = digests.ok_or(BadQuery::BadDigests)?;
                }
                _ => return Err(BadQuery::Unknown),
            }
        }
        match found.domain.len() {
            0 => Err(BadQuery::NoDomain),
            1..=MAX_DOMAIN_BYTES => Ok(found),
            _ => Err(BadQuery::LongDomain),
        }
    }

    /// The prefixes of the keys to list.
    fn prefixes(&self, format: KeyFormat) -> Vec<Vec<u8>> {
        let own = match format {
            KeyFormat::Native => domain_prefix(&self.domain),
            KeyFormat::Reference => [&self.domain, &b"_"[..]].concat(),
        };
        let digests = self.digests.then(|| DIGEST_PREFIX.to_vec());
        iter::once(own).chain(digests).collect()
    }
}

/// Answers `query`.
pub(super) async fn list(
    counters: &Counters,
    account: Arc<Account>,
    query: ListQuery,
) -> Result<Response, Response> {
    let rules = counters.rules()?;
    let now = counters.clock.now();
    let prefixes = query.prefixes(rules.matcher.key_format);
    let KeyPage {
        keys,
        cursor,
        is_per_second,
    } = page(counters, &query, prefixes, now).await?;
    let reports = counters.blocking.work(move || {
        let report = |key| CounterReport::of_key(key, &rules.matcher, is_per_second, now);
        keys.into_iter().filter_map(report).collect::<Vec<_>>()
    });
    let mut reports = reports.await;
    let looked = counters.look_at(&mut reports, now).await;
    looked.map_err(without_store)?;
    let domain = ascii_json(&text(&query.domain));
    let head = format!("{{\"domain\":{domain},\"counters\":[");
    let tail = format!("\n],\"cursor\":{}}}\n", Value::from(cursor));
    let bytes = |report: &CounterReport| size_of::<CounterReport>() + report.key.len();
    let bytes = reports.iter().map(bytes).sum();
    let reports = reports.into_iter();
    let texts = reports
        .map(move |report| ascii_json(&json_without_nulls(&report.document_with_descriptor(now))));
    let page = counters
        .blocking
        .page(account, move || (json_list(head, texts, tail), bytes));
    Ok((json_headers(), page).into_response())
}

/// The keys of the page, or the reply if there is none.
async fn page(
    counters: &Counters,
    query: &ListQuery,
    prefixes: Vec<Vec<u8>>,
    now: Timestamp,
) -> Result<KeyPage, Response> {
    let bad_cursor = || refused(StatusCode::BAD_REQUEST, &BadQuery::BadCursor.to_string());
    match &counters.keys {
        KeySource::Memory(store) => {
            let cursor = match &query.cursor {
                Some(text) => MemoryCursor::parse(text).ok_or_else(bad_cursor)?,
                None => MemoryCursor::default(),
            };
            let (store, limit) = (store.clone(), query.limit);
            let list = move || {
                let prefixes: Vec<_> = prefixes.iter().map(Vec::as_slice).collect();
                store.keys(&prefixes, cursor, limit, now)
            };
            Ok(counters.blocking.work(list).await)
        }
        KeySource::Redis(redis) => {
            let cursor = match &query.cursor {
                Some(text) => redis_cursor(text).ok_or_else(bad_cursor)?,
                None => (0, ScanCursor::default()),
            };
            let page = page_of_redis(redis, cursor, &prefixes, query.limit).await;
            page.map_err(|error| {
                tracing::warn!("cannot list keys: {error}");
                refused(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())
            })
        }
    }
}

/// Parses a cursor: the number of a Redis, and where to continue in it.
fn redis_cursor(text: &str) -> Option<(usize, ScanCursor)> {
    let (redis, scan) = text.split_once('.')?;
    Some((redis.parse().ok()?, ScanCursor::parse(scan)?))
}

/// Keys of one Redis. The next Redis follows on a later page.
async fn page_of_redis(
    redis: &RedisKeys,
    (number, cursor): (usize, ScanCursor),
    prefixes: &[Vec<u8>],
    most: usize,
) -> Result<KeyPage, ScanError> {
    let Some(servers) = redis.servers.get(number) else {
        return Ok(KeyPage::default());
    };
    let page = servers
        .keys(&redis.key_prefix, prefixes, cursor, most)
        .await?;
    let has_next = number + 1 < redis.servers.len();
    let cursor = match page.cursor {
        Some(cursor) => Some(format!("{number}.{cursor}")),
        None => has_next.then(|| format!("{}.{}", number + 1, ScanCursor::default().text())),
    };
    Ok(KeyPage {
        cursor,
        is_per_second: number > 0,
        ..page
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_a_domain_and_bounds_a_page() {
        let query = ListQuery::parse("domain=a%20b%2Bc+%zz%f&limit=7&cursor=1.2.3&digests=true");
        let expected = ListQuery {
            domain: b"a b+c %zz%f".to_vec(),
            limit: 7,
            cursor: Some("1.2.3".to_owned()),
            digests: true,
        };
        assert_eq!(query, Ok(expected));
        for (query, error) in [
            ("", BadQuery::NoDomain),
            ("domain=", BadQuery::NoDomain),
            ("domain=d&limit=0", BadQuery::BadLimit),
            ("domain=d&limit=1001", BadQuery::BadLimit),
            ("domain=d&digests=1", BadQuery::BadDigests),
            ("domain=d&prefix=x", BadQuery::Unknown),
        ] {
            assert_eq!(ListQuery::parse(query), Err(error), "{query}");
        }
        let long = format!("domain={}", "x".repeat(MAX_DOMAIN_BYTES + 1));
        assert_eq!(ListQuery::parse(&long), Err(BadQuery::LongDomain));
    }
}
