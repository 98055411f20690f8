//! Combines the figures of several turns, and formats them for a table.

/// The median of a figure over all turns that have it.
pub fn median<T>(turns: &[T], pick: impl Fn(&T) -> Option<f64>) -> Option<f64> {
    let mut values: Vec<f64> = turns.iter().filter_map(pick).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

pub fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}
