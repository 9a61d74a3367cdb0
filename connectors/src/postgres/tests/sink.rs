use std::sync::atomic::AtomicUsize;

use turnflow_engine::component::SinkConfig;
use turnflow_engine::connector::{AnswerSink, ConnectorError, Delivery};
use turnflow_engine::record::AnswerRecord;

use super::*;
use crate::remote::may_pass;

fn answer(turn: u32, text: &str) -> AnswerRecord {
    AnswerRecord { turn, key: format!("k{turn}").into(), answer: text.into(), ..crate::testing::answer() }
}

fn deliver(sink: &mut PostgresSink, answers: &[AnswerRecord]) -> (usize, Result<(), ConnectorError>) {
    let taken = AtomicUsize::new(0);
    let ended = RUNTIME.block_on(sink.deliver(Delivery::new(answers, &taken)));
    (taken.into_inner(), ended)
}

#[test]
fn each_answer_is_in_the_table_once_however_often_it_is_delivered() {
    let Some(database) = Database::start("") else { return };
    let admin = database.admin();
    let mut sink = database.sink("table: \"public.answers\", create: true");
    let mut answers: Vec<AnswerRecord> = (1..=5).map(|turn| answer(turn, "Seven \0 years.")).collect();
    answers[4] = AnswerRecord { revision: 1, ..answers[0].clone() };
    for _ in 0..3 {
        let (taken, ended) = deliver(&mut sink, &answers);
        ended.unwrap();
        assert_eq!(taken, 5);
    }
    // A later process finds the table.
    deliver(&mut database.sink("table: \"public.answers\", create: true"), &answers).1.unwrap();
    assert_eq!(admin.all("SELECT key FROM answers ORDER BY ctid"), ["k1", "k2", "k3", "k4", "k1/1"]);
    let whole = "SELECT concat_ws('|', conversation_id, turn, revision, retracted, status, query, answer) FROM answers";
    assert_eq!(admin.one(whole), "c|1|0|f|answered|how long|Seven \u{fffd} years.");
    let in_record = "SELECT record->>'answer' || (record->'hits'->0->>'passage') FROM answers";
    assert_eq!(admin.one(in_record), "Seven \u{fffd} years.a.md#0");
}

#[test]
fn an_answer_that_the_table_refuses_is_refused_and_the_others_are_inserted() {
    let tables = "CREATE TABLE answers (key text PRIMARY KEY, conversation_id text, turn int CHECK (turn <> 3), \
                  revision int, retracted boolean, status text, query text, answer varchar(20), record jsonb)";
    let Some(database) = Database::start(tables) else { return };
    let mut sink = database.sink("table: \"public.answers\"");
    let answers: Vec<AnswerRecord> = (1..=5).map(|turn| answer(turn, "Yes.")).collect();
    let (taken, ended) = deliver(&mut sink, &answers);
    assert!(matches!(&ended, Err(ConnectorError::Refused { reason }) if reason.contains("23514")), "{ended:?}");
    assert_eq!(taken, 2);
    let (taken, ended) = deliver(&mut sink, &answers[3..]);
    ended.unwrap();
    assert_eq!(taken, 2);
    let long = deliver(&mut sink, &[answer(6, "This is too long for the column.")]).1;
    assert!(matches!(long, Err(ConnectorError::Refused { .. })), "{long:?}");
    // A key that is too long for an index.
    let noise: String =
        (0..20_000u32).map(|number| char::from(b'a' + (number.wrapping_mul(2_654_435_761) >> 24) as u8 % 26)).collect();
    let long = deliver(&mut sink, &[AnswerRecord { key: noise.into(), ..answer(7, "Yes.") }]).1;
    assert!(matches!(long, Err(ConnectorError::Refused { .. })), "{long:?}");
    assert_eq!(database.admin().all("SELECT key FROM answers ORDER BY key"), ["k1", "k2", "k4", "k5"]);
}

