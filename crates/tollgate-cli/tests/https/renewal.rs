//! Certificates of the listener: renewal under load, invalid files, and expiry.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tollgate_testkit::Leaf;

use crate::harness::{read_answer, wait_for};
use crate::tls_service::{TlsService, with_caller};
use crate::tls_setup::{CHECK, done, run};

const DAY: u64 = 86_400;
const LATER: Option<(&str, &str)> = Some(("20200101000000Z", "20900101000000Z"));

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Opens a connection with the client certificate.
fn connect(tls: &TlsService) -> TlsStream {
    let files = &tls.certificates;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.authority).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let chain = vec![CertificateDer::from_pem_file(&files.client).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&files.client_key).unwrap();
    let config = config.unwrap().with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let socket = TcpStream::connect(tls.service.address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), socket)
}

fn check(stream: &mut TlsStream) -> u16 {
    let body = r#"{"user_id":"alice","endpoint":"/a"}"#;
    let request = format!(
        "POST /v1/rate-limit/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    read_answer(stream).status
}

/// Whether the server shows a certificate with this text on a new connection.
fn shows(tls: &TlsService, name: &str) -> bool {
    let mut stream = connect(tls);
    assert_eq!(check(&mut stream), 200);
    let certificate = &stream.conn.peer_certificates().unwrap()[0];
    certificate.windows(name.len()).any(|part| part == name.as_bytes())
}

#[test]
fn renewals_fail_no_request_of_open_connections() {
    const CONNECTIONS: usize = 6;
    let tls = TlsService::start(with_caller);
    let (is_done, requests) = (AtomicBool::new(false), AtomicU32::new(0));
    let send = || {
        let mut stream = connect(&tls);
        while !is_done.load(Ordering::Relaxed) {
            assert_eq!(check(&mut stream), 200);
            requests.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(send)).collect();
        for number in 1..=5 {
            let name = format!("renewed-{number}");
            let before = requests.load(Ordering::Relaxed);
            tls.renew(&format!("/CN={name}"));
            wait_for("the new certificate", || shows(&tls, &name).then_some(()));
            wait_for("requests on open connections", || {
                (requests.load(Ordering::Relaxed) > before + 100).then_some(())
            });
            assert!(clients.iter().all(|client| !client.is_finished()), "a request failed");
        }
        is_done.store(true, Ordering::Relaxed);
    });
    println!("{} requests on {CONNECTIONS} connections", requests.into_inner());
}

#[test]
fn renewal_under_load_fails_no_request() {
    let tls = TlsService::start(|_| String::new());
    let (is_done, requests) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let ran = run(&mut tls.command(&CHECK));
                assert_eq!(ran.code, 0, "{}", ran.stderr);
                requests.fetch_add(1, Ordering::Relaxed);
            }
        });
        for number in 1..=3 {
            let name = format!("renewed-{number}");
            tls.renew(&format!("/CN={name}"));
            wait_for("the new certificate", || tls.shows(&name).then_some(()));
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert!(requests.into_inner() > 0);
}

#[test]
fn invalid_certificate_keeps_the_old_one() {
    let tls = TlsService::start(|_| String::new());
    fs::write(&tls.certificates.server, "broken").unwrap();
    wait_for("the error", || {
        tls.service.log().contains("contains no certificate in PEM format").then_some(())
    });
    done(&mut tls.command(&CHECK));
    let ready = tls.readiness();
    let problem = ready["config_error"].as_str().unwrap_or_default();
    assert!(problem.contains("server.tls.certificate_file"), "{ready}");
    assert_eq!(ready["status"], "degraded");
    tls.renew("/CN=repaired");
    wait_for("the repaired certificate", || tls.shows("repaired").then_some(()));
    wait_for("readiness", || (tls.readiness()["status"] == "ready").then_some(()));
}

/// When the certificate of the server expires, by its metric.
fn expiry(tls: &TlsService) -> u64 {
    let metrics = tls.get("/metrics");
    let name = "tollgate_tls_certificate_expiry_timestamp_seconds{certificate=";
    let line = metrics.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(line.contains(tls.certificates.server.to_str().unwrap()), "{line}");
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn certificate_that_expires_soon_is_reported() {
    let tls = TlsService::start(|_| String::new());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert!((now + DAY..=now + 2 * DAY).contains(&expiry(&tls)), "{}", expiry(&tls));
    let warnings = |text: &str| tls.service.log().lines().filter(|line| line.contains(text)).count();
    assert_eq!(warnings("the certificate expires soon"), 1, "{}", tls.service.log());

    tls.replace(&Leaf { subject: "/CN=renewed", validity: LATER, ..Leaf::default() });
    wait_for("the new certificate", || tls.shows("renewed").then_some(()));
    wait_for("the metric", || (expiry(&tls) == 3_786_912_000).then_some(()));
    assert_eq!(warnings("the certificate expires soon"), 1, "{}", tls.service.log());

    let validity = Some(("20200101000000Z", "20200102000000Z"));
    tls.replace(&Leaf { subject: "/CN=expired", validity, ..Leaf::default() });
    wait_for("the warning", || {
        (warnings("the certificate has expired: clients reject it") == 1).then_some(())
    });
}
