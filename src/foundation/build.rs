//! The program as it was built: facts that `build.rs` of the package collects.

/// The version of the package.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit, from the variable TOLLGATE_COMMIT of the build; empty if it was not set.
pub(crate) const COMMIT: &str = env!("BUILT_FROM_COMMIT");

/// The version of the compiler.
pub(crate) const RUSTC: &str = env!("BUILT_BY_RUSTC");

/// The version, the commit if it is known, and the profile if it is not that of a release.
pub(crate) const VERSION_AND_COMMIT: &str =
    concat!(env!("CARGO_PKG_VERSION"), env!("BUILT_VERSION_SUFFIX"));
