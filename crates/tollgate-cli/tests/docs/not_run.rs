//! Blocks that are not run.

/// Page, start of the block, and why it is not run.
pub(crate) const NOT_RUN: &[(&str, &str, &str)] = &[
    ("README.md", "cargo run --release", "builds in release mode and does not end"),
    ("docs/cli.md", "url = ", "names another server"),
    ("docs/cli.md", "map $request_uri", "is for nginx"),
    ("docs/cookbook.md", "cd docs/cookbook", "runs in a checkout; the blocks below it are run in turn"),
    (
        "docs/database.md",
        "-- PostgreSQL",
        "needs a database server; its rights are tested in tollgate-stores",
    ),
    (
        "docs/database.md",
        "CREATE DATABASE",
        "needs a database server; its rights are tested in tollgate-stores",
    ),
    ("docs/database.md", "export TOLLGATE_DATABASE__URL", "names another server"),
    ("docs/database.md", "tollgate rules diff", "needs a server with rules; docs/cli.md runs it"),
    ("docs/database.md", "openssl rand", "writes to /etc"),
    ("docs/database.md", "tollgate audit", "needs a running server"),
    ("docs/database.md", "-- the last refusals", "needs rows; runs in tollgate-stores"),
    ("docs/database.md", "-- records of a user", "needs rows; runs in tollgate-stores"),
    ("docs/database.md", "SELECT identifier", "needs rows; runs in tollgate-stores"),
    ("docs/database.md", "SELECT strftime", "needs rows; runs in tollgate-stores"),
    ("docs/gateways.md", "upstream tollgate", "is for nginx; the tests of gateways run it"),
    ("docs/gateways.md", ":80 {", "is for Caddy; the tests of gateways run it"),
    ("docs/gateways.md", "http:", "is for Traefik"),
    ("docs/gateways.md", "metadata:", "is for ingress-nginx"),
    ("docs/gateways.md", "plugins:", "is for APISIX"),
    ("docs/getting-started.md", "cargo install", "builds in release mode"),
    ("docs/operations.md", "tollgate serve", "does not end, and writes to /var/lib"),
    ("docs/operations.md", "# /etc/systemd", "is for systemd"),
    ("docs/operations.md", "# prometheus.yml", "is for Prometheus"),
    ("docs/operations.md", "$ journalctl", "needs systemd"),
    ("docs/operations.md", "sqlite3 ", "reads /var/lib and writes to /backup"),
    ("docs/redis.md", "# the files must exist", "names certificate files"),
];
