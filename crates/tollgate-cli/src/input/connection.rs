//! The server and key to use: flags and environment first, then `~/.config/tollgate/config.toml`.
//!
//! The key and certificates in that file belong to the server in that file. With `--url` naming another server, neither
//! the key is sent to it nor the file's CA trusted for it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use tollgate::config::{Document, Problems, Value, values};

use crate::client::url::ServerUrl;
use crate::client::{ClientError, TlsFiles};
use crate::secret::Secret;
use crate::{CliError, Client};

/// Where `tollgate serve` listens by default.
const URL_DEFAULT: &str = "http://127.0.0.1:8080";

/// The flags that name a server and its credentials.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct ConnectionArgs {
    /// URL of the server; `http://127.0.0.1:8080` by default
    #[arg(long, global = true, env = "TOLLGATE_URL", hide_env_values = true)]
    url: Option<String>,
    /// API key; prefer `TOLLGATE_KEY` or a file, because other users can see command lines
    #[arg(long, global = true, env = "TOLLGATE_KEY", hide_env_values = true)]
    key: Option<Secret>,
    /// For https://: CA certificates (PEM) to trust in addition to the system's
    #[arg(long, global = true, value_name = "FILE", env = "TOLLGATE_CA_FILE", hide_env_values = true)]
    ca_file: Option<OsString>,
    /// For https://: client certificate (PEM)
    #[arg(long, global = true, value_name = "FILE", env = "TOLLGATE_CERT_FILE", hide_env_values = true)]
    cert_file: Option<OsString>,
    /// Private key (PEM) of the client certificate, if not in the same file
    #[arg(long, global = true, value_name = "FILE", env = "TOLLGATE_CERT_KEY_FILE", hide_env_values = true)]
    cert_key_file: Option<OsString>,
}

impl ConnectionArgs {
    /// The certificate files in flags and environment. An empty name counts as missing.
    fn tls_files(&self) -> TlsFiles {
        let path = |name: &Option<OsString>| name.as_ref().filter(|name| !name.is_empty()).map(PathBuf::from);
        TlsFiles { ca: path(&self.ca_file), cert: path(&self.cert_file), cert_key: path(&self.cert_key_file) }
    }
}

/// The contents of `config.toml`.
#[derive(Default)]
struct ConfigFile {
    url: Option<String>,
    key: Option<Secret>,
    key_file: Option<PathBuf>,
    tls: TlsFiles,
}

/// A client for the server in the flags, the environment or the config file.
pub(crate) fn connect(args: &ConnectionArgs) -> Result<Client, CliError> {
    let key = args.key.clone().filter(|key| !key.reveal().is_empty());
    let url = args.url.as_deref().map(parse_url).transpose()?;
    // The config file has nothing to add.
    if let (Some(url), Some(_)) = (&url, &key)
        && !url.is_tls()
    {
        return new_client(url.clone(), key, &TlsFiles::default());
    }
    let Some(path) = config_path() else {
        return new_client(url.map_or_else(|| parse_url(URL_DEFAULT), Ok)?, key, &args.tls_files());
    };
    let config = read_config(&path)?;
    let config_url = parse_url(config.url.as_deref().unwrap_or(URL_DEFAULT))?;
    let config_key = || read_key(&config, &path);
    if let Some(url) = url.filter(|url| *url != config_url) {
        let unsent = if key.is_none() { config_key()? } else { None };
        let path = path.display();
        let hint =
            || format!("hint: the key in {path} is for {config_url} and was not sent: set TOLLGATE_KEY");
        return Ok(new_client(url, key, &args.tls_files())?.with_hint(unsent.map(|_| hint())));
    }
    let key = key.map_or_else(config_key, |key| Ok(Some(key)))?;
    new_client(config_url, key, &merge_tls_files(args.tls_files(), &config.tls, &path))
}

fn parse_url(url: &str) -> Result<ServerUrl, CliError> {
    Ok(ServerUrl::parse(url).map_err(ClientError::Url)?)
}

fn new_client(url: ServerUrl, key: Option<Secret>, files: &TlsFiles) -> Result<Client, CliError> {
    let tls = url.is_tls();
    let client = Client::new(url, key, files)?;
    let private = files.cert_key.as_ref().or(files.cert.as_ref());
    if let Some(file) = private.filter(|_| tls) {
        // Group-readable is allowed: non-root pods get their secrets that way.
        require_private(file, 0o027)?;
    }
    Ok(client)
}

/// Flags override the config file. A certificate and its key come from the same source.
fn merge_tls_files(args: TlsFiles, config: &TlsFiles, config_path: &Path) -> TlsFiles {
    let located = |named: &Option<PathBuf>| named.as_ref().map(|named| locate(named, config_path));
    let ca = args.ca.or_else(|| located(&config.ca));
    if args.cert.is_some() || args.cert_key.is_some() {
        return TlsFiles { ca, ..args };
    }
    TlsFiles { ca, cert: located(&config.cert), cert_key: located(&config.cert_key) }
}