#[test]
fn a_table_or_a_server_that_is_missing_is_tried_again() {
    let Some(mut database) = Database::start("") else { return };
    let mut sink = database.sink("table: \"public.answers\", timeout_s: 5");
    let missing = deliver(&mut sink, &[answer(1, "Yes.")]).1.unwrap_err();
    assert!(may_pass(&missing) && missing.to_string().contains("42P01"), "{missing}");
    let create = "CREATE TABLE answers (key text PRIMARY KEY, conversation_id text, turn bigint, revision bigint, \
                  retracted boolean, status text, query text, answer text, record jsonb)";
    database.admin().run(create);
    deliver(&mut sink, &[answer(1, "Yes.")]).1.unwrap();
    database.server.down();
    // The process of the connection ends a moment later.
    let until = Instant::now() + PATIENCE;
    let away = loop {
        match deliver(&mut sink, &[answer(1, "Yes.")]).1 {
            Ok(()) => assert!(Instant::now() < until),
            Err(away) => break away,
        }
    };
    assert!(may_pass(&away), "{away}");
    database.server.up();
    deliver(&mut sink, &[answer(1, "Yes."), answer(2, "Yes.")]).1.unwrap();
    assert_eq!(database.admin().all("SELECT key FROM answers ORDER BY key"), ["k1", "k2"]);
}

#[test]
fn a_password_is_replaced_while_the_sink_runs() {
    let Some(database) = Database::start("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'one'") else { return };
    let admin = database.admin();
    let rules = "host all postgres 127.0.0.1/32 trust\nhost all app 127.0.0.1/32 scram-sha-256\n";
    std::fs::write(database.server.data().join("cluster/pg_hba.conf"), rules).unwrap();
    admin.run("SELECT pg_reload_conf()");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "one\n").unwrap();
    let url = format!("postgres://app@127.0.0.1:{}/postgres", database.server.port);
    let config = format!(
        "(input: \"a\", url: {url:?}, password: Some(File({file:?})), table: \"public.answers\", create: true)"
    );
    let config: PostgresSinkConfig = from_str(&config).unwrap();
    let mut sink = config.sink().unwrap();
    // The rules are read again a moment later.
    let wrong = PostgresSinkConfig { password: None, ..config.clone() };
    let until = Instant::now() + PATIENCE;
    while deliver(&mut wrong.sink().unwrap(), &[answer(1, "Yes.")]).1.is_ok() {
        assert!(Instant::now() < until);
    }
    deliver(&mut sink, &[answer(1, "Yes.")]).1.unwrap();
    admin.run("ALTER ROLE app PASSWORD 'two'");
    admin.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'");
    let until = Instant::now() + PATIENCE;
    let refused = loop {
        match deliver(&mut sink, &[answer(2, "Yes.")]).1 {
            Err(error) if error.to_string().contains("28P01") => break error,
            other => assert!(Instant::now() < until, "{other:?}"),
        }
    };
    assert!(may_pass(&refused) && !refused.to_string().contains("one"), "{refused}");
    std::fs::write(&file, "two\n").unwrap();
    deliver(&mut sink, &[answer(2, "Yes.")]).1.unwrap();
    assert_eq!(admin.one("SELECT count(*) FROM answers"), "2");
}

