//! Which server, and with which key: flags and environment first, then `~/.config/tollgate/config.toml`.
//!
//! A key in that file is for the server in that file, and so are certificates. Whoever names another server with `--url`
//! does not send it the key of this one by mistake, nor trusts it for the authority of this one.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tollgate::config::{Document, Problems, Value, values};

use crate::args::Global;
use crate::client::{Client, ClientError, TlsFiles};
use crate::failure::Failure;
use crate::secret::Secret;
use crate::url::Target;

/// Where `tollgate serve` listens if nobody says otherwise.
const URL_DEFAULT: &str = "http://127.0.0.1:8080";

/// The file as it is written.
#[derive(Default)]
struct Written {
    url: Option<String>,
    key: Option<Secret>,
    key_file: Option<PathBuf>,
    tls: TlsFiles,
}

/// A client for the server that the flags, the environment or the file name.
pub(crate) fn client(global: &Global) -> Result<Client, Failure> {
    let key = global.key.clone().filter(|key| !key.reveal().is_empty());
    let url = global.url.as_deref().map(target).transpose()?;
    // Nothing is left for the file to say.
    if let (Some(url), Some(_)) = (&url, &key)
        && !url.is_tls()
    {
        return connected(url.clone(), key, &TlsFiles::default());
    }
    let Some(path) = file_path() else {
        return connected(url.map_or_else(|| target(URL_DEFAULT), Ok)?, key, &given(global));
    };
    let written = read(&path)?;
    let own = target(written.url.as_deref().unwrap_or(URL_DEFAULT))?;
    let own_key = || key_of(&written, &path);
    if let Some(url) = url.filter(|url| *url != own) {
        let unsent = if key.is_none() { own_key()? } else { None };
        let path = path.display();
        let hint = || format!("hint: the key in {path} is for {own} and was not sent: set TOLLGATE_KEY");
        return Ok(connected(url, key, &given(global))?.with_hint(unsent.map(|_| hint())));
    }
    let key = key.map_or_else(own_key, |key| Ok(Some(key)))?;
    connected(own, key, &over(given(global), &written.tls, &path))
}

fn target(url: &str) -> Result<Target, Failure> {
    Ok(Target::parse(url).map_err(ClientError::Url)?)
}

fn connected(target: Target, key: Option<Secret>, files: &TlsFiles) -> Result<Client, Failure> {
    let tls = target.is_tls();
    let client = Client::new(target, key, files)?;
    let private = files.certificate_key.as_ref().or(files.certificate.as_ref());
    if let Some(file) = private.filter(|_| tls) {
        // A group may read it: that is how a pod that is not root gets at its secrets.
        refuse_if_open(file, 0o027)?;
    }
    Ok(client)
}

/// The files that flags and environment name. An empty name is none.
fn given(global: &Global) -> TlsFiles {
    let path = |name: &Option<OsString>| name.as_ref().filter(|name| !name.is_empty()).map(PathBuf::from);
    TlsFiles {
        authorities: path(&global.ca_file),
        certificate: path(&global.cert_file),
        certificate_key: path(&global.cert_key_file),
    }
}

/// What is given over what is written. A certificate and its key come from the same place.
fn over(given: TlsFiles, written: &TlsFiles, beside: &Path) -> TlsFiles {
    let found = |named: &Option<PathBuf>| named.as_ref().map(|named| located(named, beside));
    let authorities = given.authorities.or_else(|| found(&written.authorities));
    if given.certificate.is_some() || given.certificate_key.is_some() {
        return TlsFiles { authorities, ..given };
    }
    let (certificate, certificate_key) = (found(&written.certificate), found(&written.certificate_key));
    TlsFiles { authorities, certificate, certificate_key }
}

/// `$XDG_CONFIG_HOME/tollgate/config.toml`, or below `~/.config`. A relative folder is to be ignored, says XDG.
fn file_path() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")))?;
    Some(base.join("tollgate").join("config.toml"))
}

fn read(path: &Path) -> Result<Written, Failure> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Written::default()),
        Err(source) => return Err(Failure::Read { path: path.display().to_string(), source }),
    };
    let written =
        parse(&text).map_err(|problems| Failure::Mistakes { path: path.display().to_string(), problems })?;
    // Who can write where the key is taken from, or sent to, can have it.
    let leads_to = written.key_file.as_ref().or(written.tls.certificate.as_ref());
    let forbidden = match (&written.key, leads_to) {
        (Some(_), _) => 0o077,
        (None, Some(_)) => 0o022,
        (None, None) => 0,
    };
    refuse_if_open(path, forbidden)?;
    Ok(written)
}

