use std::fs;
use std::io::ErrorKind;
use std::num::NonZeroU8;
use std::path::Path;

use tollgate::identity::{AddressSource, HeadCounting, IdNormalization, IpPrefixes, NormalForm};

use super::*;
use crate::auth::scope::Scope;

const FULL: &str = r#"
default_limit = 50
default_window = "1m"
[server]
listen = "0.0.0.0:9000"
data_dir = "/var/lib/tollgate"
connections_max = 50
header_timeout = "2s"
headers = ["draft-03", "draft-10"]
hosts = ["Gate.internal", "10.0.0.5", "fd00::5"]
[counters]
store = "memory"
keys_max = 1000
save_every = "5s"
[auth]
open_checks = false
override_max = 5000
[[auth.callers]]
name = "gateway"
key_sha256 = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eFF"
scopes = ["check", "read"]
[log]
format = "json"
level = "warn,tollgate_server=debug"
[identity]
client_address = "forwarded"
trusted_proxies = ["10.0.0.0/8", "192.0.2.7", "::ffff:172.16.0.0/108", "2001:db8::/32"]
trusted_proxy_depth = 2
ipv4_prefix = 24
ipv6_prefix = 56
nat64 = true
normalize = { user_id = "nfc+casefold", login = "casefold", descriptors = { mail = "nfc" } }
ignore_path_case = true
head = "separate"
[progressive_penalties]
enabled = true
[[rules]]
name = "monthly \"quoted\""
per = ["user", "descriptor:plan"]
when = { tiers = ["free"], endpoints = ["/api/*"], methods = ["GET"], ips = ["10.0.0.0/8"], descriptors = { plan = ["a", "b"] } }
algorithm = "fixed_window"
limits = [{ requests = 5, window = "month", anchor = 15, time_zone = "Europe/Berlin" }, { requests = 2, window = "week", anchor = "sunday" }]
response = { status = 503, message = "later", retry_after_floor = "2s" }
[[rules]]
name = "slow"
per = ["ip"]
action = "throttle"
limits = [{ requests = 5, window = "1s", burst = 3 }]
max_delay = "3s"
enabled = false
[[exemptions]]
type = "ip"
value = "192.0.2.1"
"#;

fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn load(flags: &Flags, pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    Settings::load(flags, variables(pairs).into_iter())
}

fn problems(error: &SettingsError) -> Vec<String> {
    error.lines()
}

#[test]
fn defaults_apply_without_any_source() {
    let settings = load(&Flags::default(), &[]).unwrap();
    assert_eq!(settings.listen, "127.0.0.1:8080".parse().unwrap());
    assert_eq!(settings.data_dir, Path::new("./tollgate-data"));
    assert_eq!(settings.server, ServerSettings::default());
    assert!(settings.auth.open_checks);
    assert_eq!(settings.rules.rules().len(), 1);
}

