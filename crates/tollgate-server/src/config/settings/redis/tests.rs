use std::path::Path;

use tollgate_testkit::Certificates;

use super::super::{CounterSettings, Flags, RedisCounterSettings, Settings};
use super::*;

fn counters(settings: &Settings) -> &RedisCounterSettings {
    match &settings.counters {
        CounterSettings::Redis(settings) => settings,
        other => panic!("{other:?}"),
    }
}

fn read(keys: &str) -> Settings {
    Settings::from_toml(&format!("[counters]\nstore = \"redis\"\n{keys}"))
        .unwrap_or_else(|error| panic!("{error}\n{keys}"))
}

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp { host: host.to_owned(), port }
}

#[test]
fn url_sets_server_credentials_database_and_tls() {
    let settings = read("url = \"rediss://gate:canary@redis.example:7000/3\"");
    let redis = &counters(&settings).redis;
    assert_eq!(redis.topology, Topology::Single(tcp("redis.example", 7000)));
    assert_eq!((redis.login.user.as_deref(), redis.database), (Some("gate"), 3));
    assert_eq!(redis.login.password, Some(Secret("canary".to_owned())));
    assert_eq!(redis.tls, Some(Tls::default()));
    assert_eq!(redis.timeout, Duration::from_millis(15));
    let socket = read("url = \"redis+unix:///run/redis.sock?db=2\"");
    let redis = &counters(&socket).redis;
    assert_eq!(redis.topology, Topology::Single(Address::Unix("/run/redis.sock".into())));
    assert_eq!(redis.database, 2);
}

#[test]
fn every_key_is_read() {
    let settings = read(
        "topology = \"ring\"\nnodes = [\"10.0.0.1:1\", \"[::1]:2\"]\nvirtual_nodes = 7\nuser = \"gate\"\n\
         password = \"canary\"\ndatabase = 4\nconnections = 3\ntimeout = \"8ms\"\nconnect_timeout = \"2s\"\n\
         leases = false\nrefusal_cache = false\nkeys_max = 99\ntls = { insecure = true }",
    );
    let RedisCounterSettings { redis, bounds, .. } = counters(&settings);
    let servers = vec![tcp("10.0.0.1", 1), tcp("::1", 2)];
    let virtual_nodes = NonZeroUsize::new(7).unwrap();
    let expected = RedisSettings {
        login: Login { user: Some("gate".to_owned()), password: Some(Secret("canary".to_owned())) },
        database: 4,
        tls: Some(Tls { insecure: true, ..Tls::default() }),
        connections: NonZeroUsize::new(3).unwrap(),
        timeout: Duration::from_millis(8),
        connect_timeout: Duration::from_secs(2),
        leases: false,
        refusal_cache: false,
        ..RedisSettings::new(Topology::Ring { servers, virtual_nodes })
    };
    assert_eq!(*redis, expected);
    assert_eq!(bounds.keys_max.get(), 99, "bounds of the fallback counters");
}

