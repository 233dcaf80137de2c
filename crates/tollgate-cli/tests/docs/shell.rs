//! A shell session in a new folder.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tollgate_testkit::{free_port, wait_until};

const STEP_DEADLINE: Duration = Duration::from_mins(1);
const START_DEADLINE: Duration = Duration::from_secs(20);

/// Port of a node in the documentation when it names none.
const NODE: &str = "8080";
/// Port of a gateway.
const GATEWAY: &str = "8000";
const PORTS: [&str; 6] = [NODE, GATEWAY, "8081", "6379", "3000", "3001"];

/// The ports of the documentation, and those that stand for them in this run.
pub(crate) struct Ports([(&'static str, u16); PORTS.len()]);

impl Ports {
    fn new() -> Self {
        // A port such as 18000 would be replaced again.
        let is_unlike = |port: &u16| !PORTS.iter().any(|shown| port.to_string().contains(shown));
        let port = || std::iter::repeat_with(free_port).find(is_unlike).unwrap();
        Self(PORTS.map(|shown| (shown, port())))
    }

    /// Replaces the ports of the documentation.
    pub(crate) fn assign(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (shown, port)| text.replace(shown, &port.to_string()))
    }

    /// Puts the ports of the documentation back.
    fn restore(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (shown, port)| text.replace(&port.to_string(), shown))
    }

    /// The port that a command of the documentation listens on.
    fn listened_on(&self, command: &str) -> u16 {
        let is_gateway = command.starts_with("tollgate gateway");
        let is_named = |shown: &str| if is_gateway { shown == GATEWAY } else { command.contains(shown) };
        let named = self.0.iter().rev().find(|(shown, _)| is_named(shown));
        named.unwrap_or(&self.0[0]).1
    }

    pub(crate) fn node(&self) -> u16 {
        self.0[0].1
    }
}

/// What a step printed.
pub(crate) struct Step {
    /// Standard output and standard error.
    pub output: String,
    /// Commands that failed, with their exit codes.
    pub failed: String,
}

/// A bash process that reads one step after another.
pub(crate) struct Shell {
    bash: Child,
    steps: usize,
    pub ports: Ports,
    root: TempDir,
}

impl Shell {
    pub(crate) fn start() -> Self {
        let root = tempfile::tempdir().unwrap();
        for folder in ["home", "work", "steps"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        // An error status is a failed command.
        fs::write(root.path().join("home/.curlrc"), "fail-with-body\n").unwrap();
        let ports = Ports::new();
        let binaries = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().unwrap().to_str().unwrap();
        let listen = format!("127.0.0.1:{}", ports.node());
        // A group of its own, in which background jobs stay: all of it is killed at the end.
        let bash = Command::new("bash")
            .env_clear()
            .env("PATH", format!("{binaries}:{}", std::env::var("PATH").unwrap()))
            .envs([("LANG", "C.UTF-8"), ("TERM", "dumb"), ("TOLLGATE_SERVER__LISTEN", &*listen)])
            .env("TOLLGATE_URL", format!("http://{listen}"))
            .env("HOME", root.path().join("home"))
            .current_dir(root.path().join("work"))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut shell = Self { bash, steps: 0, ports, root };
        // The input ends also if this process is killed.
        shell.send("trap 'kill -KILL 0' EXIT");
        shell.send("trap 'echo \"exit code $?: $BASH_COMMAND\" >>\"$failed\"' ERR");
        shell
    }

    /// Runs a command, as the documentation writes it.
    pub(crate) fn run(&mut self, command: &str) -> Step {
        self.steps += 1;
        let path = |end: &str| self.root.path().join(format!("steps/{}.{end}", self.steps));
        let (script, output, failed, done) = (path("sh"), path("out"), path("failed"), path("done"));
        fs::write(&script, self.ports.assign(command)).unwrap();
        fs::write(&failed, "").unwrap();
        let quoted = |path: &PathBuf| format!("'{}'", path.display());
        // `$?` of the step before is kept for this one.
        self.send(&format!(
            "failed=/dev/null; (exit ${{code:-0}}); failed={failed} . {script} >{output} 2>&1 </dev/null; \
             code=$?; touch {done}",
            failed = quoted(&failed),
            script = quoted(&script),
            output = quoted(&output),
            done = quoted(&done),
        ));
        assert!(wait_until(STEP_DEADLINE, || done.exists()), "does not end: {command}");
        self.wait_for_servers(command);
        let read = |path| self.ports.restore(&String::from_utf8_lossy(&fs::read(path).unwrap()));
        Step { output: read(output), failed: read(failed) }
    }

    /// The folder that commands run in.
    pub(crate) fn folder(&self) -> PathBuf {
        self.root.path().join("work")
    }

    /// The path of a file as a command would find it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        name.strip_prefix("~/")
            .map_or_else(|| self.folder().join(name), |name| self.root.path().join("home").join(name))
    }

    fn wait_for_servers(&self, command: &str) {
        let joined = command.replace("\\\n", " ");
        for started in joined.lines().filter(|line| line.ends_with('&')) {
            let port = self.ports.listened_on(started);
            let listening = wait_until(START_DEADLINE, || TcpStream::connect(("127.0.0.1", port)).is_ok());
            assert!(listening, "nothing listens on port {port} after: {started}");
        }
    }

    fn send(&mut self, line: &str) {
        let input = self.bash.stdin.as_mut().unwrap();
        writeln!(input, "{line}").unwrap();
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let group = format!("-{}", self.bash.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.bash.wait();
    }
}
