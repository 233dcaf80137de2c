//! An S3-compatible object store: rclone that serves a folder.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::port::{free_port, start_on_free_port};
use crate::process::Process;

const START_DEADLINE: Duration = Duration::from_secs(30);

/// A running object store on a loopback port, killed on drop. Buckets are folders in it.
pub struct ObjectStoreServer {
    port: u16,
    process: Option<Process>,
    folder: TempDir, // last: removed after the process has stopped
}

impl ObjectStoreServer {
    /// The id of the only access key.
    pub const ACCESS_KEY_ID: &'static str = "tollgate-test";
    /// Its secret.
    pub const SECRET_ACCESS_KEY: &'static str = "tollgate-test-secret";

    /// Starts rclone with one bucket.
    pub fn start(program: &Path, bucket: &str) -> Self {
        let folder = TempDir::new().expect("a temporary folder can be created");
        fs::create_dir_all(folder.path().join("buckets").join(bucket)).expect("the folder is writable");
        let mut server = ObjectStoreServer { port: 0, process: None, folder };
        server.restart(program);
        server
    }

    /// Kills the process. Its objects stay.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again with the same objects, on another port.
    pub fn restart(&mut self, program: &Path) {
        self.kill();
        let folder = self.folder.path();
        let (port, process) = start_on_free_port("rclone", || {
            let (port, log) = (free_port(), folder.join("output"));
            let key = format!("{},{}", Self::ACCESS_KEY_ID, Self::SECRET_ACCESS_KEY);
            let mut command = Command::new(program);
            command.args(["serve", "s3", "--auth-key", &key, "--addr", &format!("127.0.0.1:{port}")]);
            command.arg(folder.join("buckets")).env("HOME", folder).env("RCLONE_CONFIG", folder.join("none"));
            let process = Process::spawn(Process::log_to(&mut command, &log));
            let process =
                process.when_ready(START_DEADLINE, |_| TcpStream::connect(("127.0.0.1", port)).is_ok());
            let process = process.ok_or_else(|| fs::read_to_string(&log).unwrap_or_default())?;
            Ok((port, process))
        });
        (self.port, self.process) = (port, Some(process));
    }

    /// Removes a bucket with all its objects, for [`bring_bucket_back`](Self::bring_bucket_back).
    pub fn take_bucket_away(&self, bucket: &str) {
        let there = self.folder.path().join("buckets").join(bucket);
        fs::rename(there, self.folder.path().join(bucket)).expect("the bucket can be moved");
    }

    /// Adds the objects of a removed bucket. rclone may have created it again meanwhile.
    pub fn bring_bucket_back(&self, bucket: &str) {
        let (away, there) =
            (self.folder.path().join(bucket), self.folder.path().join("buckets").join(bucket));
        fs::create_dir_all(&there).expect("the bucket can be created");
        let copied = Command::new("cp").arg("-a").arg(away.join(".")).arg(&there).status();
        assert!(copied.expect("cp runs").success(), "the objects can be copied");
        fs::remove_dir_all(away).expect("the copy can be removed");
    }

    /// The folder with the objects of a bucket.
    pub fn folder(&self, bucket: &str) -> PathBuf {
        self.folder.path().join("buckets").join(bucket)
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}