#[test]
fn url_sets_everything() {
    let settings = read(
        "url = \"rediss+ring://gate:canary@10.0.0.1:1,[::1]:2/4?virtual_nodes=7&connections=3&timeout=8ms\
         &connect_timeout=2&leases=false&refusal_cache=false\"\ntls = { insecure = true }",
    );
    let virtual_nodes = NonZeroUsize::new(7).unwrap();
    let servers = vec![tcp("10.0.0.1", 1), tcp("::1", 2)];
    let expected = RedisSettings {
        login: Login { user: Some("gate".to_owned()), password: Some(Secret("canary".to_owned())) },
        database: 4,
        tls: Some(Tls { insecure: true, ..Tls::default() }),
        connections: NonZeroUsize::new(3).unwrap(),
        timeout: Duration::from_millis(8),
        connect_timeout: Duration::from_secs(2),
        leases: false,
        refusal_cache: false,
        ..RedisSettings::new(Topology::Ring { servers, virtual_nodes })
    };
    assert_eq!(counters(&settings).redis, expected);

    let sentinels = "redis+sentinel://a,b:1/?sentinel_master=7&sentinel_user=s&sentinel_password=t";
    let login = Login { user: Some("s".to_owned()), password: Some(Secret("t".to_owned())) };
    let expected = Topology::Sentinel {
        sentinels: vec![tcp("a", 26379), tcp("b", 1)],
        master: "7".to_owned(),
        login: login.clone(),
    };
    assert_eq!(counters(&read(&format!("url = \"{sentinels}\""))).redis.topology, expected);
    let secret_apart =
        "url = \"redis+sentinel://a,b:1?sentinel_master=7&sentinel_user=s\"\nsentinel_password = \"t\"";
    assert_eq!(counters(&read(secret_apart)).redis.topology, expected);
    let cluster = Topology::Cluster(vec![tcp("a", 6379), tcp("b", 6379)]);
    for url in ["redis+cluster://a,b", "redis://a,b?topology=cluster", "valkey+cluster://a:6379,b"] {
        assert_eq!(counters(&read(&format!("url = \"{url}\""))).redis.topology, cluster, "{url}");
    }
    assert_eq!(counters(&read("url = \"redis://a,b\"\ntopology = \"cluster\"")).redis.topology, cluster);
}

#[test]
fn errors_in_the_url_do_not_quote_it() {
    for (keys, reason) in [
        (
            "url = \"redis://:canary@a?timout=5ms\"",
            "url: has an unknown parameter; known are topology, connections",
        ),
        ("url = \"redis://:canary@a?timeout=1h\"", "url: timeout: must be between"),
        ("url = \"redis://:canary@a?connections=many\"", "url: connections: "),
        (
            "url = \"redis://:canary@a?timeout=5ms\"\ntimeout = \"6ms\"",
            "timeout: is also in the url; set it once",
        ),
        ("url = \"redis+ring://:canary@a\"\ntopology = \"cluster\"", "topology: is also in the url"),
        ("url = \"redis://:canary@a,b\"", "url: several servers require topology"),
        ("url = \"redis+ring://:canary@a,a\"", "url: \"a:6379\" is listed twice"),
        ("url = \"redis+sentinel://:canary@a\"", "sentinel_master: is missing"),
        ("url = \"redis://:canary@a?virtual_nodes=3\"", "virtual_nodes: requires topology = \"ring\""),
        ("url = \"redis+cluster://:canary@a/3\"", "url: a cluster supports only database 0"),
        ("url = \"redis+raft://:canary@a\"", "url: topology: "),
    ] {
        let error =
            Settings::from_toml(&format!("[counters]\nstore = \"redis\"\n{keys}")).unwrap_err().to_string();
        assert!(error.contains(reason), "{keys}: {error}");
        assert!(!error.contains("canary"), "{error}");
    }
}

#[test]
fn sentinels_have_their_own_credentials() {
    let settings = read(
        "topology = \"sentinel\"\nnodes = [\"a:26379\"]\nsentinel_master = \"main\"\nsentinel_user = \"s\"\n\
         sentinel_password = \"t\"",
    );
    let login = Login { user: Some("s".to_owned()), password: Some(Secret("t".to_owned())) };
    let expected = Topology::Sentinel { sentinels: vec![tcp("a", 26379)], master: "main".to_owned(), login };
    assert_eq!(counters(&settings).redis.topology, expected);
}

#[test]
fn certificates_are_loaded_with_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let certificates = Certificates::create_in(folder.path());
    let (authority, own, key) = (&certificates.authority, &certificates.client, &certificates.client_key);
    let shown = |path: &Path| path.display().to_string();
    let settings = read(&format!(
        "url = \"rediss://localhost\"\n[counters.tls]\nca_file = {:?}\ncert_file = {:?}\nkey_file = {:?}",
        shown(authority),
        shown(own),
        shown(key)
    ));
    let tls = counters(&settings).redis.tls.as_ref().unwrap();
    assert_eq!(tls.authorities, std::fs::read(authority).ok());
    assert_eq!(tls.client_certificate, std::fs::read(own).ok().zip(std::fs::read(key).ok()));
    let again = Settings::from_toml(&settings.to_toml()).unwrap();
    assert_eq!(again.counters, settings.counters);
}

