//! Requests generated from `/openapi.json` by schemathesis: valid ones must be accepted, invalid ones rejected, and every
//! response must be as described. `schemathesis/schemathesis.toml` has the checks and what is left out.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::Service;

/// As `scripts/install-tools test` installs it.
fn program() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/python/bin/schemathesis");
    assert!(path.exists(), "schemathesis is missing: run scripts/install-tools test");
    path
}

#[test]
fn generated_requests_match_the_description() {
    let service = Service::unconfigured();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/service/schemathesis");
    let output = Command::new(program())
        .arg("--config-file")
        .arg(folder.join("schemathesis.toml"))
        .args(["run", &format!("http://{}/openapi.json", service.address)])
        .args(["--header", &format!("Authorization: Bearer {}", service.admin_key())])
        .env("SCHEMATHESIS_HOOKS", folder.join("hooks.py"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // For what it writes on its own account.
        .current_dir(service.folder.path())
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(report.contains("No issues found"), "it must have run: {report}");
}
