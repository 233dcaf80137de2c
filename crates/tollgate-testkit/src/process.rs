//! A child process that does not outlive its owner.
//!
//! `Drop` kills and reaps it, also while a panic unwinds. `Drop` does not run when the test process is killed or
//! aborts, nor for a value in a `static`; for these cases a guard, a shell waiting on a pipe that only we hold
//! open, kills the child when the pipe breaks. Rejected: `prctl(PR_SET_PDEATHSIG)`, which needs unsafe code and
//! fires when the *thread* that started the child ends, that is with the first test.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::poll::wait_until;

const QUIT_DEADLINE: Duration = Duration::from_secs(5);

// Interrupts go to the whole process group; the guard has to survive them to do its work.
// A server with a folder to be removed is given five seconds to leave it.
const GUARD: &str = r#"trap '' INT TERM HUP QUIT
read -r _ && exit
kill -"$1" "$0"
[ -n "$2" ] || exit
tries=0
while kill -0 "$0"; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { kill -9 "$0"; break; }
    sleep 0.05
done
rm -rf -- "$2""#;

pub(crate) struct Process {
    child: Child,
    guard: Child,
    stop: StopSignal,
}

/// How a process is ended.
#[derive(Clone, Copy)]
pub enum StopSignal {
    /// `SIGKILL`.
    Kill,
    /// `SIGQUIT`, for one that has something to give back and does so at once.
    Quit,
}

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self::spawn_with(command, StopSignal::Kill, None)
    }

    /// Starts a process that ends in its own way. Should our own process end first, the guard removes `folder` too.
    pub(crate) fn spawn_with(command: &mut Command, stop: StopSignal, folder: Option<&Path>) -> Self {
        let program = command.get_program().to_owned();
        let child = command.stdin(Stdio::null()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
        let guard = guard(child.id(), stop, folder).unwrap_or_else(|error| {
            let _ = child.kill();
            let _ = child.wait();
            panic!("cannot start the guard process: {error}")
        });
        Self { child, guard, stop }
    }

    /// Kills the process (`SIGKILL`) and reaps it.
    pub(crate) fn kill9(mut self) {
        self.stop = StopSignal::Kill;
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked").is_some()
    }

    /// Stops every thread of the process; returns when they have stopped.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
        let stopped = wait_until(Duration::from_secs(5), || self.stat_field(2).starts_with('T'));
        assert!(stopped, "process {} does not stop", self.pid());
    }

    pub(crate) fn thaw(&self) {
        self.signal("CONT");
    }

    /// User and system time of the whole process.
    pub(crate) fn cpu_time(&self) -> Duration {
        let ticks: u64 = [13, 14].map(|field| self.stat_field(field).parse::<u64>().unwrap()).iter().sum();
        Duration::from_millis(ticks * 10) // Linux counts in hundredths of a second towards user space
    }

    fn signal(&self, name: &str) {
        let kill =
            Command::new("sh").args(["-c", r#"kill -"$0" "$1""#, name, &self.pid().to_string()]).status();
        assert!(kill.is_ok_and(|status| status.success()), "cannot send {name} to process {}", self.pid());
    }

    /// A field of `/proc/PID/stat`, counted from 0 as if the name of the program held no space.
    fn stat_field(&self, index: usize) -> String {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("the process exists");
        let (_, after_name) = stat.rsplit_once(") ").expect("the name is in brackets");
        after_name.split(' ').nth(index - 2).expect("the field exists").to_owned()
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
        // Before the child is reaped: until then nobody else can have been given its number.
        dismiss(&mut self.guard);
        let _ = self.child.wait();
    }
}

fn guard(pid: u32, stop: StopSignal, folder: Option<&Path>) -> std::io::Result<Child> {
    let signal = match stop {
        StopSignal::Kill => "KILL",
        StopSignal::Quit => "QUIT",
    };
    Command::new("sh")
        .args(["-c", GUARD, &pid.to_string(), signal])
        .arg(folder.unwrap_or(Path::new("")))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
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
    fn a_panic_leaves_nothing_running() {
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
    fn the_guard_kills_when_its_pipe_breaks() {
        let mut process = sleeper();
        drop(process.guard.stdin.take()); // what the kernel does when the test process dies
        assert!(wait_until(Duration::from_secs(5), || process.has_ended()));
    }

    #[test]
    fn a_frozen_process_can_be_killed() {
        let process = sleeper();
        process.freeze();
        let pid = process.pid();
        drop(process);
        assert!(!exists(pid));
    }
}