#[test]
fn every_key_is_read() {
    let settings = Settings::from_toml(FULL).unwrap();
    assert_eq!(settings.listen, "0.0.0.0:9000".parse().unwrap());
    assert_eq!(settings.data_dir, Path::new("/var/lib/tollgate"));
    assert_eq!(settings.server.connections_max, 50);
    assert_eq!(settings.server.connections_per_ip_max, 50, "capped by the total");
    assert_eq!(settings.server.header_timeout, Duration::from_secs(2));
    assert_eq!(settings.server.headers, [HeaderProfile::Draft03, HeaderProfile::Draft10]);
    assert_eq!(settings.server.hosts, ["gate.internal", "10.0.0.5", "[fd00::5]"].map(Box::from));
    let CounterSettings::Memory { bounds, save_every } = &settings.counters else { panic!() };
    assert_eq!((bounds.keys_max.get(), *save_every), (1000, Duration::from_secs(5)));
    assert!(!settings.auth.open_checks);
    let [caller] = &*settings.auth.callers else { panic!("{:?}", settings.auth.callers) };
    let Credential::KeySha256(key) = &caller.credential else { panic!("{caller:?}") };
    assert_eq!((&*caller.name, key[31]), ("gateway", 0xff));
    assert!(caller.scopes.has(Scope::Read) && !caller.scopes.has(Scope::Reset));
    assert_eq!(settings.log.format, LogFormat::Json);
    let proxies = ["10.0.0.0/8", "192.0.2.7/32", "172.16.0.0/12", "2001:db8::/32"];
    let policy = ClientAddressPolicy {
        source: AddressSource::Forwarded,
        trusted_proxies: proxies.map(|network| network.parse().unwrap()).to_vec(),
        depth: NonZeroU8::new(2),
    };
    assert_eq!(settings.client_address, policy);
    assert_eq!(settings.rules.ip_prefixes(), IpPrefixes { ipv4: 24, ipv6: 56 });
    assert!(settings.rules.nat64());
    let normalization = &settings.normalization;
    let folds = IdNormalization {
        user: NormalForm::NfcCasefold,
        tenant: NormalForm::Exact,
        login: NormalForm::Casefold,
    };
    assert_eq!(
        (normalization.ids, normalization.ignore_path_case, normalization.head),
        (folds, true, HeadCounting::Separate)
    );
    assert_eq!(
        (normalization.descriptors.of("mail"), normalization.descriptors.of("plan")),
        (NormalForm::Nfc, NormalForm::Exact)
    );
    assert_eq!(settings.auth.override_max, Some(5_000));
    assert_eq!(settings.rules.rules().len(), 4);
}

#[test]
fn environment_sets_normalization() {
    let environment = [
        ("TOLLGATE_IDENTITY__NORMALIZE__USER_ID", "nfc+casefold"),
        ("TOLLGATE_IDENTITY__NORMALIZE__DESCRIPTORS", "{ mail = \"casefold\" }"),
        ("TOLLGATE_IDENTITY__IGNORE_PATH_CASE", "true"),
        ("TOLLGATE_IDENTITY__HEAD", "separate"),
    ];
    let settings = load(&Flags::default(), &environment).unwrap();
    let normalization = &settings.normalization;
    assert_eq!(
        (normalization.ids.user, normalization.descriptors.of("mail")),
        (NormalForm::NfcCasefold, NormalForm::Casefold)
    );
    assert!(normalization.ignore_path_case && normalization.head == HeadCounting::Separate);
    let wrong = load(&Flags::default(), &[("TOLLGATE_IDENTITY__NORMALIZE__API_KEY", "nfc")]).unwrap_err();
    assert!(problems(&wrong)[0].starts_with("TOLLGATE_IDENTITY__NORMALIZE__API_KEY: "), "{wrong}");
}

#[test]
fn flags_override_environment_and_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tollgate.toml");
    fs::write(&file, "[server]\nlisten = \"127.0.0.1:1\"\nconnections_max = 1\ndata_dir = \"a\"").unwrap();
    let environment = [("TOLLGATE_SERVER__LISTEN", "127.0.0.1:2"), ("TOLLGATE_SERVER__CONNECTIONS_MAX", "2")];
    let flags =
        Flags { config: Some(file), listen: Some("127.0.0.1:3".parse().unwrap()), ..Flags::default() };
    let settings = load(&flags, &environment).unwrap();
    assert_eq!(settings.listen.port(), 3);
    assert_eq!(settings.server.connections_max, 2);
    assert_eq!(settings.data_dir, Path::new("a"));
}

