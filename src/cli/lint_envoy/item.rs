//! Items of `rate_limits`: the descriptor that each makes, as far as a configuration shows it.

use super::document::EnvoyValue;

/// The message that contains an item. Only those of a route have stages, and only from these Envoy drops `hits_addend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// A route or a virtual host.
    Route,
    /// A `RateLimitPerRoute`.
    PerRoute,
    /// The filter itself.
    Filter,
    /// The TCP filter, whose descriptors have entries and no actions.
    TcpFilter,
}

/// The orders that tollgate carries out at the end of a stream: the key of the last entry.
pub(super) const RESERVATION: &str = "tollgate.reservation";
pub(super) const RELEASE: &str = "tollgate.release";
pub(super) const UNRESERVED: &str = "tollgate.unreserved";

/// A key, and its value where the configuration has it.
pub(super) type KnownEntry<'d> = (&'d str, Option<&'d str>);

/// One item of a list `rate_limits`.
#[derive(Clone, Debug)]
pub(super) struct LimitItem<'d> {
    pub(super) value: EnvoyValue<'d>,
    pub(super) holder: Holder,
    pub(super) stage: u64,
    /// Whether it is sent at the end of the stream.
    pub(super) is_at_end: bool,
    /// The order to tollgate that its last entry is.
    pub(super) order: Option<&'d str>,
    /// The entries before the order; `None` if an action is unknown.
    pub(super) entries: Option<Box<[KnownEntry<'d>]>>,
}

impl<'d> LimitItem<'d> {
    /// The items of a value that have actions: other messages than Envoy's have lists of this name too.
    pub(super) fn all(value: Option<EnvoyValue<'d>>, holder: Holder) -> Vec<Self> {
        let items = value.map_or_else(Vec::new, |value| value.list("rate_limits"));
        let items = items.into_iter().filter(|item| item.has("actions"));
        items.map(|item| Self::new(item, holder)).collect()
    }

    fn new(value: EnvoyValue<'d>, holder: Holder) -> Self {
        let actions = value.list("actions").into_iter().map(ItemAction::new);
        let actions: Vec<_> = actions.collect();
        let order = actions.last().and_then(|action| action.key);
        let order = order.filter(|key| [RESERVATION, RELEASE, UNRESERVED].contains(key));
        let before = &actions[..actions.len() - usize::from(order.is_some())];
        let entry = |action: &ItemAction<'d>| Some((action.key?, action.literal));
        let entries = before.iter().map(entry);
        let stage = value.number("stage");
        Self {
            entries: entries.collect(),
            order,
            holder,
            stage: if holder == Holder::Route { stage } else { 0 },
            is_at_end: value.is_true("apply_on_stream_done"),
            value,
        }
    }

    /// A descriptor of the TCP filter.
    pub(super) fn of_tcp(value: EnvoyValue<'d>) -> Self {
        let entry = |entry: EnvoyValue<'d>| {
            let value = Some(entry.text_of("value")).filter(|value| !value.contains('%'));
            (entry.text_of("key"), value)
        };
        let entries = value.list("entries").into_iter().map(entry);
        Self {
            entries: Some(entries.collect()),
            ..Self::new(value, Holder::TcpFilter)
        }
    }

    pub(super) fn actions(&self) -> impl Iterator<Item = ItemAction<'d>> {
        let actions = self.value.list("actions").into_iter();
        actions.map(ItemAction::new)
    }

    /// The metadata that its order reads: the action, whether they are of the request, and their key and path.
    pub(super) fn metadata(&self) -> Option<(EnvoyValue<'d>, bool, &'d str, Vec<&'d str>)> {
        let action = self.actions().last()?.value;
        let is_dynamic = matches!(action.text_of("source"), "" | "DYNAMIC" | "0");
        let key = action.get("metadata_key")?;
        let path = key.list("path").into_iter().map(|step| step.text_of("key"));
        Some((action, is_dynamic, key.text_of("key"), path.collect()))
    }

    /// Whether it gives back hits.
    pub(super) fn gives_back(&self) -> bool {
        let addend = self.value.get("hits_addend");
        addend.is_some_and(|addend| addend.is_true("is_negative_hits"))
    }
}

/// One action of an item.
#[derive(Clone, Copy, Debug)]
pub(super) struct ItemAction<'d> {
    /// Its name in the configuration; empty if it is unknown.
    pub(super) kind: &'static str,
    /// The settings of this kind.
    pub(super) value: EnvoyValue<'d>,
    /// The key of its entry; `None` if the action is unknown.
    pub(super) key: Option<&'d str>,
    /// The value of its entry, if that does not depend on the request.
    literal: Option<&'d str>,
}

/// The actions, each with its default key; one without needs `descriptor_key`.
const ACTIONS: [(&str, &str); 12] = [
    ("source_cluster", "source_cluster"),
    ("destination_cluster", "destination_cluster"),
    ("request_headers", ""),
    ("query_parameters", ""),
    ("remote_address", "remote_address"),
    ("masked_remote_address", "masked_remote_address"),
    ("remote_address_match", "remote_address_match"),
    ("generic_key", "generic_key"),
    ("header_value_match", "header_match"),
    ("query_parameter_value_match", "query_match"),
    ("metadata", ""),
    ("dynamic_metadata", ""),
];

impl<'d> ItemAction<'d> {
    fn new(action: EnvoyValue<'d>) -> Self {
        let known = ACTIONS.iter();
        let known = known.filter_map(|(kind, key)| Some((action.get(kind)?, *kind, *key)));
        let expression = action.at(&["extension", "typed_config"]);
        let expression = expression.map(|value| (value, "extension", ""));
        let found = known.chain(expression).next();
        let (value, kind, default_key) = found.unwrap_or((action, "", ""));
        let keys = [value.text_of("descriptor_key"), default_key];
        let literal = value.get("descriptor_value").and_then(EnvoyValue::text);
        Self {
            kind,
            value,
            key: keys.into_iter().find(|key| !key.is_empty()),
            // A value with a format command depends on the request.
            literal: literal.filter(|value| !value.contains('%')),
        }
    }
}
