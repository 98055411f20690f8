//! Traps in the values that actions take from requests.

use super::super::{
    actions,
    actions::KnownRules,
    document::DocumentValue,
    finding::TrapSeverity,
    surroundings::{ItemList, OptionalValue},
    trap::{Report, Scope, Subject, Trap},
};
use super::descriptors::domain_without_answer;

/// Limits that a client escapes by leaving something out.
pub(super) const ABSENT_VALUE: Trap = Trap {
    name: "absent-value",
    look: |subject, report| match subject {
        Subject::Items(list) if !list.has_fallback() => {
            for item in list.items {
                absent_value(list, item, report);
            }
        }
        Subject::Scope {
            scope,
            rules: Some(rules),
        } => shorter_descriptors(scope, rules, report),
        _ => {}
    },
};

fn absent_value<'d>(list: &ItemList<'_, 'd>, item: &DocumentValue<'d>, report: &mut Report<'_>) {
    // Hits that count after the response refuse no request.
    if item.is_true("apply_on_stream_done") {
        return;
    }
    let mut optional = list.optional_values(item);
    let is_shortened = optional.iter().all(|value| value.is_skipped);
    if is_shortened && item.list("actions").len() > optional.len() {
        return;
    }
    if !is_shortened {
        optional.retain(|value| !value.is_skipped);
    }
    let Some(first) = optional.first() else {
        return;
    };
    let names: Vec<_> = optional.iter().map(OptionalValue::shown).collect();
    let consequence = if is_shortened {
        "with `skip_if_absent` its descriptor is empty, and no rule matches that"
    } else {
        "Envoy then sends no descriptor for this item"
    };
    let names = names.join(if is_shortened {
        " and the "
    } else {
        " or the "
    });
    report.add(
        &first.action,
        TrapSeverity::Warning,
        format!("a client that leaves out the {names} is not limited: {consequence}"),
        "add an item that every request matches, such as `actions: [{ remote_address: {} }]`, or \
         refuse such requests",
    );
}

fn shorter_descriptors(scope: &Scope<'_>, rules: &KnownRules<'_>, report: &mut Report<'_>) {
    for item in &scope.descriptors {
        if let Some(shorter) = &item.shorter
            && let Some(domain) = domain_without_answer(scope, item, shorter, rules)
        {
            let shorter = actions::shown(shorter);
            report.add(
                &item.value,
                TrapSeverity::Warning,
                format!(
                    "with `skip_if_absent` a client can send ({shorter}) only, which no rule of the \
                     domain `{domain}` matches: it is not limited"
                ),
                "add a rule for these entries",
            );
        }
    }
}

/// The path of a request with its query string as the value of an entry.
pub(super) const QUERY_STRING: Trap = Trap {
    name: "query-string",
    look: |subject, report| {
        let Subject::Item { limit, .. } = subject else {
            return;
        };
        for action in limit.list("actions") {
            if let Some(headers) = action.get("request_headers")
                && let Some(name @ (":path" | "x-envoy-original-path")) =
                    headers.text_of("header_name")
            {
                report.add(
                    &headers,
                    TrapSeverity::Warning,
                    format!(
                        "`{name}` includes the query string: a client that changes it in each request has a \
                         new counter each time, and a rule for the path alone does not match"
                    ),
                    "write a `generic_key` on each route, or an `extension` of type \
                     envoy.extensions.rate_limit_descriptors.expr.v3.Descriptor with `text: request.url_path`",
                );
            }
        }
    },
};
