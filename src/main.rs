//! The `tollgate` program. Exit codes: 0 for success, 1 for failure, 2 for a bad command line.

use std::process::ExitCode;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    tollgate::run_command()
}
