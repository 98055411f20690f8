//! A bounded map that forgets what was not written for long.

use std::{
    borrow::Borrow,
    collections::HashMap,
    hash::{BuildHasher, Hash},
    mem,
};

/// A map in two generations. When the young one is full the old one is dropped, and the young one takes
/// its place: entries that are still of use have to be inserted again.
#[derive(Debug)]
pub(crate) struct Generations<K, V, S> {
    young: Generation<K, V, S>,
    old: Generation<K, V, S>,
    /// The most that the entries of one generation cost.
    max_cost: usize,
}

#[derive(Debug)]
struct Generation<K, V, S> {
    values: HashMap<K, V, S>,
    cost: usize,
}

impl<K, V, S: Default> Default for Generation<K, V, S> {
    fn default() -> Self {
        Self {
            values: HashMap::default(),
            cost: 0,
        }
    }
}

impl<K: Eq + Hash, V, S: BuildHasher + Default> Generations<K, V, S> {
    /// An empty map. All entries together cost at most twice `max_cost`, unless a single one costs more.
    pub(crate) fn new(max_cost: usize) -> Self {
        Self {
            young: Generation::default(),
            old: Generation::default(),
            max_cost,
        }
    }

    /// The latest value of `key`.
    pub(crate) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let young = self.young.values.get(key);
        young.or_else(|| self.old.values.get(key))
    }

    /// Inserts a value that costs `cost`. If that begins a new generation, returns how many entries the
    /// dropped one had.
    pub(crate) fn insert<Q>(&mut self, key: &Q, value: V, cost: usize) -> Option<usize>
    where
        Q: Eq + Hash + ToOwned + ?Sized,
        K: Borrow<Q> + From<Q::Owned>,
    {
        if let Some(known) = self.young.values.get_mut(key) {
            *known = value;
            return None;
        }
        let mut dropped = None;
        if self.young.cost + cost > self.max_cost {
            let oldest = mem::replace(&mut self.old, mem::take(&mut self.young));
            dropped = Some(oldest.values.len());
        }
        self.young.cost += cost;
        self.young.values.insert(key.to_owned().into(), value);
        dropped
    }

    /// Begins a new generation: all that was not inserted since the last one began is dropped.
    pub(crate) fn age(&mut self) {
        self.old = mem::take(&mut self.young);
    }

    /// How many values are kept; a key that is in both generations counts twice.
    pub(crate) fn len(&self) -> usize {
        self.young.values.len() + self.old.values.len()
    }

    /// The cost of all values.
    #[cfg(test)]
    pub(crate) fn cost(&self) -> usize {
        self.young.cost + self.old.cost
    }
}

#[cfg(test)]
mod tests {
    use std::collections::hash_map::RandomState;

    use super::*;

    fn generations(max_cost: usize) -> Generations<Box<str>, u32, RandomState> {
        Generations::new(max_cost)
    }

    #[test]
    fn a_full_generation_drops_the_one_before() {
        let mut map = generations(2);
        let dropped = ["a", "b", "c", "d", "e"].map(|key| map.insert(key, 1, 1));
        assert_eq!(dropped, [None, None, Some(0), None, Some(2)]);
        let kept = ["a", "b", "c", "d", "e"].map(|key| map.get(key).is_some());
        assert_eq!(kept, [false, false, true, true, true]);
        assert_eq!((map.len(), map.cost()), (3, 3));
    }

    #[test]
    fn the_latest_value_is_found_in_either_generation() {
        let mut map = generations(2);
        for (key, value) in [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5)] {
            map.insert(key, value, 1);
        }
        let found = ["a", "b", "c", "d"].map(|key| map.get(key).copied());
        assert_eq!(found, [Some(3), Some(5), Some(4), None]);
    }

    #[test]
    fn what_is_not_inserted_again_is_dropped_by_the_second_generation_after_it() {
        let mut map = generations(9);
        map.insert("a", 1, 1);
        map.age();
        map.insert("b", 1, 1);
        assert!(map.get("a").is_some());
        map.age();
        assert!(map.get("a").is_none() && map.get("b").is_some());
    }

    #[test]
    fn costs_are_added_up() {
        let mut map = generations(10);
        assert_eq!(map.insert("a", 1, 6), None);
        // It is not inserted once more.
        assert_eq!(map.insert("a", 2, 6), None);
        assert_eq!(map.insert("b", 1, 5), Some(0));
        assert_eq!(map.insert("c", 1, 5), None);
        assert_eq!(map.insert("d", 1, 1), Some(1));
        assert!(map.get("a").is_none());
    }
}
