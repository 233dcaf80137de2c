//! Where `http` and `https` are mistaken for each other, keys that travel in the clear, and paths behind a proxy.

use crate::harness::Service;
use crate::ingress::{CHECK, Ingress, done, error, run};

#[test]
fn https_to_a_port_for_http_says_so() {
    let ingress = Ingress::start();
    // nginx and tollgate answer in HTTP that they do not understand.
    let nginx = format!("https://localhost:{}", ingress.proxy.redirecting_port());
    let tollgate = format!("https://{}", ingress.service.address);
    for url in [nginx, tollgate] {
        let told = error(ingress.trusting(&CHECK).env("TOLLGATE_URL", &url));
        let why = "the answer is not TLS: use http:// if that is a port for plain HTTP";
        assert_eq!(told, format!("error: {url}: {why}\n"));
    }
}

#[test]
fn http_to_a_port_for_tls_says_so() {
    let ingress = Ingress::start();
    let url = format!("http://localhost:{}", ingress.proxy.port());
    let told = error(ingress.trusting(&CHECK).env("TOLLGATE_URL", &url));
    let expected =
        format!("error: {url} does not speak plain HTTP: use https:// if that is a port for TLS\n");
    assert_eq!(told, expected);
}

#[test]
fn nobody_at_the_port_and_somebody_who_hangs_up_are_told() {
    let url = format!("https://127.0.0.1:{}", tollgate_testkit::free_port());
    let told = error(crate::common::tollgate().args(CHECK).args(["--url", &url]));
    assert!(told.starts_with(&format!("error: nothing answers at {url}: ")), "{told}");
    let listener = tollgate_testkit::listen();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || drop(listener.accept().unwrap()));
    let told = error(crate::common::tollgate().args(CHECK).args(["--url", &url]));
    server.join().unwrap();
    assert!(told.contains("the server hung up before TLS was agreed on"), "{told}");
}

#[test]
fn a_redirect_to_https_is_told_and_not_followed() {
    let ingress = Ingress::start();
    let url = format!("http://localhost:{}", ingress.proxy.redirecting_port());
    let told = error(ingress.trusting(&CHECK).env("TOLLGATE_URL", &url));
    let to = format!("{}/v1/rate-limit/check", ingress.proxy.url());
    assert!(told.starts_with(&format!("error: {url} redirects to {to}, which is not followed")), "{told}");
}

#[test]
fn a_key_that_leaves_the_machine_in_the_clear_is_warned_of_once() {
    let service = Service::with_config("default_limit = 1000");
    let port = service.address.port();
    let asked = |host: &str, key: &str, args: &[&str]| {
        let mut command = crate::common::tollgate();
        command.args(args).env("TOLLGATE_URL", format!("http://{host}:{port}")).env("TOLLGATE_KEY", key);
        let ran = run(&mut command);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.stderr
    };
    // Linux takes it for this machine; it is no name for it.
    let warned = asked("0.0.0.0", &service.admin_key(), &CHECK);
    let expected = format!(
        "warning: the key goes to http://0.0.0.0:{port} unencrypted, and who is on the way can read it: use https://\n"
    );
    assert_eq!(warned, expected);
    // A command that asks twice.
    let rules = crate::common::Files::new(&[("r.toml", "[[rules]]\nname = \"r\"\naction = \"allow\"\n")]);
    let warned = asked("0.0.0.0", &service.admin_key(), &["rules", "apply", &rules.path("r.toml")]);
    assert_eq!(warned.matches("warning:").count(), 1, "{warned}");
    assert_eq!(asked("127.0.0.1", &service.admin_key(), &CHECK), "");
    assert_eq!(asked("0.0.0.0", "", &CHECK), "");
}

#[test]
fn a_service_below_a_path_is_asked_there() {
    let ingress = Ingress::start();
    for path in ["ratelimit", "ratelimit/", "decoded"] {
        let url = format!("{}/{path}", ingress.proxy.url());
        let place = ["--user", &format!("{path}/b"), "--endpoint", "/api//v1/users"];
        done(ingress.trusting(&[&["check"], &place[..]].concat()).env("TOLLGATE_URL", &url));
        // Also where a proxy would decode names in a path, the answer is about whom was asked for.
        let status = done(ingress.trusting(&[&["status"], &place[..]].concat()).env("TOLLGATE_URL", &url));
        assert!(status.contains("9 of 10 left"), "{path}: {status}");
        done(ingress.trusting(&["tiers", "list"]).env("TOLLGATE_URL", &url));
    }
    let put = ["quotas", "set", "a/b", "--requests-per-hour", "5"];
    let url = format!("{}/ratelimit", ingress.proxy.url());
    done(ingress.trusting(&put).env("TOLLGATE_URL", &url));
    assert!(done(ingress.trusting(&["quotas", "get", "a/b"]).env("TOLLGATE_URL", &url)).contains("a/b"));
}
