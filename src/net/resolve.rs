//! Addresses of names.
//!
//! The resolver of the C library takes a thread for each name and cannot be stopped: a caller that waits no longer
//! leaves its thread behind. So look-ups have a bound over the whole process.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
};

use tokio::sync::Semaphore;

use crate::foundation::blocking::blocking;

/// Threads that may look up names at a time. Further names wait for one of these, within the time that their connection
/// may take.
const MAX_LOOKUPS: usize = 8;

static LOOKUPS: Semaphore = Semaphore::const_new(MAX_LOOKUPS);

/// The addresses of `host`, a name or an IP address, each with `port`.
///
/// # Errors
///
/// If the resolver does not know the name.
pub(crate) async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let host = host.to_owned();
    bounded(&LOOKUPS, move || {
        Ok((host, port).to_socket_addrs()?.collect())
    })
    .await
}

/// Runs `work` on a thread that keeps one of `permits` to the end of the work, also if the caller waits no longer.
async fn bounded<T: Send + 'static>(
    permits: &'static Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let permit = permits.acquire().await.expect("it is never closed");
    blocking(move || {
        let done = work();
        drop(permit);
        done
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, mpsc},
        time::Duration,
    };

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn an_address_is_its_own_and_a_name_is_looked_up() {
        for (host, expected) in [
            ("192.0.2.1", "192.0.2.1:7"),
            ("2001:db8::1", "[2001:db8::1]:7"),
        ] {
            assert_eq!(resolve(host, 7).await.unwrap(), [expected.parse().unwrap()]);
        }
        let found = resolve("localhost", 7).await.unwrap();
        assert!(found.iter().all(|found| found.ip().is_loopback()));
        assert!(!found.is_empty());
        resolve("no host", 7).await.unwrap_err();
    }

    #[tokio::test]
    async fn work_that_hangs_keeps_its_permit_though_its_caller_is_gone() {
        static TWO: Semaphore = Semaphore::const_new(2);
        let (answer, answers) = mpsc::channel();
        let answers = Arc::new(std::sync::Mutex::new(answers));
        let hang = || {
            let answers = answers.clone();
            let hanging = bounded(&TWO, move || answers.lock().unwrap().recv().unwrap());
            timeout(Duration::from_millis(1), hanging)
        };
        for _ in 0..3 {
            hang().await.unwrap_err();
        }
        assert_eq!(TWO.available_permits(), 0);
        for number in 1..=2 {
            answer.send(number).unwrap();
        }
        assert_eq!(bounded(&TWO, || 7).await, 7);
    }
}
