//! What the kit promises about the installed `redis-server`.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use tollgate_testkit::{RedisOptions, RedisServer, Reply, RespClient};

const PATIENCE: Duration = Duration::from_secs(10);

fn client(redis: &RedisServer) -> RespClient {
    RespClient::connect(redis.address(), PATIENCE).unwrap()
}

#[test]
fn replies_keep_their_types() {
    let redis = RedisServer::start();
    assert_eq!(redis.command(&[b"SET", b"k", b"\xff\r\n"]), Reply::Simple("OK".to_owned()));
    assert_eq!(redis.command(&[b"GET", b"k"]), Reply::Bulk(Some(b"\xff\r\n".to_vec())));
    assert_eq!(redis.command(&[b"GET", b"none"]), Reply::Bulk(None));
    assert_eq!(redis.command(&[b"INCR", b"n"]), Reply::Int(1));
    assert_eq!(
        redis.command(&[b"MGET", b"n", b"none"]).items(),
        [Reply::Bulk(Some(b"1".to_vec())), Reply::Bulk(None)]
    );
    assert!(redis.command(&[b"INCR", b"k"]).is_error());
    assert_eq!(redis.cli(&["MGET", "n", "n"]), "1\n1");
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{}", redis.port()));
}

#[test]
fn drop_stops_server_and_removes_folder() {
    let redis = RedisServer::start();
    let (pid, folder, address) = (redis.pid(), redis.folder().to_owned(), redis.address());
    drop(redis);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert!(!folder.exists());
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn servers_start_in_parallel() {
    let starts: Vec<_> = (0..8).map(|_| thread::spawn(RedisServer::start)).collect();
    let servers: Vec<RedisServer> = starts.into_iter().map(|start| start.join().unwrap()).collect();
    for (number, redis) in servers.iter().enumerate() {
        redis.cli(&["SET", "me", &number.to_string()]);
    }
    for (number, redis) in servers.iter().enumerate() {
        assert_eq!(redis.cli(&["GET", "me"]), number.to_string());
    }
}

#[test]
fn settings_survive_a_restart() {
    let redis = RedisServer::with(&["--maxmemory", "3mb", "--appendonly", "yes", "--appendfsync", "always"]);
    let (port, pid) = (redis.port(), redis.pid());
    redis.cli(&["SET", "k", "kept"]);
    redis.kill9();
    assert!(!redis.is_running());
    assert!(redis.try_command(&[b"PING"]).is_err());
    redis.restart();
    assert_eq!((redis.port(), redis.cli(&["GET", "k"])), (port, "kept".to_owned()));
    assert_ne!(redis.pid(), pid);
    assert_eq!(redis.cli(&["CONFIG", "GET", "maxmemory"]), "maxmemory\n3145728");
}

#[test]
fn nothing_is_persisted_by_default() {
    let redis = RedisServer::start();
    redis.cli(&["SET", "k", "v"]);
    redis.restart();
    assert_eq!(redis.cli(&["DBSIZE"]), "0");
    assert_eq!(redis.cli(&["DEBUG", "SLEEP", "0"]), "OK", "DEBUG is allowed");
}

#[test]
#[should_panic(expected = "Bad directive")]
fn invalid_setting_panics_with_server_log() {
    RedisServer::with(&["--no-such-setting", "1"]);
}

#[test]
fn frozen_server_keeps_connections_without_replying() {
    let redis = RedisServer::start();
    let mut client = RespClient::connect(redis.address(), Duration::from_millis(250)).unwrap();
    redis.freeze();
    assert_eq!(client.command(&[b"INCR", b"n"]).unwrap_err().kind(), ErrorKind::WouldBlock);
    redis.thaw();
    client.set_timeout(PATIENCE).unwrap();
    assert_eq!(client.receive().unwrap(), Reply::Int(1));
}

#[test]
fn statistics_and_scripts_are_accessible() {
    let redis = RedisServer::start();
    assert_eq!(redis.info("server")["tcp_port"], redis.port().to_string());
    for _ in 0..3 {
        redis.cli(&["ECHO", "hello"]);
    }
    assert_eq!((redis.commandstats("ECHO"), redis.commandstats("zadd")), (3, 0));
    let before = redis.memory_used();
    redis.command(&[b"SET", b"k", &vec![0; 1 << 20]]);
    assert!(redis.memory_used() > before + (1 << 20));
    redis.flush_all();
    assert_eq!(redis.cli(&["DBSIZE"]), "0");
    let sha = redis.cli(&["SCRIPT", "LOAD", "return 7"]);
    assert_eq!(redis.cli(&["EVALSHA", &sha, "0"]), "7");
    redis.script_flush();
    assert!(redis.cli(&["EVALSHA", &sha, "0"]).starts_with("NOSCRIPT"));
}

#[test]
fn kill_clients_spares_the_kit() {
    let redis = RedisServer::start();
    let mut clients = [client(&redis), client(&redis)];
    for client in &mut clients {
        client.command(&[b"PING"]).unwrap();
    }
    let received = redis.info("stats")["total_connections_received"].clone();
    assert_eq!(redis.kill_clients(), 2);
    for client in &mut clients {
        assert!(client.command(&[b"PING"]).is_err());
    }
    assert_eq!(redis.info("stats")["total_connections_received"], received, "the kit did not reconnect");
}

#[test]
fn password_is_required_of_clients() {
    let redis =
        RedisServer::start_with(&RedisOptions { password: Some("secret".into()), ..RedisOptions::default() });
    let mut client = client(&redis);
    assert!(client.command(&[b"PING"]).unwrap().to_string().starts_with("NOAUTH"));
    assert_eq!(client.command(&[b"AUTH", b"secret"]).unwrap().to_string(), "OK");
    assert_eq!(redis.url(), format!("redis://:secret@127.0.0.1:{}", redis.port()));
    assert_eq!(redis.cli(&["PING"]), "PONG");
}

#[test]
fn users_have_their_acl_permissions() {
    for acl_file in [false, true] {
        let users = vec!["default off".to_owned(), "reader on >secret ~* +get".to_owned()];
        let redis = RedisServer::start_with(&RedisOptions { users, acl_file, ..RedisOptions::default() });
        let mut client = client(&redis);
        assert!(client.command(&[b"GET", b"k"]).unwrap().to_string().starts_with("NOAUTH"));
        assert_eq!(client.command(&[b"AUTH", b"reader", b"secret"]).unwrap().to_string(), "OK");
        assert_eq!(client.command(&[b"GET", b"k"]).unwrap(), Reply::Bulk(None));
        assert!(client.command(&[b"SET", b"k", b"v"]).unwrap().to_string().starts_with("NOPERM"));
        assert_eq!(redis.command(&[b"ACL", b"LOAD"]).is_error(), !acl_file);
    }
}

#[test]
fn unix_socket_replies() {
    let redis = RedisServer::start_with(&RedisOptions { unix_socket: true, ..RedisOptions::default() });
    let mut stream = UnixStream::connect(redis.socket_path()).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
}

/// Replies to a TLS client that trusts `authority`, with or without a client certificate.
fn ping_over_tls(redis: &RedisServer, authority: &Path, with_certificate: bool) -> String {
    let files = redis.certificates();
    let mut command = Command::new("openssl");
    command.args(["s_client", "-quiet", "-verify_return_error", "-verify_hostname", "localhost"]);
    command.args(["-connect", &redis.tls_address().to_string()]).arg("-CAfile").arg(authority);
    if with_certificate {
        command.arg("-cert").arg(&files.client).arg("-key").arg(&files.client_key);
    }
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = piped.unwrap();
    let _ = child.stdin.take().unwrap().write_all(b"PING\r\nQUIT\r\n");
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

#[test]
fn tls_requires_a_trusted_ca() {
    let redis = RedisServer::start_with(&RedisOptions { tls: true, ..RedisOptions::default() });
    let authority = &redis.certificates().authority;
    assert_eq!(ping_over_tls(&redis, authority, false), "+PONG\r\n+OK\r\n");
    assert_eq!(ping_over_tls(&redis, authority, true), "+PONG\r\n+OK\r\n");
    assert_eq!(ping_over_tls(&redis, &redis.certificates().client, false), "", "an unrelated CA");
    assert_eq!(redis.tls_url(), format!("rediss://localhost:{}", redis.tls_address().port()));
}

#[test]
fn tls_can_require_client_certificates() {
    let args = RedisOptions::with_args(&["--tls-auth-clients", "yes"]);
    let redis = RedisServer::start_with(&RedisOptions { tls: true, ..args });
    let authority = &redis.certificates().authority;
    assert_eq!(ping_over_tls(&redis, authority, false), "");
    assert_eq!(ping_over_tls(&redis, authority, true), "+PONG\r\n+OK\r\n");
}
