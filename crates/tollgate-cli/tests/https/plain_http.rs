//! http and https mix-ups, keys in clear text, and path prefixes.

use crate::harness::Service;
use crate::tls_setup::{CHECK, TlsSetup, done, error, run};

#[test]
fn https_to_a_plain_port_is_explained() {
    let setup = TlsSetup::start();
    // nginx and tollgate both answer in plain HTTP.
    let nginx = format!("https://localhost:{}", setup.proxy.redirecting_port());
    let tollgate = format!("https://{}", setup.service.address);
    for url in [nginx, tollgate] {
        let shown = error(setup.trusting(&CHECK).env("TOLLGATE_URL", &url));
        let why = "the server does not speak TLS on this port: use http:// for plain HTTP";
        assert_eq!(shown, format!("error: {url}: {why}\n"));
    }
}

#[test]
fn http_to_a_tls_port_is_explained() {
    let setup = TlsSetup::start();
    let url = format!("http://localhost:{}", setup.proxy.port());
    let shown = error(setup.trusting(&CHECK).env("TOLLGATE_URL", &url));
    let expected = format!("error: {url} does not accept plain HTTP: use https:// if it is a TLS port\n");
    assert_eq!(shown, expected);
}

#[test]
fn refused_and_closed_connections_are_explained() {
    let url = format!("https://127.0.0.1:{}", tollgate_testkit::free_port());
    let shown = error(crate::support::tollgate().args(CHECK).args(["--url", &url]));
    assert!(shown.starts_with(&format!("error: cannot connect to {url}: connection refused")), "{shown}");
    let listener = tollgate_testkit::listen();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || drop(listener.accept().unwrap()));
    let shown = error(crate::support::tollgate().args(CHECK).args(["--url", &url]));
    server.join().unwrap();
    assert!(
        shown.contains(
            "the server closed the connection without a response: use http:// if the port expects it"
        ),
        "{shown}"
    );
}

#[test]
fn redirects_are_reported_and_not_followed() {
    let setup = TlsSetup::start();
    let url = format!("http://localhost:{}", setup.proxy.redirecting_port());
    let shown = error(setup.trusting(&CHECK).env("TOLLGATE_URL", &url));
    let to = format!("{}/v1/rate-limit/check", setup.proxy.url());
    assert!(
        shown.starts_with(&format!("error: {url} redirects to {to}: redirects are not followed")),
        "{shown}"
    );
}

#[test]
fn key_in_clear_text_warns_once() {
    let service = Service::with_config("default_limit = 1000\n[server]\nhosts = [\"0.0.0.0\"]");
    let port = service.address.port();
    let sent = |host: &str, key: &str, args: &[&str]| {
        let mut command = crate::support::tollgate();
        command.args(args).env("TOLLGATE_URL", format!("http://{host}:{port}")).env("TOLLGATE_KEY", key);
        let ran = run(&mut command);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.stderr
    };
    // Linux routes this address to the local machine, but it is not a loopback address.
    let warned = sent("0.0.0.0", &service.admin_key(), &CHECK);
    let expected = format!("warning: the key is sent to http://0.0.0.0:{port} unencrypted: use https://\n");
    assert_eq!(warned, expected);
    // A command that sends two requests.
    let rules = crate::support::Files::new(&[("r.toml", "[[rules]]\nname = \"r\"\naction = \"allow\"\n")]);
    let warned = sent("0.0.0.0", &service.admin_key(), &["rules", "apply", &rules.path("r.toml")]);
    assert_eq!(warned.matches("warning:").count(), 1, "{warned}");
    assert_eq!(sent("127.0.0.1", &service.admin_key(), &CHECK), "");
    assert_eq!(sent("0.0.0.0", "", &CHECK), "");
}

#[test]
fn path_prefix_of_the_url_is_kept() {
    let setup = TlsSetup::start();
    for path in ["ratelimit", "ratelimit/", "decoded"] {
        let url = format!("{}/{path}", setup.proxy.url());
        let place = ["--user", &format!("{path}/b"), "--endpoint", "/api//v1/users"];
        done(setup.trusting(&[&["check"], &place[..]].concat()).env("TOLLGATE_URL", &url));
        // Also behind a proxy that decodes names in a path, the response is about the right user.
        let status = done(setup.trusting(&[&["status"], &place[..]].concat()).env("TOLLGATE_URL", &url));
        assert!(status.contains("9 of 10 left"), "{path}: {status}");
        done(setup.trusting(&["tiers", "list"]).env("TOLLGATE_URL", &url));
    }
    let put = ["quotas", "set", "a/b", "--requests-per-hour", "5"];
    let url = format!("{}/ratelimit", setup.proxy.url());
    done(setup.trusting(&put).env("TOLLGATE_URL", &url));
    assert!(done(setup.trusting(&["quotas", "get", "a/b"]).env("TOLLGATE_URL", &url)).contains("a/b"));
}
