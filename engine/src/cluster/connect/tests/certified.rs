//! Certificates from files: which ones connect processes, and why others do not.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;

use super::*;

const BOTH: [ExtendedKeyUsagePurpose; 2] = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];

/// An authority, and a directory for what it signs.
struct Authority {
    directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { directory, issuer: Issuer::new(params, key) }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// Signs a certificate for a host, which may be changed before, and writes it under a name.
    fn sign(&self, name: &str, host: &str, change: impl FnOnce(&mut CertificateParams)) -> CertificateFiles {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.extended_key_usages = BOTH.to_vec();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = CertificateFiles {
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
            authorities: self.path("ca.pem"),
        };
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }

    /// A process with a certificate for its host.
    fn member(&self, addresses: &Addresses, process: usize) -> Member {
        let host = addresses.hosts[process].rsplit_once(':').unwrap().0.to_owned();
        let certificates = Some(self.sign(&format!("process-{process}"), &host, |_| {}));
        Member { secret: None, certificates, ..addresses.member(process) }
    }
}

#[test]
fn processes_with_certificates_are_connected_with_a_secret_and_without() {
    let authority = Authority::new();
    for hosts in [["127.0.0.1"; 3], ["localhost", "127.0.0.2", "127.0.0.3"]] {
        for has_secret in [false, true] {
            let addresses = Addresses::of(&hosts);
            let secret = addresses.member(0).secret.filter(|_| has_secret);
            let member = |process| Member { secret: secret.clone(), ..authority.member(&addresses, process) };
            all((0..3).map(|process| start(member(process), 0)).collect());
        }
    }
    // Certificates are enough on a network.
    let addresses = Addresses::new(2);
    let mut member = authority.member(&addresses, 0);
    member.hosts[1] = "10.0.0.3:7100".to_owned();
    assert_eq!(member.check(), Ok(()));
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_the_cause() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let addresses = Addresses::new(2);
    let host = "127.0.0.1";
    let good = authority.sign("good", host, |_| {});
    let other = stranger.sign("other", host, |_| {});
    let write = |name: &str, text: &str| {
        std::fs::write(authority.path(name), text).unwrap();
        authority.path(name)
    };
    let with = |certificate: &Path, key: &Path, authorities: &Path| CertificateFiles {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        authorities: authorities.to_owned(),
    };
    let expired = authority.sign("expired", host, |params| params.not_after = date_time_ymd(2020, 1, 1));
    let early = authority.sign("early", host, |params| params.not_before = date_time_ymd(3000, 1, 1));
    let elsewhere = authority.sign("elsewhere", "node-3.example", |_| {});
    let server = authority.sign("server", host, |params| drop(params.extended_key_usages.pop()));
    let client = authority.sign("client", host, |params| drop(params.extended_key_usages.remove(0)));
    let none = write("none.pem", "no certificate\n");
    let torn = write("torn.pem", "-----BEGIN CERTIFICATE-----\nMIIB\n");
    let odd = write("odd.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let locked = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let locked = write("locked.key", locked);
    let missing = authority.path("missing.pem");
    let CertificateFiles { certificate, key, authorities } = &good;
    let cases = [
        (with(&missing, key, authorities), "missing.pem", "No such file"),
        (with(certificate, &missing, authorities), "missing.pem", "No such file"),
        (with(certificate, key, &missing), "missing.pem", "No such file"),
        (with(certificate, key, authority.directory.path()), "", "Is a directory"),
        (with(&none, key, authorities), "none.pem", "it has no certificate in PEM form"),
        (with(certificate, &none, authorities), "none.pem", "it has no private key in PEM form"),
        (with(certificate, &locked, authorities), "locked.key", "one with a password cannot be used"),
        (with(certificate, key, &none), "none.pem", "it has no certificate in PEM form"),
        (with(&torn, key, authorities), "torn.pem", "section end"),
        (with(&odd, key, authorities), "odd.pem", "it cannot be read as a certificate"),
        (with(certificate, key, &odd), "odd.pem", "it cannot be read as a certificate"),
        (with(certificate, &other.key, authorities), "other.key", "it is not the key of the certificate in `"),
        (with(&other.certificate, &other.key, authorities), "other.pem", "no authority in `"),
        (expired, "expired.pem", "it expired "),
        (early, "early.pem", "it is not valid yet"),
        (elsewhere, "elsewhere.pem", "not valid for name \"127.0.0.1\""),
        (server, "server.pem", "client"),
        (client, "client.pem", "server"),
    ];
    for (files, file, reason) in cases {
        let member = Member { certificates: Some(files), ..addresses.member(0) };
        let error = member.check().unwrap_err().to_string();
        let (named, why) = error.strip_prefix("cannot use `").and_then(|error| error.split_once("`: ")).unwrap();
        assert!(named.ends_with(file) && why.contains(reason), "{error}");
        // It is noticed before anything is waited for.
        assert_eq!(connect(&member, 0, LONG, &|| false).unwrap_err().to_string(), error);
    }
}

/// Starts process 0, and process 1 until its error has this text; then process 1 waits for an error of process 0.
fn refused(zero: Member, one: Member, at_one: &str, at_zero: &str) {
    let (waits, cancel) = start_cancellable(zero.clone(), 0);
    let error = impatient(&one, at_one);
    assert!(error.starts_with("process 0 ("), "{error}");
    cancel.store(true, Ordering::Relaxed);
    assert!(matches!(waits.join().unwrap(), Err(ConnectError::Cancelled)));
    let (waits, cancel) = start_cancellable(one, 0);
    let error = impatient(&zero, at_zero);
    assert!(error.starts_with("process 1 ("), "{error}");
    cancel.store(true, Ordering::Relaxed);
    assert!(matches!(waits.join().unwrap(), Err(ConnectError::Cancelled)));
}

#[test]
fn another_authority_is_refused_by_both_sides() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let addresses = Addresses::new(2);
    let (zero, one) = (authority.member(&addresses, 0), stranger.member(&addresses, 1));
    refused(
        zero.clone(),
        one.clone(),
        "its certificate is refused: no authority in `",
        "process-0.pem`): it does not know the authority that signed it",
    );
    // It trusts process 0, but is not trusted.
    let both = [&authority, &stranger].map(|of| std::fs::read_to_string(of.path("ca.pem")).unwrap()).concat();
    std::fs::write(stranger.path("ca.pem"), both).unwrap();
    refused(
        zero,
        one,
        "process-1.pem`): it does not know the authority that signed it",
        "its certificate is refused: no authority in `",
    );
}

