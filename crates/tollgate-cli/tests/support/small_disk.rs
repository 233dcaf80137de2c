//! A file system that is soon full.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A small file system of its own, unmounted on drop.
pub(crate) struct SmallDisk(pub(crate) PathBuf);

impl SmallDisk {
    pub(crate) fn mount(path: PathBuf, size: &str) -> Self {
        fs::create_dir_all(&path).unwrap();
        let options = format!("size={size}");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tollgate"]).arg(&path).status();
        assert!(mounted.unwrap().success(), "mounting a tmpfs needs root");
        SmallDisk(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
