//! All traps. Each module has one function for each part of a configuration that it checks.

mod filter;
mod no_filter;
mod orders;
mod patches;
mod routes;
mod scope;
mod service;

pub(super) use self::{
    filter::{behind_router, http_filter, quota_filter, tcp_filter},
    no_filter::{is_router_name, is_usual_name, resembles_filter, unknown_filter, untyped},
    orders::{costs, late_headers},
    patches::patch,
    routes::{configured, route, virtual_host},
    scope::{called_services, scope},
    service::{call, cluster, service},
};
pub(super) use crate::cli::lint_envoy::traps::filter::unknown_actions;
pub(super) use crate::cli::lint_envoy::traps::routes::{item, items, single_item};
