//! All traps.

mod descriptors;
mod disabled;
mod filter;
mod items;
mod lists;
mod no_filter;
mod patches;
mod route_filters;
mod scope;
mod service;
mod timeout;
mod values;

pub(super) use self::{
    no_filter::{is_usual_name, resembles_filter},
    scope::called_services,
};
use super::trap::Trap;

/// Every trap, by what it looks at.
pub(super) const TRAPS: [&Trap; 34] = [
    &timeout::TIMEOUT,
    &timeout::SERVICE_TIMEOUT,
    &filter::FAILURE_MODE,
    &filter::HEADERS,
    &filter::SWITCHED_OFF,
    &filter::NOT_ENFORCED,
    &filter::STATUS,
    &filter::TCP_DESCRIPTOR,
    &filter::QUOTA_SERVICE,
    &service::UNKNOWN_CLUSTER,
    &service::RETRIES,
    &service::AUTHORITY,
    &service::HTTP2,
    &service::NO_TRAFFIC_INTERVAL,
    &service::PANIC_THRESHOLD,
    &items::DIRECT_RESPONSE,
    &items::REDIRECT,
    &items::HITS_ADDEND,
    &items::NO_HOST_YET,
    &items::STREAM_DONE,
    &values::ABSENT_VALUE,
    &values::QUERY_STRING,
    &no_filter::NO_FILTER,
    &route_filters::ROUTE_FILTER_NAME,
    &lists::LIST_OF_ONE,
    &patches::NO_MATCH,
    &patches::MISPLACED_LIMITS,
    &disabled::FILTER_DISABLED,
    &disabled::ROUTE_DISABLED,
    &scope::HIDDEN_LIMITS,
    &scope::STAGE,
    &scope::FORGED_ADDRESS,
    &descriptors::DOMAIN,
    &descriptors::DESCRIPTOR,
];
