//! Runs the blocks of one page.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tollgate_testkit::wait_until;

use crate::not_run::NOT_RUN;
use crate::page::{Block, blocks};
use crate::shell::Shell;
use crate::transcript::{exchanges, matches};

// Pages leave passwords to the environment, which `rules lint` does not read.
const CHECK_SETTINGS: &str = "tollgate rules lint ../steps/block.toml || \
    TOLLGATE_COUNTERS__PASSWORD=secret tollgate config show --config ../steps/block.toml";
/// Has gateways on the default port; other pages have no proxy.
const PROXY_PAGE: &str = "docs/proxy.md";
const RELOAD_DEADLINE: Duration = Duration::from_secs(10);

/// Runs every block of a page, or fails with its line.
pub(crate) fn run_page(page: &'static str) {
    let mut run = Run { page, shell: Shell::start(), rules: None };
    if page == PROXY_PAGE {
        run.shell.run("export TOLLGATE_PROXY__LISTEN=127.0.0.1:8000");
    }
    for block in blocks(page) {
        if block.no_run {
            assert!(is_listed(page, &block), "{page}:{}: give a reason in not_run.rs", block.line);
        } else {
            run.block(&block);
        }
    }
}

fn is_listed(page: &str, block: &Block) -> bool {
    NOT_RUN.iter().any(|(name, start, _)| *name == page && block.code.starts_with(start))
}

struct Run {
    page: &'static str,
    shell: Shell,
    /// The last block with rules, which tests below it are about.
    rules: Option<String>,
}

impl Run {
    fn block(&mut self, block: &Block) {
        self.save(block);
        match &*block.language {
            "sh" => self.commands(block),
            "console" => self.transcript(block),
            "toml" => self.toml(block),
            "json" => drop(serde_json::from_str::<serde_json::Value>(&block.code).unwrap_or_else(|error| {
                panic!("{}: {error}: {}", self.at(block), block.code);
            })),
            "text" => {}
            "rust" => assert_eq!(self.page, "README.md", "{}: not a documentation test", self.at(block)),
            other => panic!("{}: nothing runs `{other}` blocks: add `no-run`", self.at(block)),
        }
    }

    fn at(&self, block: &Block) -> String {
        format!("{}:{}", self.page, block.line)
    }

    fn save(&mut self, block: &Block) {
        let Some(file) = &block.file else { return };
        let path = self.shell.path(&file.name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let before = if file.append { fs::read_to_string(&path).unwrap() + "\n" } else { String::new() };
        // A busy machine may need more than the 15 ms that a decision waits for Redis by default.
        let code = block.code.replace("store = \"redis\"\n", "store = \"redis\"\ntimeout = \"5s\"\n");
        let text = before + &self.shell.ports.assign(&code);
        self.and_wait_for_reload(|_| fs::write(&path, text).unwrap());
    }

    fn commands(&mut self, block: &Block) {
        let step = self.and_wait_for_reload(|shell| shell.run(&block.code));
        assert!(step.failed.is_empty(), "{}: {}{}", self.at(block), step.failed, step.output);
    }

    fn transcript(&mut self, block: &Block) {
        for exchange in exchanges(&block.code) {
            let printed = self.and_wait_for_reload(|shell| shell.run(&exchange.command)).output;
            assert!(
                matches(&exchange.output, &printed),
                "{}: {}shown:\n{}printed:\n{printed}",
                self.at(block),
                exchange.command,
                exchange.output
            );
        }
    }

    fn toml(&mut self, block: &Block) {
        let is_of_the_client = block.file.as_ref().is_some_and(|file| file.name.starts_with("~/"));
        if is_of_the_client {
            return;
        }
        let file = self.shell.path("../steps/block.toml");
        if block.code.contains("[[tests]]") {
            let rules = self.rules.as_ref().unwrap_or_else(|| panic!("{}: no rules before", self.at(block)));
            fs::write(&file, rules).unwrap();
            fs::write(self.shell.path("../steps/tests.toml"), &block.code).unwrap();
            self.offline(block, "tollgate rules test ../steps/block.toml ../steps/tests.toml");
        } else {
            fs::write(&file, &block.code).unwrap();
            self.offline(block, CHECK_SETTINGS);
            self.rules = Some(block.code.clone());
        }
    }

    /// Runs a command of the test in a subshell, which keeps the folder and variables of the page.
    fn offline(&mut self, block: &Block, command: &str) {
        let work = self.shell.folder();
        let step = self.shell.run(&format!("(cd '{}' && {command})", work.display()));
        assert!(step.failed.is_empty(), "{}: {}{}", self.at(block), step.failed, step.output);
    }

    /// If `change` edits the settings file, waits until the node that is running has applied it.
    fn and_wait_for_reload<T>(&mut self, change: impl FnOnce(&mut Shell) -> T) -> T {
        let settings = self.shell.path("tollgate.toml");
        let before = fs::read(&settings).ok();
        let generation = self.generation();
        let result = change(&mut self.shell);
        if before.is_some() && fs::read(&settings).ok() != before && generation.is_some() {
            let _ = wait_until(RELOAD_DEADLINE, || self.generation() != generation);
        }
        result
    }

    /// How many configurations the node has applied.
    fn generation(&self) -> Option<String> {
        let port = self.shell.ports.node();
        let mut node = TcpStream::connect(("127.0.0.1", port)).ok()?;
        write!(node, "GET /metrics HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n").ok()?;
        let mut response = String::new();
        node.read_to_string(&mut response).ok()?;
        let line = response.lines().find(|line| line.starts_with("tollgate_config_generations_total"))?;
        Some(line.to_owned())
    }
}

#[test]
fn listed_blocks_exist() {
    for (page, start, reason) in NOT_RUN {
        let found = blocks(page).iter().any(|block| block.no_run && block.code.starts_with(start));
        assert!(found, "{page} has no block with `no-run` that starts with {start:?} ({reason})");
    }
}
