//! A thread-local pool of large buffers. A future that waits for the store then holds a pointer instead
//! of two kilobytes, which would be moved when the future is boxed.

use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
    thread::LocalKey,
};

/// A type whose values the pool keeps for further use.
pub trait Poolable: Default + 'static {
    /// The unused values of this thread.
    fn idle() -> &'static LocalKey<IdleList<Self>>;

    /// Empties the value. Returns whether it is worth keeping: not if it has grown beyond the usual need
    /// of a request.
    fn clear(&mut self) -> bool;
}

pub(crate) type IdleList<T> = RefCell<Vec<Box<T>>>;

/// The most values that a thread keeps: about as many as calls that usually wait at a time.
const MAX_IDLE: usize = 256;

/// An empty value from the pool, which takes it back on drop.
#[derive(Debug)]
pub struct Pooled<T: Poolable>(
    /// `None` only during the drop.
    Option<Box<T>>,
);

impl<T: Poolable> Default for Pooled<T> {
    fn default() -> Self {
        let idle = T::idle().try_with(|idle| idle.borrow_mut().pop());
        Self(Some(idle.ok().flatten().unwrap_or_default()))
    }
}

impl<T: Poolable> Deref for Pooled<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl<T: Poolable> DerefMut for Pooled<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("it is there until it is dropped")
    }
}

impl<T: Poolable> Drop for Pooled<T> {
    fn drop(&mut self) {
        let Some(mut back) = self.0.take() else {
            return;
        };
        if back.clear() {
            // A thread that ends has dropped its list already.
            let _ = T::idle().try_with(|idle| {
                let mut idle = idle.borrow_mut();
                if idle.len() < MAX_IDLE {
                    idle.push(back);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static IDLE: IdleList<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }

    impl Poolable for Vec<u8> {
        fn idle() -> &'static LocalKey<IdleList<Self>> {
            &IDLE
        }

        fn clear(&mut self) -> bool {
            Vec::clear(self);
            self.capacity() < 1000
        }
    }

    #[test]
    fn what_comes_back_is_used_again_and_empty() {
        let mut first = Pooled::<Vec<u8>>::default();
        first.extend(b"abc");
        let place = first.as_ptr();
        let second = Pooled::<Vec<u8>>::default();
        assert_eq!(second.capacity(), 0);
        drop(first);
        let again = Pooled::<Vec<u8>>::default();
        assert!(again.is_empty());
        assert_eq!(again.as_ptr(), place);
    }

    #[test]
    fn what_has_grown_is_not_kept_and_no_more_than_are_needed() {
        let mut large = Pooled::<Vec<u8>>::default();
        large.resize(1000, 0);
        drop(large);
        assert_eq!(IDLE.with_borrow(Vec::len), 0);
        let many: Vec<_> = (0..MAX_IDLE + 10)
            .map(|_| Pooled::<Vec<u8>>::default())
            .collect();
        drop(many);
        assert_eq!(IDLE.with_borrow(Vec::len), MAX_IDLE);
    }
}