#[test]
fn what_is_wrong_in_a_config_is_told_without_its_secrets() {
    let config = |url: &str| -> PostgresSinkConfig {
        from_str(&format!("(input: \"a\", url: {url:?}, table: \"public.answers\")")).unwrap()
    };
    for url in ["postgres://app:hidden@db/x", "postgres://app@db/x?password=hidden", "postgres://a:hidden@"] {
        let error = config(url).sink().err().unwrap().to_string();
        assert!(error.contains("contains a password") && !error.contains("hidden"), "{error}");
        assert!(!config(url).explain().contains("hidden"));
    }
    for url in ["mysql://a@b/c", "postgres://db/x", "postgres://a@db/x?sslmode=maybe", "host=db user=a"] {
        assert!(config(url).sink().is_err(), "{url}");
    }
    for query in ["sslrootcert=/ca.pem", "sslmode=prefer&sslrootcert=/ca.pem", "sslmode=require&sslrootcert=ca.pem"] {
        let error = config(&format!("postgres://a@db/x?{query}")).sink().err().unwrap().to_string();
        assert!(error.contains("sslrootcert"), "{error}");
    }
    for url in [
        "postgres://a@db/x?sslmode=requir%65",
        "postgres://a@db/x?%73slmode=require",
        "postgres://a?b@db/x?sslmode=require",
    ] {
        let server = super::super::connect::Server::new(url, None, 1.0);
        assert!(server.is_err() || server.unwrap().is_verified(), "{url}");
    }
    let shown = config("postgres://a@db/x?sslmode=verify-full&sslrootcert=/a%20b.pem").explain();
    assert!(shown.contains("sslmode: require by `sslrootcert`"), "{shown}");
    let shown = config("postgres://app@db:5433/x?sslmode=require").explain();
    assert!(shown.starts_with("url: \"postgres://app@db:5433/x\", sslmode: require, table:"), "{shown}");
}

#[test]
fn a_connection_is_encrypted_and_its_certificate_is_checked_when_it_must_be() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

    let is_there = std::process::Command::new("openssl").arg("version").output().is_ok();
    if !is_there {
        println!("skipped: openssl is missing");
        return;
    }
    let configure = |data: &std::path::Path| {
        let cluster = data.join("cluster");
        let make = |name: &str, further: &[&str]| {
            let mut openssl = std::process::Command::new("openssl");
            openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-days", "2"]);
            openssl.args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.crt")]).args(further);
            let made = openssl.current_dir(&cluster).output().unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        };
        make("authority", &[]);
        make("stranger", &[]);
        let signed = ["-CA", "authority.crt", "-CAkey", "authority.key"];
        let names = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"];
        make("server", &[signed, names].concat());
        let owner = std::fs::metadata(&cluster).unwrap();
        let key = cluster.join("server.key");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        chown(&key, Some(owner.uid()), Some(owner.gid())).unwrap();
        std::fs::write(cluster.join("postgresql.auto.conf"), "ssl = on\n").unwrap();
    };
    let Some(server) = Server::configured(POSTGRES, configure) else { return };
    let database = Database { server };
    let admin = database.admin();
    let encrypted = "SELECT coalesce(bool_or(ssl), false) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                     WHERE application_name = 'turnflow'";
    let sink = |sslmode: &str| {
        let url = format!("{}?sslmode={sslmode}", database.url());
        let config = format!("(input: \"a\", url: {url:?}, table: \"public.answers\", create: true)");
        from_str::<PostgresSinkConfig>(&config).unwrap().sink().unwrap()
    };
    let mut prefer = sink("prefer");
    deliver(&mut prefer, &[answer(1, "Yes.")]).1.unwrap();
    assert_eq!(admin.one(encrypted), "t");
    drop(prefer);
    let file = |name: &str| database.server.data().join("cluster").join(name).display().to_string();
    let mut verified = sink(&format!("verify-full&sslrootcert={}", file("authority.crt")));
    deliver(&mut verified, &[answer(3, "Yes.")]).1.unwrap();
    assert_eq!(admin.one(encrypted), "t");
    drop(verified);
    let wrong = [("stranger.crt", "certificate"), ("server.key", "no certificate in PEM"), ("none.crt", "none.crt")];
    for (name, told) in wrong {
        let mut sink = sink(&format!("require&sslrootcert={}", file(name)));
        let error = deliver(&mut sink, &[answer(1, "Yes.")]).1.unwrap_err();
        assert!(may_pass(&error) && error.to_string().contains(told), "{name}: {error}");
    }
    // No one that the system knows has signed this certificate.
    let error = deliver(&mut sink("require"), &[answer(1, "Yes.")]).1.unwrap_err();
    assert!(may_pass(&error) && error.to_string().contains("certificate"), "{error}");
    admin.until(encrypted, "f");
    let mut disable = sink("disable");
    deliver(&mut disable, &[answer(2, "Yes.")]).1.unwrap();
    assert_eq!(admin.one(encrypted), "f");
}
