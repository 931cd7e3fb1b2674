//! A directory of a test's own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// A directory that is removed with all it holds when dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        let path = std::env::temp_dir().join(format!("tk-test-{}", super::unique()));
        fs::create_dir(&path).expect("the temporary directory can be written");
        // Other users' processes have to reach what is put there.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        let path = path.canonicalize().expect("it was just made");
        Scratch { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file with these mode bits.
    pub(crate) fn file(&self, name: &str, text: &[u8], mode: u32) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, text).expect("the directory is ours");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("the file is ours");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