#[test]
fn the_certificate_of_another_process_is_refused() {
    let authority = Authority::new();
    let addresses = Addresses::of(&["127.0.0.1", "127.0.0.2", "127.0.0.3"]);
    let [zero, one, two] = [0, 1, 2].map(|process| authority.member(&addresses, process));
    let tls = two.checked().unwrap();
    let listener = TcpListener::bind(&addresses.hosts[0]).unwrap();
    // Process 2 says that it is process 1.
    let says = thread::spawn({
        let (address, claim) = (addresses.hosts[0].clone(), claim(&one, None));
        move || drop(call(dial(&address), &tls, 0, &claim, Instant::now() + LONG))
    });
    let (stream, _) = listener.accept().unwrap();
    let refused = accept(stream, &zero.checked().unwrap(), Instant::now() + LONG).map(drop).unwrap_err().to_string();
    assert!(refused.starts_with("it says it is process 1, but its certificate is refused: "), "{refused}");
    assert!(refused.contains("127.0.0.2") && refused.contains("127.0.0.3"), "{refused}");
    says.join().unwrap();
    // Process 2 is where process 0 should be.
    thread::spawn(move || {
        let tls = two.checked().unwrap();
        while let Ok((stream, _)) = listener.accept() {
            assert!(accept(stream, &tls, Instant::now() + LONG).is_err());
        }
    });
    let error = impatient(&one, "its certificate is refused: ");
    assert!(error.starts_with("process 0") && error.contains("127.0.0.3"), "{error}");
}

#[test]
fn certificates_and_a_secret_alone_do_not_meet() {
    let authority = Authority::new();
    let addresses = Addresses::new(2);
    let mixed = "one of the two processes has certificates and the other has none";
    refused(authority.member(&addresses, 0), addresses.member(1), mixed, mixed);
    refused(addresses.member(0), authority.member(&addresses, 1), mixed, mixed);
    // The secret is compared beside the certificates.
    let differs = "it has another secret, or only one of the two processes has one";
    let secret = addresses.member(0).secret;
    refused(authority.member(&addresses, 0), Member { secret, ..authority.member(&addresses, 1) }, differs, differs);
}
