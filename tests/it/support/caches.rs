//! The caches of go-control-plane as small state machines: when a control plane answers a request, and with what.

use std::collections::BTreeMap;

use prost_types::Any;
use tollgate::{
    TYPE_URL,
    proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse},
    rls_conf::RateLimitConfig,
};

use super::ads::snapshot;

#[derive(Debug)]
pub enum Cache {
    /// A snapshot cache of earlier versions: each request with another version than the newest gets the newest.
    Newest(Option<DiscoveryResponse>),
    Snapshot(SnapshotCache),
    Linear(LinearCache),
    /// A cache for each type.
    Mux(BTreeMap<String, Cache>),
}

/// A name, and an empty cache.
pub type NamedCache = (&'static str, fn() -> Cache);

#[derive(Debug)]
pub enum Answer {
    Send(DiscoveryResponse),
    /// The request stays open until the cache changes.
    Wait,
    /// The call ends.
    End,
}

/// Silent without a snapshot. A request that names the version of the snapshot is answered only if its call has not
/// had all resources of it; all others are answered at once, refusals too.
#[derive(Debug, Default)]
pub struct SnapshotCache {
    snapshot: Option<DiscoveryResponse>,
    version: u64,
}

/// Answers each request without a version, with an empty list if need be; other requests get those resources that
/// have changed since the last response of the call, and wait if there are none. A deletion is never sent.
#[derive(Debug, Default)]
pub struct LinearCache {
    resources: BTreeMap<String, Any>,
    version: u64,
}

/// The resources that one call has had, by name.
#[derive(Debug, Default)]
pub struct Returned(BTreeMap<String, Any>);

impl Default for Cache {
    fn default() -> Self {
        Self::Newest(None)
    }
}

impl Cache {
    pub fn snapshot() -> Self {
        Self::Snapshot(SnapshotCache::default())
    }

    /// Behind a server that answers requests for several types in a fixed order, which a client of one type does not see.
    pub fn ordered() -> Self {
        Self::snapshot()
    }

    pub fn linear() -> Self {
        Self::Linear(LinearCache::default())
    }

    /// `cache` for rules, beside one for another type.
    pub fn mux(cache: Self) -> Self {
        let other = "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned();
        Self::Mux([(TYPE_URL.to_owned(), cache), (other, Self::linear())].into())
    }

    /// All three, empty; the last one twice.
    pub fn all() -> [NamedCache; 4] {
        [
            ("snapshot", Self::snapshot),
            ("linear", Self::linear),
            ("mux of linear", || Self::mux(Self::linear())),
            ("mux of snapshot", || Self::mux(Self::snapshot())),
        ]
    }

    /// Puts rules into the cache: a new snapshot, or changed resources.
    pub fn fill(&mut self, configs: &[RateLimitConfig]) {
        match self {
            Self::Newest(_) => panic!("it is filled by hand"),
            Self::Snapshot(cache) => {
                cache.version += 1;
                cache.snapshot = Some(snapshot(&cache.version.to_string(), configs));
            }
            Self::Linear(cache) => {
                cache.version += 1;
                let changed = snapshot("", configs).resources;
                let named = configs.iter().map(|config| config.name.clone());
                cache.resources.extend(named.zip(changed));
            }
            Self::Mux(caches) => caches.get_mut(TYPE_URL).unwrap().fill(configs),
        }
    }

    /// The reaction to a request of a call that has had `returned`. The request is new, or one that waited until the
    /// cache changed.
    pub fn answer(&self, request: &DiscoveryRequest, returned: &Returned, is_new: bool) -> Answer {
        match self {
            Self::Newest(newest) => match newest {
                Some(newest) if !is_new || newest.version_info != request.version_info => {
                    Answer::Send(newest.clone())
                }
                _ => Answer::Wait,
            },
            Self::Snapshot(cache) => cache.answer(request, returned, is_new),
            Self::Linear(cache) => cache.answer(request, returned),
            Self::Mux(caches) => match caches.get(&request.type_url) {
                Some(cache) => cache.answer(request, returned, is_new),
                None => Answer::End,
            },
        }
    }
}

impl SnapshotCache {
    fn answer(&self, request: &DiscoveryRequest, returned: &Returned, is_new: bool) -> Answer {
        let Some(snapshot) = &self.snapshot else {
            return Answer::Wait;
        };
        let is_other = snapshot.version_info != request.version_info;
        if is_other || is_new && !returned.has_names_of(snapshot) {
            Answer::Send(snapshot.clone())
        } else {
            Answer::Wait
        }
    }
}

impl LinearCache {
    fn answer(&self, request: &DiscoveryRequest, returned: &Returned) -> Answer {
        let resources = self.resources.iter();
        let changed: Vec<_> = resources
            .filter(|(name, any)| returned.0.get(*name) != Some(any))
            .map(|(_, any)| any.clone())
            .collect();
        if changed.is_empty() && !request.version_info.is_empty() {
            return Answer::Wait;
        }
        Answer::Send(DiscoveryResponse {
            resources: changed,
            ..snapshot(&self.version.to_string(), &[])
        })
    }
}

impl Returned {
    pub fn add(&mut self, response: &DiscoveryResponse) {
        let named = response.resources.iter();
        self.0.extend(named.map(|any| (name(any), any.clone())));
    }

    fn has_names_of(&self, response: &DiscoveryResponse) -> bool {
        let mut resources = response.resources.iter();
        resources.all(|any| self.0.contains_key(&name(any)))
    }
}

/// The name of rules; none if they are unreadable.
fn name(any: &Any) -> String {
    let config: Result<RateLimitConfig, _> = prost::Message::decode(any.value.as_slice());
    config.unwrap_or_default().name
}
