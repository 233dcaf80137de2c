//! CPU time to verify the token of a client, with the key at hand and from the cache.
//!
//! `jwt [--quick]`, run by `bench/run`. Needs the `openssl` command, which creates the keys.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;
use tempfile::TempDir;
use tollgate_bench::machine::{pin_to, thread_cpu_ns};
use tollgate_bench::report::{Table, median};
use tollgate_server::bench::TokenVerifier;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NOW_SECS: u64 = 1_800_000_000;
/// Distinct tokens, of which the cache keeps all.
const TOKENS: usize = 1_000;
const SECRET: &str = "0123456789abcdef0123456789abcdef";

const ALGORITHMS: [(&str, &[&str]); 4] = [
    ("HS256", &[]),
    ("EdDSA", &["-algorithm", "ed25519"]),
    ("ES256", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]),
    ("RS256", &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]),
];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (rounds, passes) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => (5, 20),
        ["--quick"] => (1, 2),
        _ => bail!("usage: jwt [--quick]"),
    };
    pin_to(0)?;
    let folder = TempDir::new()?;
    let mut table = Table::new(["algorithm", "token bytes", "verify, CPU µs", "cached, CPU µs"]);
    for (name, options) in ALGORITHMS {
        let issuer = Issuer::new(name, options, folder.path()).with_context(|| name.to_owned())?;
        let verifier = TokenVerifier::new(&issuer.settings)?.context("no issuer")?;
        let figure = |verify: fn(&TokenVerifier, &str, u64) -> bool| -> Result<String> {
            let measure = |_| issuer.measure(|token| verify(&verifier, token, NOW_SECS), passes);
            Ok(format!("{:.2}", median((0..rounds).map(measure).collect::<Result<Vec<f64>>>()?)))
        };
        let (anew, cached) = (figure(TokenVerifier::accepts_anew)?, figure(TokenVerifier::accepts)?);
        let bytes = issuer.tokens.first().map_or(0, String::len);
        table.row([name.to_owned(), bytes.to_string(), anew, cached]);
    }
    println!("\nVerifying the token of a client\n\n{table}");
    Ok(())
}

/// An issuer with its tokens.
struct Issuer {
    settings: String,
    tokens: Vec<String>,
}

impl Issuer {
    fn new(name: &str, options: &[&str], folder: &Path) -> Result<Self> {
        let (key, setting) = if options.is_empty() {
            (EncodingKey::from_secret(SECRET.as_bytes()), format!("secret = '{SECRET}'"))
        } else {
            let (private, public) = (folder.join("private.pem"), folder.join("public.pem"));
            openssl(folder, &[&["genpkey", "-out", "private.pem"], options].concat())?;
            openssl(folder, &["pkey", "-in", "private.pem", "-pubout", "-out", "public.pem"])?;
            let pem = std::fs::read(private)?;
            let key = match name {
                "EdDSA" => EncodingKey::from_ed_pem(&pem),
                "ES256" => EncodingKey::from_ec_pem(&pem),
                _ => EncodingKey::from_rsa_pem(&pem),
            };
            (key?, format!("public_key = '''{}'''", std::fs::read_to_string(public)?))
        };
        let algorithm: Algorithm = name.parse()?;
        let token = |number: usize| {
            let claims = json!({
                "iss": "https://idp.example/",
                "aud": ["api", "web"],
                "sub": format!("auth0|{number:024}"),
                "iat": NOW_SECS,
                "nbf": NOW_SECS,
                "exp": NOW_SECS + 3_600,
                "jti": format!("{number:032x}"),
                "scope": "openid profile email",
                "org": "customer-1",
            });
            encode(&Header { kid: Some("2026-11".to_owned()), ..Header::new(algorithm) }, &claims, &key)
        };
        let settings = format!(
            "[[identity.jwt]]\nissuer = 'https://idp.example/'\naudience = 'api'\nalgorithm = '{name}'\n\
             tenant_claim = 'org'\n{setting}"
        );
        Ok(Issuer { settings, tokens: (0..TOKENS).map(token).collect::<Result<_, _>>()? })
    }

    /// The CPU time of one verification, in microseconds.
    fn measure(&self, accepts: impl Fn(&str) -> bool, passes: usize) -> Result<f64> {
        ensure!(self.tokens.iter().all(|token| accepts(token)), "a token is refused");
        let before = thread_cpu_ns();
        for _ in 0..passes {
            for token in &self.tokens {
                std::hint::black_box(accepts(token));
            }
        }
        let spent = thread_cpu_ns() - before;
        Ok(spent as f64 / 1_000.0 / (passes * self.tokens.len()) as f64)
    }
}

fn openssl(folder: &Path, args: &[&str]) -> Result<()> {
    let output = Command::new("openssl").args(args).current_dir(folder).output().context("openssl")?;
    ensure!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
