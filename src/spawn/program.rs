//! A program by its name, as execvp(3) finds and runs it.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use nix::libc;

use crate::sys;

/// A program and its arguments in the form execve(2) takes.
pub struct Program {
    /// Where it may be, in the order of PATH.
    candidates: Vec<CString>,
    /// Keeps the strings that the pointers below point to.
    _strings: Vec<CString>,
    /// The arguments: room for a shell and a script in front, then the user's own, then a null pointer.
    argv: Vec<*const libc::c_char>,
}

/// Slots of `Program::argv` before the user's own argument 0.
const ROOM_FOR_SHELL: usize = 1;

/// What execvp(3) searches when PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Bytes of the longest path, with its NUL, limits.h.
const PATH_MAX: usize = 4096;

impl Program {
    /// Prepares a command of at least one word, with execvp(3)'s rules for PATH.
    pub fn new(command: &[OsString], path: Option<&OsStr>) -> Program {
        let strings: Vec<CString> = command.iter().map(|word| c_string(word.as_bytes().to_vec())).collect();
        let mut argv = vec![std::ptr::null(); ROOM_FOR_SHELL];
        argv.extend(strings.iter().map(|word| word.as_ptr()));
        argv.push(std::ptr::null());
        let path = path.unwrap_or(OsStr::new(DEFAULT_PATH));
        Program { candidates: candidates(command[0].as_bytes(), path.as_bytes()), _strings: strings, argv }
    }

    /// Becomes the program; returns only the errno of the failure. Runs between birth and exec.
    pub(super) fn exec(&mut self) -> i32 {
        let mut found = libc::ENOENT;
        for candidate in &self.candidates {
            let errno = sys::exec(candidate, &self.argv[ROOM_FOR_SHELL..]);
            match errno {
                // A script without `#!`: as execvp(3), give it to the shell. Its name takes the place of argument 0.
                libc::ENOEXEC => {
                    self.argv[0] = c"/bin/sh".as_ptr();
                    self.argv[1] = candidate.as_ptr();
                    return sys::exec(c"/bin/sh", &self.argv);
                }
                libc::EACCES => found = errno,
                libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {
                    // Only one place was named: its own errno says more than "not found".
                    if self.candidates.len() == 1 {
                        found = errno;
                    }
                }
                _ => return errno,
            }
        }
        found
    }
}

/// Where a command of this name is looked for, and found if anywhere.
pub fn place(name: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    let places = candidates(name.as_bytes(), path.unwrap_or(OsStr::new(DEFAULT_PATH)).as_bytes());
    let paths = places.into_iter().map(|place| PathBuf::from(OsString::from_vec(place.into_bytes())));
    paths.into_iter().find(|path| path.symlink_metadata().is_ok())
}

fn candidates(name: &[u8], path: &[u8]) -> Vec<CString> {
    if name.is_empty() || name.contains(&b'/') {
        return vec![c_string(name.to_vec())];
    }
    let place = |folder: &[u8]| match folder {
        // An empty element is the working directory.
        b"" => c_string(name.to_vec()),
        _ => c_string([folder, b"/", name].concat()),
    };
    // execvp(3) passes over what no path can hold, where the kernel would say ENAMETOOLONG.
    let is_possible = |place: &CString| place.as_bytes_with_nul().len() <= PATH_MAX;
    path.split(|&byte| byte == b':').map(place).filter(is_possible).collect()
}

fn c_string(bytes: Vec<u8>) -> CString {
    CString::new(bytes).expect("arguments and environment hold no NUL")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_searched_in_every_folder_of_path() {
        let path = |text: &[u8]| candidates(b"ls", text).into_iter().map(CString::into_bytes).collect::<Vec<_>>();
        assert_eq!(path(b"/bin::/x/"), [&b"/bin/ls"[..], b"ls", b"/x//ls"]);
        assert_eq!(path(b""), [b"ls"]);
        assert_eq!(candidates(b"./ls", b"/bin"), [c"./ls".to_owned()]);
        let longest = [b"/".to_vec(), vec![b'x'; PATH_MAX - 5], b":/".to_vec(), vec![b'x'; PATH_MAX - 4]].concat();
        assert_eq!(path(&longest).len(), 1, "what is longer cannot be");
        assert_eq!(candidates(b"", b"/bin"), [c"".to_owned()]);
    }
}
