//! Statuses of calls that hold too much or take too long.

use std::time::Duration;

use tonic::Status;

use crate::{
    observe::metrics::CutOff,
    service::held_bytes::{Account, NoHeldRoom},
};

/// The status of a call that the bound has no room for.
pub(super) fn no_room(account: &Account, _: NoHeldRoom) -> Status {
    account.bound().note(CutOff::MESSAGE_NO_ROOM);
    Status::resource_exhausted("clients hold too much memory")
}

/// The status of a call whose message took longer than `timeout`.
pub(super) fn late(account: &Account, timeout: Duration) -> Status {
    account.bound().note(CutOff::MESSAGE_LATE);
    Status::deadline_exceeded(format!("the message did not arrive within {timeout:?}"))
}

/// The status of a message that is larger than it may be.
pub(super) fn too_large(bytes: usize, max_bytes: usize) -> Status {
    Status::resource_exhausted(format!(
        "message too large: {bytes} bytes, the limit is: {max_bytes} bytes"
    ))
}
