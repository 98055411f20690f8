//! `tollgate_build_info`: the program as it was built.

use crate::foundation::build;

/// The family that [`render`] writes; no sample may use this name.
pub(super) const NAME: &str = "tollgate_build_info";

/// The family in Prometheus' text format: always 1, with the facts as labels.
pub(crate) fn render() -> String {
    let (version, rustc) = (build::VERSION, build::RUSTC);
    let commit = match build::COMMIT {
        "" => "unknown",
        commit => commit,
    };
    format!(
        "# HELP {NAME} The version of this program, the commit that it was built from, and the compiler.\n\
         # TYPE {NAME} gauge\n\
         {NAME}{{version=\"{version}\",commit=\"{commit}\",rustc=\"{rustc}\"}} 1\n"
    )
}
