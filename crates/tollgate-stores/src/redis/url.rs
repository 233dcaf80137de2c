//! Server URLs: `redis://user:password@host:6379/0?timeout=10ms`.
//!
//! Several servers are separated by commas, and the scheme may contain the topology: `redis+cluster://a:6379,b:6379`. The
//! settings interpret the parameters. Errors do not repeat the URL, which may contain a password.

use percent_encoding::percent_decode_str;

use super::settings::{Address, Login, Secret};

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// An invalid URL. The message does not repeat it, because it may contain a password.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected redis://user:password@host:6379/0, rediss://…, redis+cluster://host:6379,host:6379 or \
     redis+unix:///path"
)]
pub struct UrlError;

/// A parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    /// At least one.
    pub servers: Vec<Address>,
    /// User and password.
    pub login: Login,
    /// Database number; 0 by default.
    pub database: u32,
    /// Whether TLS is used.
    pub encrypted: bool,
    /// Query parameters, each name once, and `topology` from the scheme.
    pub parameters: Vec<(String, String)>,
}

impl ServerUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// When the URL is invalid.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(UrlError)?;
        if rest.contains('#') {
            return Err(UrlError);
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let parameters = parameters(query)?;
        match scheme {
            "redis+unix" | "valkey+unix" | "unix" => Self::socket(place, parameters),
            _ => Self::network(scheme, place, parameters),
        }
    }

    /// The value of a parameter.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// A socket has its login and database in the parameters.
    fn socket(path: &str, mut parameters: Vec<(String, String)>) -> Result<Self, UrlError> {
        let path = decoded(path)?;
        if !path.starts_with('/') || path.len() == 1 {
            return Err(UrlError);
        }
        let mut take = |name: &str| {
            let position = parameters.iter().position(|(known, _)| known == name)?;
            Some(parameters.swap_remove(position).1)
        };
        let database = take("db").map_or(Ok(0), |text| text.parse().map_err(|_| UrlError))?;
        let login = Login { user: take("user"), password: take("pass").map(Secret) };
        let servers = vec![Address::Unix(path.into())];
        Ok(ServerUrl { servers, login, database, encrypted: false, parameters })
    }

    fn network(scheme: &str, place: &str, mut parameters: Vec<(String, String)>) -> Result<Self, UrlError> {
        let (base, topology) = scheme.split_once('+').unwrap_or((scheme, ""));
        let encrypted = match base {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(UrlError),
        };
        if !topology.is_empty() {
            let is_given = parameters.iter().any(|(name, _)| name == "topology");
            if is_given {
                return Err(UrlError);
            }
            parameters.push(("topology".to_owned(), topology.to_owned()));
        }
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (self::login(login)?, hosts),
            None => (Login::default(), authority),
        };
        let port = if topology == "sentinel" { SENTINEL_PORT } else { PORT };
        let servers =
            hosts.split(',').map(|host| server(host, port).ok_or(UrlError)).collect::<Result<_, _>>()?;
        let database = if path.is_empty() { 0 } else { path.parse().map_err(|_| UrlError)? };
        Ok(ServerUrl { servers, login, database, encrypted, parameters })
    }
}

fn parameters(query: &str) -> Result<Vec<(String, String)>, UrlError> {
    let mut read: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or(UrlError)?;
        let (name, value) = (decoded(name)?, decoded(value)?);
        if read.iter().any(|(known, _)| *known == name) {
            return Err(UrlError);
        }
        read.push((name, value));
    }
    Ok(read)
}

fn login(text: &str) -> Result<Login, UrlError> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    let non_empty = |text: &str| decoded(text).map(|text| Some(text).filter(|text| !text.is_empty()));
    Ok(Login { user: non_empty(user)?, password: non_empty(password)?.map(Secret) })
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
fn server(text: &str, port: u16) -> Option<Address> {
    let is_v6 = text.starts_with('[');
    let has_port = if is_v6 { !text.ends_with(']') } else { text.contains(':') };
    let with_port = if has_port { text.to_owned() } else { format!("{text}:{port}") };
    let odd = |letter: char| !(letter.is_ascii_alphanumeric() || ".-_:[]".contains(letter));
    let is_one = is_v6 || text.matches(':').count() <= 1;
    Address::parse(&with_port).filter(|_| is_one && !text.contains(odd))
}

fn decoded(text: &str) -> Result<String, UrlError> {
    percent_decode_str(text).decode_utf8().map(Into::into).map_err(|_| UrlError)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn all_parts_of_a_url_are_parsed() {
        let url = ServerUrl::parse("rediss://g%40te:p%2F%3Fw@redis.example:7000/3?timeout=5ms&connections=4")
            .unwrap();
        assert_eq!((url.servers.as_slice(), url.database), ([tcp("redis.example", 7000)].as_slice(), 3));
        assert_eq!(url.login.user.as_deref(), Some("g@te"));
        assert_eq!(url.login.password, Some(Secret("p/?w".to_owned())));
        assert!(url.encrypted);
        assert_eq!((url.parameter("timeout"), url.parameter("connections")), (Some("5ms"), Some("4")));
    }

    #[test]
    fn several_servers_and_topology_are_parsed() {
        let url = ServerUrl::parse("redis+sentinel://a,b:1,[::1],[::2]:3/?sentinel_master=main").unwrap();
        assert_eq!(url.servers, [tcp("a", 26379), tcp("b", 1), tcp("::1", 26379), tcp("::2", 3)]);
        assert_eq!(
            (url.parameter("topology"), url.parameter("sentinel_master")),
            (Some("sentinel"), Some("main"))
        );
        assert_eq!(
            ServerUrl::parse("valkeys://:only@a").unwrap().login.password,
            Some(Secret("only".to_owned()))
        );
    }

    #[test]
    fn socket_url_has_login_and_database_parameters() {
        let url = ServerUrl::parse("redis+unix:///run/a%20b.sock?db=2&user=u&pass=p&timeout=9ms").unwrap();
        assert_eq!(url.servers, [Address::Unix("/run/a b.sock".into())]);
        assert_eq!((url.database, url.login.user.as_deref()), (2, Some("u")));
        assert_eq!(url.parameters, [("timeout".to_owned(), "9ms".to_owned())]);
    }

    #[test]
    fn invalid_url_is_rejected_without_repeating_it() {
        for text in [
            "",
            "redis",
            "redis:/a",
            "redis//u:canary@a",
            "redis://",
            "redis://:canary@",
            "http://canary",
            "redis://a/zero",
            "redis://a:port",
            "redis://a:0",
            "redis://a,,b",
            "redis://a b",
            "redis://canary@a/1/2",
            "redis://a?canary",
            "redis://a?x=1&x=2",
            "redis://a#canary",
            "redis://%ff:canary@a",
            "redis+unix://relative",
            "redis+unix:///",
            "redis+unix:///a?db=x",
            "redis+cluster://a?topology=ring",
            "redis://u:can?ary@a",
            "redis://::1",
        ] {
            let error = ServerUrl::parse(text).expect_err(text);
            assert!(!error.to_string().contains("canary"), "{text}");
        }
    }
}
