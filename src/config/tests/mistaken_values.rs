//! Mistakes in the values of keys, and the line that each of them gets: numbers, units, lists and maps.

use super::mistakes::{check, check_bodies};

#[test]
fn a_number_is_whole_and_the_nearest_form_is_told() {
    check_bodies(&[
        (
            "rate_limit: {unit: second, requests_per_unit: 2.5}",
            "4:51: d.k: `requests_per_unit` must be a whole number from 0 to 9007199254740991, not 2.5",
        ),
        (
            "rate_limit: {unit: minute, requests_per_unit: 0.1}",
            "4:51: d.k: `requests_per_unit` must be a whole number from 0 to 9007199254740991, not 0.1",
        ),
        (
            "rate_limit: {unit: month, requests_per_unit: 2.5}",
            "4:50: d.k: `requests_per_unit` must be a whole number from 0 to 9007199254740991, not 2.5",
        ),
        (
            "rate_limit: {unit: second, requests_per_unit: 1e3}",
            "4:51: d.k: `requests_per_unit` must be a whole number from 0 to 9007199254740991, not 1e3",
        ),
        (
            "rate_limit: {unit: second, requests_per_unit: 5.0}",
            "4:51: d.k: `requests_per_unit` must be a whole number from 0 to 9007199254740991, not 5.0",
        ),
        (
            "rate_limit: {unit: second, requests_per_unit: 99999999999999999999999}",
            "4:51: d.k: `requests_per_unit` must be a whole number from 0 to 9007199254740991, \
                 not 99999999999999999999999",
        ),
        (
            "rate_limit: {unit: second, requests_per_unit: 9007199254740992}",
            "4:51: d.k: `requests_per_unit` must be a whole number from 0 to 9007199254740991, not 9007199254740992",
        ),
        (
            "rate_limit: {unit: second, requests_per_unit: -1}",
            "4:51: d.k: `requests_per_unit` must be a whole number from 0 to 9007199254740991, not -1",
        ),
    ]);
}

#[test]
fn a_text_in_the_place_of_a_number_is_told_with_the_number() {
    check_bodies(&[
        (
            "rate_limit: {unit: second, requests_per_unit: \"3\"}",
            "4:52: d.k: `requests_per_unit` must be a whole number from 0 to 9007199254740991, not \"3\"",
        ),
        (
            "rate_limit: {unit: second, requests_per_unit: five}",
            "4:51: d.k: `requests_per_unit` must be a whole number from 0 to 9007199254740991, not five",
        ),
        (
            "rate_limit: {unit: second, requests_per_unit: [5]}",
            "4:52: d.k: `requests_per_unit` must be a whole number from 0 to 9007199254740991, not a list",
        ),
        (
            "rate_limit: {unit: minute, requests_per_unit: 5, unit_multiplier: \"30\"}",
            "4:72: d.k: `unit_multiplier` must be a whole number, not \"30\"",
        ),
        (
            "rate_limit: {unit: minute, requests_per_unit: 5, unit_multiplier: 1.5}",
            "4:71: d.k: `unit_multiplier` must be a whole number, not 1.5",
        ),
        (
            "rate_limit: {unit: minute, requests_per_unit: 5, algorithm: token_bucket, burst: 1.5}",
            "4:86: d.k: `burst` must be a whole number, not 1.5",
        ),
    ]);
}

#[test]
fn a_unit_that_is_missing_or_misspelt_is_told_with_the_right_one() {
    check_bodies(&[
        (
            "rate_limit: {requests_per_unit: 3}",
            "4:18: d.k: `unit` is missing (second, minute, hour, day, week, month or year)",
        ),
        (
            "rate_limit: {unit: seconds, requests_per_unit: 3}",
            "4:18: d.k: invalid rate limit unit 'seconds' (second, minute, hour, day, week, month or year)",
        ),
        (
            "rate_limit: {unit: s, requests_per_unit: 3}",
            "4:18: d.k: invalid rate limit unit 's' (second, minute, hour, day, week, month or year)",
        ),
        (
            "rate_limit: {unit: MIN, requests_per_unit: 3}",
            "4:18: d.k: invalid rate limit unit 'MIN' (second, minute, hour, day, week, month or year)",
        ),
        (
            "rate_limit: {unit: secnod, requests_per_unit: 3}",
            "4:18: d.k: invalid rate limit unit 'secnod' (second, minute, hour, day, week, month or year)",
        ),
        (
            "rate_limit: {unit: fortnight, requests_per_unit: 3}",
            "4:18: d.k: invalid rate limit unit 'fortnight' (second, minute, hour, day, week, month or year)",
        ),
        (
            "rate_limit: {unit: [second], requests_per_unit: 3}",
            "4:25: d.k: `unit` must be a string, not a list",
        ),
        (
            "rate_limit: {unlimited: \"true\"}",
            "4:30: d.k: `unlimited` must be true or false, not \"true\"",
        ),
        (
            "rate_limit: {unlimited: 1}",
            "4:29: d.k: `unlimited` must be true or false, not 1",
        ),
        (
            "rate_limit: {unlimited: maybe}",
            "4:29: d.k: `unlimited` must be true or false, not maybe",
        ),
        (
            "rate_limit: {unit: day, requests_per_unit: 3, calendar: true, time_zone: Europe/Madird}",
            "4:78: d.k: unknown time_zone 'Europe/Madird' (an IANA name, such as Europe/Madrid or UTC)",
        ),
        (
            "rate_limit: {unit: day, requests_per_unit: 3, calendar: true, time_zone: madrid}",
            "4:78: d.k: unknown time_zone 'madrid' (an IANA name, such as Europe/Madrid or UTC)",
        ),
        (
            "rate_limit: {unit: day, requests_per_unit: 3, calendar: true, time_zone: new york}",
            "4:78: d.k: unknown time_zone 'new york' (an IANA name, such as Europe/Madrid or UTC)",
        ),
        (
            "rate_limit: {unit: day, requests_per_unit: 3, calendar: true, time_zone: PDT}",
            "4:78: d.k: unknown time_zone 'PDT' (an IANA name, such as Europe/Madrid or UTC)",
        ),
        (
            "rate_limit: {unit: day, requests_per_unit: 3, calendar: true, time_zone: Europe/Nowhere}",
            "4:78: d.k: unknown time_zone 'Europe/Nowhere' (an IANA name, such as Europe/Madrid or UTC)",
        ),
    ]);
}

