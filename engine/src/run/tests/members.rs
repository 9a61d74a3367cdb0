//! The processes of a cluster, as engines of this process.

use std::net::TcpListener;

use super::*;
use crate::cluster::ClusterOptions;

/// The engines of a cluster.
pub(super) struct Members {
    pub engines: Vec<Engine>,
    /// The pipeline's file, as the other processes read it for a reload.
    file: Arc<Mutex<String>>,
    plan: fn(&str) -> Plan,
}

impl Members {
    /// Starts a cluster. Each process has its own options; one process is no cluster.
    pub fn start(
        plan: fn(&str) -> Plan,
        text: &str,
        processes: usize,
        options: impl Fn(usize) -> Options + Sync,
    ) -> Self {
        let listeners: Vec<_> = (0..processes).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let hosts: Vec<String> = listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
        drop(listeners);
        let file = Arc::new(Mutex::new(text.to_owned()));
        let options = |process: usize| {
            let file = file.clone();
            let cluster = (processes > 1).then(|| ClusterOptions {
                process,
                hosts: hosts.clone(),
                secret: None,
                certificates: None,
                patience: PATIENCE,
                lost_after: PATIENCE,
                on_lost: Arc::new(|lost| eprintln!("{lost}")),
                load: Arc::new(move || Ok(plan(&file.lock()))),
            });
            Options { cluster, ..options(process) }
        };
        let engines = std::thread::scope(|scope| {
            let start = |process: usize| {
                let options = options(process);
                scope.spawn(move || Engine::start(plan(text), options).unwrap())
            };
            let starting: Vec<_> = (0..processes).map(start).collect();
            starting.into_iter().map(|starting| starting.join().unwrap()).collect()
        });
        Self { engines, file, plan }
    }

    pub fn reload(&self, text: &str) {
        text.clone_into(&mut self.file.lock());
        self.engines[0].reload((self.plan)(text), &|| false).unwrap();
    }

    /// Asserts that no process has failed.
    pub fn check(&self) {
        self.engines.iter().for_each(|engine| engine.check().unwrap());
    }

    /// Waits for the end.
    pub fn end(self) {
        until("the end", || self.engines.iter().all(Engine::has_ended));
        std::thread::scope(|scope| {
            let joining: Vec<_> = self.engines.into_iter().map(|engine| scope.spawn(|| engine.join())).collect();
            joining.into_iter().for_each(|joining| joining.join().unwrap().unwrap());
        });
    }

    pub fn stop(self) {
        self.engines[0].stop();
        self.end();
    }
}
