//! All traps.

mod filter;
mod items;
mod scope;
mod service;

use super::trap::Trap;

/// Every trap, by what it looks at.
pub(super) const TRAPS: [&Trap; 22] = [
    &filter::TIMEOUT,
    &filter::FAILURE_MODE,
    &filter::HEADERS,
    &filter::SWITCHED_OFF,
    &filter::NOT_ENFORCED,
    &filter::STATUS,
    &filter::TCP_DESCRIPTOR,
    &filter::QUOTA_SERVICE,
    &service::RETRIES,
    &service::AUTHORITY,
    &service::HTTP2,
    &service::NO_TRAFFIC_INTERVAL,
    &service::PANIC_THRESHOLD,
    &items::DIRECT_RESPONSE,
    &items::HITS_ADDEND,
    &items::NO_HOST_YET,
    &items::STREAM_DONE,
    &scope::HIDDEN_LIMITS,
    &scope::STAGE,
    &scope::FORGED_ADDRESS,
    &scope::DOMAIN,
    &scope::DESCRIPTOR,
];