#[test]
fn a_list_or_a_map_in_the_place_of_another_value_is_one_problem() {
    check_bodies(&[
        (
            "rate_limit: 5/s",
            "4:17: d.k: `rate_limit` must be a map, not 5/s",
        ),
        (
            "rate_limit: 5",
            "4:17: d.k: `rate_limit` must be a map, not 5",
        ),
        (
            "rate_limit: [5/s]",
            "4:18: d.k: `rate_limit` must be a map, not a list",
        ),
        (
            "rate_limit:\n  - unit: second\n    requests_per_unit: 3",
            "5:9: d.k: `rate_limit` must be a map, not a list",
        ),
        (
            "rate_limits: 5/s",
            "4:18: d.k: `rate_limits` must be a list, not 5/s",
        ),
        (
            "rate_limits: {unit: second, requests_per_unit: 3}",
            "4:19: d.k: `rate_limits` must be a list, not a map",
        ),
        (
            "rate_limits: [[5/s]]",
            "4:20: d.k: an item of this list must be a map, such as `key: NAME`, not a list",
        ),
    ]);
}

#[test]
fn a_list_or_a_map_in_the_place_of_a_text_is_one_problem() {
    check_bodies(&[
        (
            "value: [x, y]\nrate_limits: [5/s]",
            "4:13: d: `value` must be a string, not a list",
        ),
        (
            "value: [x]\nrate_limits: [5/s]",
            "4:13: d: `value` must be a string, not a list",
        ),
        (
            "value: {x: y}\nrate_limits: [5/s]",
            "4:13: d: `value` must be a string, not a map",
        ),
        (
            "descriptors: {key: b}",
            "4:19: d.k: `descriptors` must be a list, not a map",
        ),
        (
            "descriptors:\n  - a",
            "5:9: d.k: an item of this list must be a map, such as `key: NAME`, not a",
        ),
        (
            "descriptors:\n  -\n  - key: b",
            "5:8: d.k: an item of this list must be a map, such as `key: NAME`, not null",
        ),
        (
            "descriptors: a",
            "4:18: d.k: `descriptors` must be a list, not a",
        ),
        (
            "rate_limit: {unit: second, requests_per_unit: 3, replaces: [n]}",
            "4:65: d.k: an item of this list must be a map, such as `key: NAME`, not n",
        ),
        (
            "rate_limit: {unit: second, requests_per_unit: 3, replaces: other}",
            "4:64: d.k: `replaces` must be a list, not other",
        ),
        (
            "rate_limit: {unit: second, requests_per_unit: 3, replaces: {name: n}}",
            "4:65: d.k: `replaces` must be a list, not a map",
        ),
        (
            "rate_limit: {key: a, unit: second, requests_per_unit: 3}",
            "4:18: d.k: warning: `key` means nothing here and is ignored; it belongs to a descriptor, one level up",
        ),
        (
            "shadow_mode: \"yes\"\nrate_limits: [5/s]",
            "4:19: d.k: `shadow_mode` must be true or false, not \"yes\"",
        ),
        (
            "rate_limit: {<<: base, unit: day, requests_per_unit: 1}",
            "4:22: d.k: `<<` merges a map or a list of maps, not base; write an alias, such as `*name`",
        ),
        (
            "shadow_mode: [true]\nrate_limits: [5/s]",
            "4:19: d.k: `shadow_mode` must be true or false, not a list",
        ),
        (
            "value: 1.5\nrate_limits: [5/s]",
            "4:12: d.k_1.5: 1.5 is not a string, a whole number, a boolean or null; put it in quotes if it is a text",
        ),
    ]);
}

#[test]
fn a_list_or_a_map_at_the_top_of_a_file_is_one_problem() {
    check(&[
        (
            "domain: [a]\ndescriptors: []\n",
            "1:10: `domain` must be a string, not a list",
        ),
        (
            "domain: [a, b]\ndescriptors: []\n",
            "1:10: `domain` must be a string, not a list",
        ),
        (
            "domain: d\ndescriptors:\n  - key: [a]\n    rate_limits: [5/s]\n",
            "3:11: d: `key` must be a string, not a list",
        ),
        (
            "domain: d\ndescriptors:\n  - a\n",
            "3:5: d: an item of this list must be a map, such as `key: NAME`, not a",
        ),
        (
            "domain: d\ndescriptors:\n  - - key: a\n",
            "3:7: d: an item of this list must be a map, such as `key: NAME`, not a list",
        ),
        ("- domain: d\n", "1:3: the file must be a map, not a list"),
        ("hello\n", "1:1: the file must be a map, not hello"),
    ]);
}