#[test]
fn variable_is_a_toml_value_or_a_string() {
    let environment = [
        ("TOLLGATE_DEFAULT_LIMIT", "7"),
        ("TOLLGATE_DEFAULT_WINDOW", "90s"),
        ("TOLLGATE_SERVER__HEADERS", "[\"draft-06\"]"),
        ("TOLLGATE_SERVER__HOSTS", "gate.internal"),
        ("TOLLGATE_AUTH__OPEN_CHECKS", "false"),
        ("TOLLGATE_LOG__LEVEL", "\"debug\""),
        ("TOLLGATE_LOG__FORMAT", "pretty"),
    ];
    let settings = load(&Flags::default(), &environment).unwrap();
    assert_eq!(settings.rules.rules()[0].limits[0].limit.requests(), 7);
    assert_eq!(settings.server.headers, [HeaderProfile::Draft06]);
    assert_eq!(settings.server.hosts, [Box::from("gate.internal")]);
    assert!(!settings.auth.open_checks);
    assert_eq!((settings.log.format, &*settings.log.filter), (LogFormat::Pretty, "debug"));
}

#[test]
fn errors_name_the_environment_variable() {
    let environment = [
        ("TOLLGATE_SERVER__LISTEN", "here"),
        ("TOLLGATE_SERVER__LISTN", "127.0.0.1:80"),
        ("TOLLGATE_DEFUALT_LIMIT", "5"),
        ("TOLLGATE_SERVER__HEADERS", "[\"draft-99\"]"),
    ];
    let error = load(&Flags::default(), &environment).unwrap_err();
    let lines = problems(&error);
    assert_eq!(lines.len(), 4, "{error}");
    for start in [
        "TOLLGATE_SERVER__LISTEN: server.listen: \"here\" is not an IP address",
        "TOLLGATE_SERVER__LISTN: server.listn: unknown key (did you mean listen?)",
        "TOLLGATE_DEFUALT_LIMIT: defualt_limit: unknown key (did you mean default_limit?)",
        "TOLLGATE_SERVER__HEADERS: server.headers[0]: \"draft-99\" is not one of",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(start)), "{start}\n{error}");
    }
}

#[test]
fn section_that_is_not_a_table_is_reported() {
    let section = ("TOLLGATE_SERVER", "3");
    let key = ("TOLLGATE_SERVER__LISTEN", "127.0.0.1:80");
    for environment in [[section, key], [key, section]] {
        let error = load(&Flags::default(), &environment).unwrap_err();
        let lines = problems(&error);
        assert_eq!(lines.len(), 2, "{error}");
        for start in [
            "TOLLGATE_SERVER__LISTEN: server.listen: cannot be set: server is an integer, not a table",
            "TOLLGATE_SERVER: server: must be a table",
        ] {
            assert!(lines.iter().any(|line| line.starts_with(start)), "{start}\n{error}");
        }
    }
    let table = [("TOLLGATE_SERVER__LISTEN", "127.0.0.1:80"), ("TOLLGATE_SERVER", "{ connections_max = 5 }")];
    let settings = load(&Flags::default(), &table).unwrap();
    assert_eq!((settings.listen.port(), settings.server.connections_max), (80, 5), "both apply");
}