fn parse(text: &str) -> Result<Written, Problems> {
    let document = Document::from_toml(text)?;
    let mut problems = Problems::default();
    let mut fields = document.fields(&mut problems);
    let path = |value: &Value| values::text(value).map(PathBuf::from);
    let written = Written {
        url: fields.read("url", values::text),
        key: fields.read("key", values::text).map(Secret::from),
        key_file: fields.read("key_file", path),
        tls: TlsFiles {
            authorities: fields.read("ca_file", path),
            certificate: fields.read("cert_file", path),
            certificate_key: fields.read("cert_key_file", path),
        },
    };
    if written.key.is_some() && written.key_file.is_some() {
        fields.report("key_file", "has no meaning beside key: remove one of them".to_owned());
    }
    if written.tls.certificate.is_none() && written.tls.certificate_key.is_some() {
        fields.report("cert_key_file", "has no meaning without cert_file".to_owned());
    }
    fields.finish();
    problems.into_result(Some(written))
}

fn key_of(written: &Written, path: &Path) -> Result<Option<Secret>, Failure> {
    let Some(named) = &written.key_file else { return Ok(written.key.clone()) };
    let file = located(named, path);
    let text = fs::read_to_string(&file)
        .map_err(|source| Failure::Read { path: file.display().to_string(), source })?;
    refuse_if_open(&file, 0o077)?;
    Ok(Some(Secret::from(text.trim().to_owned())))
}

/// Relative to the file that names it; `~/` is the home folder, as people write it.
fn located(named: &Path, beside: &Path) -> PathBuf {
    let home = || std::env::var_os("HOME").map(PathBuf::from);
    match named.strip_prefix("~").ok().zip(home()) {
        Some((rest, home)) => home.join(rest),
        None => beside.parent().unwrap_or(Path::new("")).join(named),
    }
}

#[cfg(unix)]
fn refuse_if_open(path: &Path, forbidden: u32) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt;
    let shown = path.display().to_string();
    let file = fs::metadata(path).map_err(|source| Failure::Read { path: shown.clone(), source })?;
    let mode = file.permissions().mode() & 0o777;
    if mode & forbidden == 0 { Ok(()) } else { Err(Failure::OpenToOthers { path: shown, mode }) }
}

/// Elsewhere a folder of one's own is what keeps others out.
#[cfg(not(unix))]
fn refuse_if_open(_: &Path, _: u32) -> Result<(), Failure> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_of_the_file_is_told_and_no_key_is_repeated() {
        let problems = parse("url = 1\nkey = \"hunter2\"\nkey_file = \"k\"\nport = 1\n").err().unwrap();
        let told = problems.to_string();
        for part in ["line 1: url", "line 3: key_file", "line 4: port"] {
            assert!(told.contains(part), "{part} is not in {told}");
        }
        assert!(!told.contains("hunter2"), "{told}");
    }

    #[test]
    fn what_is_given_stands_above_what_is_written_and_a_certificate_keeps_its_key() {
        let beside = Path::new("/etc/x/config.toml");
        let files = |names: [&str; 3]| {
            let [authorities, certificate, certificate_key] =
                names.map(|name| Some(PathBuf::from(name)).filter(|_| !name.is_empty()));
            TlsFiles { authorities, certificate, certificate_key }
        };
        let written = files(["ca.pem", "c.pem", "c.key"]);
        let all = files(["/etc/x/ca.pem", "/etc/x/c.pem", "/etc/x/c.key"]);
        assert_eq!(over(TlsFiles::default(), &written, beside), all);
        assert_eq!(
            over(files(["a", "", ""]), &written, beside),
            TlsFiles { authorities: Some("a".into()), ..all }
        );
        assert_eq!(over(files(["", "b", ""]), &written, beside), files(["/etc/x/ca.pem", "b", ""]));
    }

    #[test]
    fn a_key_file_is_found_beside_the_file_that_names_it() {
        let beside = Path::new("/etc/x/config.toml");
        assert_eq!(located(Path::new("admin.key"), beside), Path::new("/etc/x/admin.key"));
        assert_eq!(located(Path::new("/k"), beside), Path::new("/k"));
    }
}
