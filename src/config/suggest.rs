//! The name that a misspelt one stands for.

/// The candidate closest to `name`, ignoring letter case, if few changes of letters lead to it.
pub(crate) fn closest<'n>(
    name: &str,
    candidates: impl Iterator<Item = &'n str>,
) -> Option<&'n str> {
    let (distance, nearest) = nearest(name, candidates)?;
    (distance <= (nearest.len() / 3).max(2)).then_some(nearest)
}

/// The candidate closest to `name`, ignoring letter case, and the number of letters to change.
pub(crate) fn nearest<'n>(
    name: &str,
    candidates: impl Iterator<Item = &'n str>,
) -> Option<(usize, &'n str)> {
    // A long name is close to none; its first 64 characters show that.
    let name: String = name.chars().take(64).collect();
    let name = name.to_lowercase();
    let distances = candidates.map(|candidate| {
        let distance = strsim::levenshtein(&name, &candidate.to_lowercase());
        (distance, candidate)
    });
    distances.min_by_key(|(distance, _)| *distance)
}

/// The time zone that a wrong name stands for: one with this city, or one that is spelt much alike.
pub(super) fn closest_zone(name: &str) -> Option<String> {
    let zones = || jiff::tz::db().available();
    let has_this_city = |zone: &str| {
        let city = zone.rsplit('/').next().unwrap_or(zone);
        zone.contains('/') && city.eq_ignore_ascii_case(&name.trim().replace(' ', "_"))
    };
    if let Some(zone) = zones().find(|zone| has_this_city(zone.as_str())) {
        return Some(zone.as_str().to_owned());
    }
    // A name without a slash is an abbreviation, and its neighbours are other zones.
    if !name.contains('/') {
        return None;
    }
    let zones: Vec<_> = zones().map(|zone| zone.as_str().to_owned()).collect();
    closest(name, zones.iter().map(String::as_str)).map(str::to_owned)
}