#[test]
fn cli_and_kubernetes_variables_are_ignored() {
    let environment = [
        ("TOLLGATE_URL", "http://localhost"),
        ("TOLLGATE_KEY", "secret"),
        ("TOLLGATE_CA_FILE", "ca.pem"),
        ("TOLLGATE_CERT_FILE", "client.pem"),
        ("TOLLGATE_CERT_KEY_FILE", "client.key"),
        ("TOLLGATE_CONFIG", "x.toml"),
        ("TOLLGATE_SERVICE_HOST", "10.0.0.1"),
        ("TOLLGATE_SERVICE_PORT_HTTP", "8080"),
        ("TOLLGATE_PORT", "tcp://10.0.0.1:8080"),
        ("TOLLGATE_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("TOLLGATE_REDIS_PORT", "tcp://10.0.0.2:6379"),
    ];
    assert!(load(&Flags::default(), &environment).is_ok());
}

#[test]
fn data_dir_follows_xdg() {
    let data_dir = |pairs: &[(&str, &str)]| load(&Flags::default(), pairs).unwrap().data_dir;
    assert_eq!(data_dir(&[("HOME", "/home/a")]), Path::new("/home/a/.local/share/tollgate"));
    let both = [("HOME", "/home/a"), ("XDG_DATA_HOME", "/data")];
    assert_eq!(data_dir(&both), Path::new("/data/tollgate"));
    assert_eq!(data_dir(&[("XDG_DATA_HOME", "relative"), ("HOME", "")]), Path::new("./tollgate-data"));
}

#[test]
fn settings_survive_a_round_trip() {
    for text in ["", FULL] {
        let shown = Settings::from_toml(text).unwrap().to_toml();
        let readable = shown.replace("***", &"ab".repeat(32));
        let again = Settings::from_toml(&readable).unwrap_or_else(|error| panic!("{error}\n{shown}"));
        assert_eq!(again.to_toml(), shown);
    }
}

#[test]
fn rule_without_leases_is_shown() {
    let text = "[[rules]]\nname = \"a\"\nper = [\"user\"]\nleases = false\nrequests_per_hour = 5";
    assert!(Settings::from_toml(text).unwrap().to_toml().contains("leases = false"));
}

#[test]
fn key_hashes_never_appear_in_output() {
    let settings = Settings::from_toml(FULL).unwrap();
    assert!(settings.to_toml().contains("key_sha256 = \"***\""));
    for text in [settings.to_toml(), format!("{settings:?}")] {
        assert!(!text.contains("000102030405") && !text.contains("0, 1, 2, 3, 4, 5"), "{text}");
    }
}

#[test]
fn key_in_place_of_its_hash_is_not_quoted() {
    let text = "[[auth.callers]]\nname = \"a\"\nkey_sha256 = \"canary-secret\"\nscopes = [\"read\"]";
    let error = Settings::from_toml(text).unwrap_err().to_string();
    assert!(!error.contains("canary") && error.contains("auth.callers[0].key_sha256"), "{error}");
}

#[test]
fn missing_huge_or_binary_file_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tollgate.toml");
    let flags = Flags { config: Some(file.clone()), ..Flags::default() };
    let error = || match load(&flags, &[]) {
        Err(SettingsError::Unreadable { source, .. }) => source.kind(),
        other => panic!("{other:?}"),
    };
    assert_eq!(error(), ErrorKind::NotFound);
    fs::write(&file, vec![b'#'; 16 * 1024 * 1024 + 1]).unwrap();
    assert_eq!(error(), ErrorKind::FileTooLarge);
    fs::write(&file, [0xff, 0xfe]).unwrap();
    assert_eq!(error(), ErrorKind::InvalidData);
}

#[test]
fn keys_that_require_a_restart_are_listed() {
    let old = Settings::from_toml("").unwrap();
    let new = "default_limit = 3\n[server]\nlisten = \"127.0.0.1:9\"\nheaders = []\nhosts = [\"a\"]\n[log]\nlevel = \"debug\"";
    let new = Settings::from_toml(new).unwrap();
    assert_eq!(old.needs_restart(&new), ["server.listen", "log"]);
    assert!(old.needs_restart(&Settings::from_toml("default_limit = 3").unwrap()).is_empty());
}

#[test]
fn redis_url_stands_for_the_counters_section() {
    let settings =
        Settings::from_toml("redis_url = \"redis://127.0.0.1:7001\"\nfailure_mode = \"fail_open\"").unwrap();
    let json = settings.to_json();
    assert_eq!((&json["counters"]["store"], &json["on_store_failure"]), (&"redis".into(), &"open".into()));
    assert_eq!(json["counters"]["url"], "redis://127.0.0.1:7001");
    let twice = "redis_url = \"redis://a\"\n[counters]\nstore = \"redis\"\nurl = \"redis://b\"";
    let error = Settings::from_toml(twice).unwrap_err().to_string();
    assert!(error.contains("redis_url: is another name of counters.url: keep one of them"), "{error}");
}