#[test]
fn environment_sets_redis_and_numeric_passwords() {
    let variables = [
        ("TOLLGATE_COUNTERS__STORE", "redis"),
        ("TOLLGATE_COUNTERS__TOPOLOGY", "cluster"),
        ("TOLLGATE_COUNTERS__NODES", "[\"a:1\", \"b:2\"]"),
        ("TOLLGATE_COUNTERS__PASSWORD", "0042"),
        ("TOLLGATE_COUNTERS__TLS__INSECURE", "true"),
    ];
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let settings = Settings::load(&Flags::default(), variables).unwrap();
    let redis = &counters(&settings).redis;
    assert_eq!(redis.topology, Topology::Cluster(vec![tcp("a", 1), tcp("b", 2)]));
    assert_eq!(redis.login.password, Some(Secret("0042".to_owned())));
    assert!(redis.tls.as_ref().is_some_and(|tls| tls.insecure));
}

#[test]
fn redis_settings_survive_a_round_trip() {
    for keys in [
        "url = \"redis://127.0.0.1:7000\"",
        "url = \"rediss://a:b@[::1]:7000/3\"",
        "url = \"redis+unix:///run/a%20b.sock\"\nconnections = 2",
        "topology = \"ring\"\nnodes = [\"a:1\", \"b:2\"]\ntls = { enabled = true }",
        "topology = \"modulo\"\nnodes = [\"a:1\"]\nuser = \"u\"\npassword = \"p\"",
        "topology = \"sentinel\"\nnodes = [\"a:1\"]\nsentinel_master = \"m\"\nsentinel_password = \"p\"",
    ] {
        let shown = read(keys).to_toml();
        let again = Settings::from_toml(&shown).unwrap_or_else(|error| panic!("{error}\n{shown}"));
        assert_eq!(again.to_toml(), shown);
        assert_eq!(counters(&again).redis.topology.servers(), counters(&read(keys)).redis.topology.servers());
    }
}

#[test]
fn redis_passwords_never_appear_in_output() {
    let valid = [
        "url = \"redis://u:canary@127.0.0.1\"",
        "url = \"redis://127.0.0.1\"\npassword = \"canary\"",
        "topology = \"sentinel\"\nnodes = [\"a:1\"]\nsentinel_master = \"m\"\nsentinel_password = \"canary\"",
    ];
    for settings in valid.map(read) {
        for text in [settings.to_toml(), format!("{settings:?}"), format!("{settings:#?}")] {
            assert!(!text.contains("canary"), "{text}");
        }
    }
    for invalid in [
        "url = \"redis//u:canary@127.0.0.1\"",
        "url = \"redis://u:canary@127.0.0.1:port\"",
        "url = \"redis://u:canary@127.0.0.1/zero\"",
        "url = [\"redis://:canary@a\"]",
        "topology = \"ring\"\nnodes = [\"redis://:canary@127.0.0.1:1\"]",
        "topology = \"ring\"\nnodes = [\"u:canary@127.0.0.1:1\"]",
        "url = \"redis://u:canary@127.0.0.1\"\npassword = \"canary\"",
    ] {
        let text = format!("[counters]\nstore = \"redis\"\n{invalid}");
        let error = Settings::from_toml(&text).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
    }
}

#[test]
fn unprotected_remote_servers_are_listed() {
    let unprotected = |keys: &str| {
        let settings = read(keys);
        counters(&settings).unprotected().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(unprotected("url = \"redis://10.0.0.1:7\""), ["10.0.0.1:7"]);
    assert_eq!(
        unprotected("topology = \"ring\"\nnodes = [\"redis.example:1\", \"localhost:2\", \"[::1]:3\"]"),
        ["redis.example:1"]
    );
    for protected in
        ["redis://127.0.0.1", "redis://:p@10.0.0.1", "rediss://10.0.0.1", "redis+unix:///run/r.sock"]
    {
        assert!(unprotected(&format!("url = \"{protected}\"")).is_empty(), "{protected}");
    }
}
