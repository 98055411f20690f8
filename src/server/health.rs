//! Publishes health over HTTP and gRPC.

use tokio::sync::watch;

use tonic_health::{
    ServingStatus,
    pb::health_server::{Health as HealthService, HealthServer},
    server::HealthReporter,
};

use super::tasks::{OwnedTasks, Task};
use crate::service::admin::Health;

/// The service names in `grpc.health.v1`.
pub(super) const HEALTH_NAMES: [&str; 2] = ["", "ratelimit"];

/// The two services that report health.
#[derive(Clone)]
pub(super) struct HealthPublisher {
    pub(super) http: Health,
    pub(super) grpc: HealthReporter,
    /// Health is good while all these conditions are true.
    pub(super) conditions: Vec<watch::Receiver<bool>>,
}

impl HealthPublisher {
    /// A publisher and its gRPC service. They report bad health until the first update.
    pub(super) fn new(
        conditions: Vec<watch::Receiver<bool>>,
    ) -> (Self, HealthServer<impl HealthService>) {
        let (grpc, service) = tonic_health::server::health_reporter();
        let publisher = Self {
            http: Health::default(),
            grpc,
            conditions,
        };
        (publisher, service)
    }

    /// Reports the current health.
    pub(super) async fn update(&self) {
        self.set(self.conditions.iter().all(|is_so| *is_so.borrow()))
            .await;
    }

    /// Reports health to all clients.
    pub(super) async fn set(&self, is_good: bool) {
        self.http.set(is_good);
        let status = if is_good {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        for name in HEALTH_NAMES {
            self.grpc.set_service_status(name, status).await;
        }
    }

    /// Ends the clients' watches, because health will not change any more.
    pub(super) async fn close(&mut self) {
        for name in HEALTH_NAMES {
            self.grpc.clear_service_status(name).await;
        }
    }

    /// Starts tasks that report health whenever a condition changes.
    pub(super) fn follow_all(&self, tasks: &mut OwnedTasks) {
        for condition in self.conditions.clone() {
            tasks.start(Task::Health, self.clone().follow(condition));
        }
    }

    /// Reports health whenever `condition` changes.
    async fn follow(self, mut condition: watch::Receiver<bool>) {
        loop {
            self.update().await;
            if condition.changed().await.is_err() {
                return;
            }
        }
    }
}
