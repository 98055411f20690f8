//! Counts the steps of matching a value with wildcards, in unit tests and while fuzzing: its time grows with them.

/// Counts so many steps. A program does not count.
#[inline]
pub(super) fn take_steps(steps: usize) {
    #[cfg(any(test, fuzzing))]
    counter::STEPS.set(counter::STEPS.get() + steps);
    let _ = steps;
}

#[cfg(any(test, fuzzing))]
mod counter {
    use std::cell::Cell;

    thread_local!(pub(super) static STEPS: Cell<usize> = const { Cell::new(0) });
}

/// The steps that this thread has taken since it was last asked.
#[cfg(any(test, fuzzing))]
pub fn steps_taken() -> usize {
    counter::STEPS.take()
}
