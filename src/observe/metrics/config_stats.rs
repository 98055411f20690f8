//! Counts of loads of rules, and the state of the connection to a control plane.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use crate::foundation::sample::SampleWriter;

/// Stats of the rules' way into the process.
#[derive(Debug, Default)]
pub(super) struct ConfigStats {
    loads_ok: AtomicU64,
    loads_failed: AtomicU64,
    /// Whether the control plane is connected; unset if rules come from files.
    control_plane: OnceLock<AtomicBool>,
}

impl ConfigStats {
    pub(super) fn record_load(&self, is_ok: bool) {
        let loads = if is_ok {
            &self.loads_ok
        } else {
            &self.loads_failed
        };
        loads.fetch_add(1, Relaxed);
    }

    pub(super) fn record_control_plane(&self, is_up: bool) {
        let control_plane = self.control_plane.get_or_init(AtomicBool::default);
        control_plane.store(is_up, Relaxed);
    }

    pub(super) fn samples(&self, list: &mut SampleWriter<'_>) {
        for (name, loads) in [
            ("config_load_success", &self.loads_ok),
            ("config_load_error", &self.loads_failed),
        ] {
            list.counter(format!("ratelimit.service.{name}"), loads.load(Relaxed));
        }
        if let Some(is_up) = self.control_plane.get() {
            list.gauge("tollgate.control_plane_up", is_up.load(Relaxed).into());
        }
    }
}
