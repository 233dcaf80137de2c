//! A child process that does not outlive its owner.
//!
//! `Drop` kills and reaps it, also during a panic. `Drop` does not run when the test process is killed or aborts, nor for
//! values in a `static`. For these cases a guard, a shell script, stops the child when its owner is gone. Rejected:
//! `prctl(PR_SET_PDEATHSIG)`, which needs unsafe code and fires when the *thread* that started the child ends.

use std::fs;
use std::io::Write;
use std::mem;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::poll::wait_until;

const QUIT_DEADLINE: Duration = Duration::from_secs(5);

// Child and guard have process groups of their own: nextest kills the group of a test that times out, and Ctrl-C signals
// the group of the terminal.
// $0: process to stop, $1: signal, $2 and $3: paths to remove, $4: process to wait for.
const GUARD: &str = r#"trap '' INT TERM HUP
if [ -n "$4" ]; then
    while kill -0 "$4"; do sleep 0.2; done
else
    read -r _ && exit
fi
kill -"$1" "$0"
[ -n "$2" ] || exit
tries=0
while kill -0 "$0"; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { kill -9 "$0"; break; }
    sleep 0.05
done
rm -rf -- "$2" "$3""#;

pub(crate) struct Process {
    child: Child,
    guard: Child,
    stop: StopSignal,
}

/// The signal that stops a process.
#[derive(Clone, Copy)]
pub enum StopSignal {
    /// `SIGKILL`.
    Kill,
    /// `SIGQUIT`, followed by `SIGKILL` after five seconds.
    Quit,
}

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self::spawn_with(command, StopSignal::Kill, None)
    }

    /// Redirects the output of a command to a file.
    pub(crate) fn log_to<'a>(command: &'a mut Command, file: &Path) -> &'a mut Command {
        let output = fs::File::create(file).expect("the folder is writable");
        command.stdout(output.try_clone().expect("a file can be cloned")).stderr(output)
    }

    /// Waits until the process is ready. `None` if it ends first or is not ready in time.
    pub(crate) fn when_ready(mut self, timeout: Duration, is_ready: impl Fn(u32) -> bool) -> Option<Self> {
        let pid = self.pid();
        let settled = wait_until(timeout, || is_ready(pid) || self.has_ended());
        (settled && !self.has_ended()).then_some(self)
    }

    /// Starts a process that is stopped by `stop`. If this process dies first, the guard also removes `folder`.
    pub(crate) fn spawn_with(command: &mut Command, stop: StopSignal, folder: Option<&Path>) -> Self {
        let mut child = spawn(command);
        let mut guard = guard_command(child.id(), stop);
        guard.arg(folder.unwrap_or(Path::new(""))).args(["", ""]).stdin(Stdio::piped());
        let guard = spawn_guard(guard, &mut child);
        Self { child, guard, stop }
    }

    /// Lets the process run until the process `owner` ends; `paths` are removed then.
    #[expect(clippy::zombie_processes, reason = "the guard outlives this process")]
    pub(crate) fn hand_over(mut self, owner: u32, paths: [&Path; 2]) {
        let mut guard = guard_command(self.pid(), self.stop);
        guard.args(paths).arg(owner.to_string()).stdin(Stdio::null());
        spawn_guard(guard, &mut self.child);
        dismiss(&mut self.guard);
        mem::forget(self);
    }

    /// Sends `SIGKILL` and reaps the process.
    pub(crate) fn kill9(mut self) {
        self.stop = StopSignal::Kill;
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_some()
    }

    /// Sends `SIGSTOP`; returns when the process has stopped.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
        let stopped = wait_until(Duration::from_secs(5), || self.is_stopped());
        assert!(stopped, "process {} does not stop", self.pid());
    }

    pub(crate) fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let kill =
            Command::new("sh").args(["-c", r#"kill -"$0" "$1""#, name, &self.pid().to_string()]).status();
        assert!(kill.is_ok_and(|status| status.success()), "cannot send SIG{name} to process {}", self.pid());
    }

    fn is_stopped(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("the process exists");
        // The state follows the program name, which may contain spaces.
        stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T'))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let StopSignal::Quit = self.stop
            && !self.has_ended()
        {
            self.signal("QUIT");
            let _ = wait_until(QUIT_DEADLINE, || self.has_ended());
        }
        let _ = self.child.kill();
        // The guard goes first: once the child is reaped, its process id may be reused.
        dismiss(&mut self.guard);
        let _ = self.child.wait();
    }
}

fn spawn(command: &mut Command) -> Child {
    let program = command.get_program().to_owned();
    let child = command.stdin(Stdio::null()).process_group(0).spawn();
    child.unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()))
}

fn guard_command(pid: u32, stop: StopSignal) -> Command {
    let signal = match stop {
        StopSignal::Kill => "KILL",
        StopSignal::Quit => "QUIT",
    };
    let mut guard = Command::new("sh");
    guard.args(["-c", GUARD, &pid.to_string(), signal]).stdout(Stdio::null()).stderr(Stdio::null());
    guard.process_group(0);
    guard
}

fn spawn_guard(mut guard: Command, child: &mut Child) -> Child {
    guard.spawn().unwrap_or_else(|error| {
        let _ = child.kill();
        let _ = child.wait();
        panic!("cannot start the guard process: {error}")
    })
}

fn dismiss(guard: &mut Child) {
    if let Some(mut pipe) = guard.stdin.take() {
        let _ = pipe.write_all(b"\n");
    }
    let _ = guard.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Process {
        Process::spawn(Command::new("sleep").arg("60"))
    }

    fn exists(pid: u32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn panic_stops_child_and_guard() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let panicked = std::thread::spawn(move || {
            let process = sleeper();
            sender.send([process.pid(), process.guard.id()]).unwrap();
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        assert!(receiver.recv().unwrap().into_iter().all(|pid| !exists(pid)));
    }

    #[test]
    fn guard_kills_child_when_its_pipe_closes() {
        let mut process = sleeper();
        drop(process.guard.stdin.take()); // as the kernel does when the test process dies
        assert!(wait_until(Duration::from_secs(5), || process.has_ended()));
    }

    #[test]
    fn guard_stops_handed_over_process_with_its_owner() {
        let (owner, process) = (sleeper(), sleeper());
        let pid = process.pid();
        let folder = tempfile::tempdir().unwrap();
        let paths = [folder.path().join("data"), folder.path().join("address")];
        for path in &paths {
            fs::write(path, "").unwrap();
        }
        process.hand_over(owner.pid(), [&paths[0], &paths[1]]);
        assert!(exists(pid));
        drop(owner);
        assert!(wait_until(Duration::from_secs(20), || paths.iter().all(|path| !path.exists())));
        // Nobody has reaped it.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    }

    #[test]
    fn frozen_process_can_be_killed() {
        let process = sleeper();
        process.freeze();
        let pid = process.pid();
        drop(process);
        assert!(!exists(pid));
    }
}