/// `$XDG_CONFIG_HOME/tollgate/config.toml`, or the same below `~/.config`. XDG says to ignore relative paths.
fn config_path() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")))?;
    Some(base.join("tollgate").join("config.toml"))
}

fn read_config(path: &Path) -> Result<ConfigFile, CliError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ConfigFile::default()),
        Err(source) => return Err(CliError::Read { path: path.display().to_string(), source }),
    };
    let config = parse_config(&text)
        .map_err(|problems| CliError::Invalid { path: path.display().to_string(), problems })?;
    // Write access to a file that names the key or the server is as good as the key.
    let names_key = config.key_file.as_ref().or(config.tls.cert.as_ref());
    let forbidden = match (&config.key, names_key) {
        (Some(_), _) => 0o077,
        (None, Some(_)) => 0o022,
        (None, None) => 0,
    };
    require_private(path, forbidden)?;
    Ok(config)
}

fn parse_config(text: &str) -> Result<ConfigFile, Problems> {
    let document = Document::from_toml(text)?;
    let mut problems = Problems::default();
    let mut fields = document.fields(&mut problems);
    let path = |value: &Value| values::text(value).map(PathBuf::from);
    let config = ConfigFile {
        url: fields.read("url", values::text),
        key: fields.read("key", values::text).map(Secret::from),
        key_file: fields.read("key_file", path),
        tls: TlsFiles {
            ca: fields.read("ca_file", path),
            cert: fields.read("cert_file", path),
            cert_key: fields.read("cert_key_file", path),
        },
    };
    if config.key.is_some() && config.key_file.is_some() {
        fields.report("key_file", "cannot be combined with key: remove one of them".to_owned());
    }
    if config.tls.cert.is_none() && config.tls.cert_key.is_some() {
        fields.report("cert_key_file", "requires cert_file".to_owned());
    }
    fields.finish();
    problems.into_result(Some(config))
}

fn read_key(config: &ConfigFile, config_path: &Path) -> Result<Option<Secret>, CliError> {
    let Some(named) = &config.key_file else { return Ok(config.key.clone()) };
    let file = locate(named, config_path);
    let text = fs::read_to_string(&file)
        .map_err(|source| CliError::Read { path: file.display().to_string(), source })?;
    require_private(&file, 0o077)?;
    Ok(Some(Secret::from(text.trim().to_owned())))
}

/// Resolves a path relative to the config file; `~/` is the home directory.
fn locate(named: &Path, config_path: &Path) -> PathBuf {
    let home = || std::env::var_os("HOME").map(PathBuf::from);
    match named.strip_prefix("~").ok().zip(home()) {
        Some((rest, home)) => home.join(rest),
        None => config_path.parent().unwrap_or(Path::new("")).join(named),
    }
}

#[cfg(unix)]
fn require_private(path: &Path, forbidden: u32) -> Result<(), CliError> {
    use std::os::unix::fs::PermissionsExt;
    let shown = path.display().to_string();
    let file = fs::metadata(path).map_err(|source| CliError::Read { path: shown.clone(), source })?;
    let mode = file.permissions().mode() & 0o777;
    if mode & forbidden == 0 { Ok(()) } else { Err(CliError::InsecurePermissions { path: shown, mode }) }
}

/// Other systems have no mode bits; the user's own folder protects the file.
#[cfg(not(unix))]
fn require_private(_: &Path, _: u32) -> Result<(), CliError> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_file_errors_are_all_reported_without_the_key() {
        let problems =
            parse_config("url = 1\nkey = \"hunter2\"\nkey_file = \"k\"\nport = 1\n").err().unwrap();
        let report = problems.to_string();
        for part in ["line 1: url", "line 3: key_file", "line 4: port"] {
            assert!(report.contains(part), "{part} is not in {report}");
        }
        assert!(!report.contains("hunter2"), "{report}");
    }

    #[test]
    fn flags_override_file_and_certificate_keeps_its_key() {
        let config_path = Path::new("/etc/x/config.toml");
        let files = |names: [&str; 3]| {
            let [ca, cert, cert_key] =
                names.map(|name| Some(PathBuf::from(name)).filter(|_| !name.is_empty()));
            TlsFiles { ca, cert, cert_key }
        };
        let config = files(["ca.pem", "c.pem", "c.key"]);
        let all = files(["/etc/x/ca.pem", "/etc/x/c.pem", "/etc/x/c.key"]);
        let merge = |args| merge_tls_files(args, &config, config_path);
        assert_eq!(merge(TlsFiles::default()), all);
        assert_eq!(merge(files(["a", "", ""])), TlsFiles { ca: Some("a".into()), ..all });
        assert_eq!(merge(files(["", "b", ""])), files(["/etc/x/ca.pem", "b", ""]));
    }

    #[test]
    fn key_file_is_relative_to_the_config_file() {
        let config_path = Path::new("/etc/x/config.toml");
        assert_eq!(locate(Path::new("admin.key"), config_path), Path::new("/etc/x/admin.key"));
        assert_eq!(locate(Path::new("/k"), config_path), Path::new("/k"));
    }
}
