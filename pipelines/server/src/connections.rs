//! The open connections. There is a maximum of them. When it is reached, a new connection takes the place of the one
//! that has been idle the longest, so that connections on which nobody asks anything keep nobody out. Those without any
//! request so far go first: a client that has asked may ask again on its connection at this moment.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::body::Held;

/// The address of the client, as an extension of each request. For a request that another process of a cluster has
/// received, it is that process's client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client(pub SocketAddr);

/// All open connections.
pub(crate) struct Connections {
    places: Arc<Semaphore>,
    open: Arc<Mutex<HashMap<u64, Open>>>,
    next: AtomicU64,
    /// Told when a connection becomes idle.
    idle: Arc<Notify>,
}

struct Open {
    /// Running requests.
    running: usize,
    /// Whether it has had a request.
    was_used: bool,
    /// The end of the last request, or the connection's beginning.
    since: Instant,
    close: CancellationToken,
}

impl Connections {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(most)),
            open: Arc::default(),
            next: AtomicU64::new(0),
            idle: Arc::default(),
        }
    }

    /// Waits until a connection may be added. If there are too many, the longest idle one is closed for it; if all have
    /// running requests, the first one that becomes idle.
    pub(crate) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            return Some(place);
        }
        let place = self.places.clone().acquire_owned();
        tokio::pin!(place);
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            // From here on, it is told of every end of a request.
            idle.as_mut().enable();
            if self.close_idle() {
                return place.await.ok();
            }
            tokio::select! {
                place = place.as_mut() => return place.ok(),
                () = idle => {}
            }
        }
    }

    /// Adds a connection.
    pub(crate) fn add(&self, place: OwnedSemaphorePermit) -> Connection {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let close = CancellationToken::new();
        self.open.lock().insert(id, Open { running: 0, was_used: false, since: Instant::now(), close: close.clone() });
        Connection { id, close, open: self.open.clone(), idle: self.idle.clone(), _place: place }
    }

    /// Closes the longest idle connection, if there is an idle one.
    fn close_idle(&self) -> bool {
        let open = self.open.lock();
        let idle = open.values().filter(|open| open.running == 0 && !open.close.is_cancelled());
        let longest = idle.min_by_key(|open| (open.was_used, open.since));
        longest.inspect(|longest| longest.close.cancel()).is_some()
    }
}

/// An open connection; removed when dropped.
pub(crate) struct Connection {
    id: u64,
    close: CancellationToken,
    open: Arc<Mutex<HashMap<u64, Open>>>,
    idle: Arc<Notify>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// Returns when the connection must be closed for another one.
    pub(crate) async fn closed(&self) {
        self.close.cancelled().await;
    }

    /// Whether it has had a request, whose response may still be on its way.
    pub(crate) fn was_used(&self) -> bool {
        self.open.lock().get(&self.id).is_some_and(|open| open.was_used)
    }

    /// A service that counts the running requests of this connection, and tells them who the client is.
    pub(crate) fn counted<S>(&self, service: TowerToHyperService<S>, client: Client) -> Counted<S> {
        Counted { service, client, id: self.id, open: self.open.clone(), idle: self.idle.clone() }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.lock().remove(&self.id);
    }
}

/// See [`Connection::counted`].
pub(crate) struct Counted<S> {
    service: TowerToHyperService<S>,
    client: Client,
    id: u64,
    open: Arc<Mutex<HashMap<u64, Open>>>,
    idle: Arc<Notify>,
}

/// A running request, until its response is sent or dropped.
struct Running {
    id: u64,
    open: Arc<Mutex<HashMap<u64, Open>>>,
    idle: Arc<Notify>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(open) = self.open.lock().get_mut(&self.id) {
            open.running -= 1;
            open.since = Instant::now();
        }
        self.idle.notify_waiters();
    }
}

impl<S> Service<Request<Incoming>> for Counted<S>
where
    TowerToHyperService<S>: Service<Request<Incoming>, Response = axum::response::Response>,
    <TowerToHyperService<S> as Service<Request<Incoming>>>::Future: Send + 'static,
{
    type Response = hyper::Response<Body>;
    type Error = <TowerToHyperService<S> as Service<Request<Incoming>>>::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        if let Some(open) = self.open.lock().get_mut(&self.id) {
            open.running += 1;
            open.was_used = true;
        }
        let running = Running { id: self.id, open: self.open.clone(), idle: self.idle.clone() };
        request.extensions_mut().insert(self.client);
        let response = self.service.call(request);
        Box::pin(async move { Ok(response.await?.map(|body| Held::around(body, running))) })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn the_longest_idle_connection_makes_room() {
        let connections = Connections::new(2);
        let mut open = Vec::new();
        for _ in 0..2 {
            open.push(connections.add(connections.place().await.unwrap()));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // The older one has a request.
        connections.open.lock().get_mut(&open[0].id).unwrap().running = 1;
        let next = connections.place();
        futures::pin_mut!(next);
        assert!(futures::poll!(next.as_mut()).is_pending());
        open[1].closed().await;
        open.pop();
        let third = connections.add(next.await.unwrap());
        // Now both are busy: nothing is closed.
        connections.open.lock().get_mut(&third.id).unwrap().running = 1;
        let next = connections.place();
        futures::pin_mut!(next);
        assert!(futures::poll!(next.as_mut()).is_pending());
        assert!(!third.close.is_cancelled() && !open[0].close.is_cancelled());
        // The first that becomes idle is closed.
        drop(Running { id: third.id, open: third.open.clone(), idle: third.idle.clone() });
        assert!(futures::poll!(next.as_mut()).is_pending());
        assert!(third.close.is_cancelled() && !open[0].close.is_cancelled());
        drop(third);
        assert!(next.await.is_some());
    }

    #[tokio::test]
    async fn connections_that_were_used_go_last() {
        let connections = Connections::new(2);
        let used = connections.add(connections.place().await.unwrap());
        connections.open.lock().get_mut(&used.id).unwrap().was_used = true;
        tokio::time::sleep(Duration::from_millis(2)).await;
        let silent = connections.add(connections.place().await.unwrap());
        assert!(connections.close_idle());
        assert!(silent.close.is_cancelled() && !used.close.is_cancelled());
        assert!(connections.close_idle());
        assert!(used.close.is_cancelled());
        assert!(!connections.close_idle());
    }
}
