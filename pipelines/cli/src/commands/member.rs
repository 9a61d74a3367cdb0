//! The options of a process that is one of a cluster.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use turnflow_engine::cluster::ClusterOptions;
use turnflow_engine::cluster::connect::{CertificateFiles, ConnectError, Secret};
use turnflow_engine::plan::Plan;
use turnflow_engine::run::RunError;
use turnflow_engine::state::StateError;

use super::{Fault, LOST, PipelineArgs};

/// Default of `--lost-after`, in seconds.
pub(super) const LOST_AFTER: u64 = 10;

/// The place of this process in a cluster.
#[derive(Args)]
pub(super) struct MemberArgs {
    /// The number of this process in a cluster, from 0. Every process indexes and searches its share of the documents.
    /// Process 0 reads the sources; those with partitions are read by all processes, if all of them may write the sinks.
    #[arg(long, value_name = "I", requires = "hosts")]
    process: Option<usize>,
    /// A file with the address of each process of the cluster, HOST:PORT in a line, in order. All processes need the same
    /// file.
    #[arg(long, value_name = "FILE", requires = "process")]
    hosts: Option<PathBuf>,
    /// A file with a secret of at least 16 bytes that all processes know. It or certificates are needed unless all of them
    /// are on this machine. Without certificates, the key by which processes know each other is made from it.
    #[arg(long, value_name = "FILE", requires = "process")]
    secret: Option<PathBuf>,
    /// A file with the certificate by which the other processes know this one, in PEM. It is valid for the host that this
    /// process has in the file of addresses, for servers and for clients.
    #[arg(long, value_name = "FILE", requires_all = ["process", "cluster_key", "cluster_ca"])]
    cluster_cert: Option<PathBuf>,
    /// A file with the private key of `--cluster-cert`, in PEM.
    #[arg(long, value_name = "FILE", requires = "cluster_cert")]
    cluster_key: Option<PathBuf>,
    /// A file with the certificates of the authorities that sign those of the processes, in PEM.
    #[arg(long, value_name = "FILE", requires = "cluster_cert")]
    cluster_ca: Option<PathBuf>,
    /// How long to wait for the other processes at the start, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "process")]
    wait: u64,
    /// After how many seconds without a sign of life another process is lost, so that this one ends too. Every process
    /// gives one each second, whatever it computes.
    #[arg(long, value_name = "SECONDS", default_value_t = LOST_AFTER, requires = "process",
        value_parser = clap::value_parser!(u64).range(3..))]
    lost_after: u64,
}

/// The addresses in a file: one in a line, without blank lines and comments (`#`).
pub(super) fn hosts_in(path: &Path) -> anyhow::Result<Vec<String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let hosts: Vec<String> = lines.filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if hosts.is_empty() {
        return Err(anyhow!("`{}` names no process: write HOST:PORT for each, one in a line", path.display()));
    }
    Ok(hosts)
}

impl MemberArgs {
    /// Whether this process is another one than the first of a cluster.
    pub fn is_follower(&self) -> bool {
        self.process.is_some_and(|process| process > 0)
    }

    fn certificates(&self) -> Option<CertificateFiles> {
        Some(CertificateFiles {
            certificate: self.cluster_cert.clone()?,
            key: self.cluster_key.clone()?,
            authorities: self.cluster_ca.clone()?,
        })
    }

    /// The options for the engine; `None` if this is no cluster.
    pub fn options(&self, pipeline: &PipelineArgs) -> Result<Option<ClusterOptions>, Fault> {
        let (Some(process), Some(hosts)) = (self.process, &self.hosts) else { return Ok(None) };
        let hosts = hosts_in(hosts).map_err(Fault::Told)?;
        let secret = self.secret.as_deref().map(read_secret).transpose().map_err(Fault::Told)?;
        let certificates = self.certificates();
        let pipeline = pipeline.clone();
        Ok(Some(ClusterOptions {
            process,
            hosts,
            secret,
            certificates,
            patience: Duration::from_secs(self.wait),
            lost_after: Duration::from_secs(self.lost_after),
            on_lost: Arc::new(move |lost| {
                eprintln!("error: process {process} ends: {lost}; when all processes are started again, they go on");
                // Nothing is cleaned up: a restart goes on from what is on the disk.
                signal_hook::low_level::exit(LOST.into());
            }),
            load: Arc::new(move || {
                let plan = pipeline.checked().0;
                plan.map(Plan::running).map_err(|problems| problems.render(false))
            }),
        }))
    }
}

fn read_secret(path: &Path) -> anyhow::Result<Secret> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    Ok(Secret::new(bytes.trim_ascii())?)
}

/// The fault of a run that could not start.
pub(super) fn failed(error: RunError) -> Fault {
    match error {
        RunError::Cluster(ConnectError::Config(error)) => Fault::Told(error.into()),
        RunError::Cluster(error) => Fault::Lost(error.into()),
        error @ (RunError::Divided { .. } | RunError::State(StateError::OfAnother { .. })) => Fault::Told(error.into()),
        error => Fault::Run(error.into()),
    }
}
