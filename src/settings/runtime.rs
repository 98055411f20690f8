//! Settings that find the folder of rules as envoyproxy/ratelimit does.

use std::path::PathBuf;

use clap::Args;

use super::shapes::ArgShape as _;
use super::values::file_path;

/// The reference's folder of rules. Every file in it counts, whatever its name.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Rules where envoyproxy/ratelimit keeps them")]
pub(crate) struct RuntimeSettings {
    /// First part of the folder's path; without --config-dir, this flag or the next makes tollgate find rule files as
    /// the reference does [default: /srv/runtime_data/current]
    #[arg(long, env = "RUNTIME_ROOT", value_parser = file_path, value_name = "DIR")]
    pub runtime_root: Option<PathBuf>,

    /// Middle part of the folder's path
    #[arg(long, env = "RUNTIME_SUBDIRECTORY", value_parser = file_path, value_name = "DIR")]
    pub runtime_subdirectory: Option<PathBuf>,

    /// Last part of the folder's path
    #[arg(long, env = "RUNTIME_APPDIRECTORY", text = ("DIR", "config"), value_parser = file_path)]
    pub runtime_app_directory: PathBuf,

    /// Ignore names that begin with a dot
    #[arg(long, env = "RUNTIME_IGNOREDOTFILES", boolean = false)]
    pub runtime_ignore_dot_files: bool,

    /// Treat the last part as a prefix of file names in the middle folder, with dots in place of slashes
    #[arg(long, env = "RUNTIME_WATCH_ROOT", boolean = true)]
    pub runtime_watch_root: bool,
}
