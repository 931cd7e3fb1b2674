//! Where the report goes. It is opened before the command starts, so that a bad one is found in time; a file appears
//! whole or not at all.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open, openat, renameat, unlinkat};
use rustix::io::Errno;

use crate::sys;
use crate::voice::write_within;

/// An open report target.
pub struct Target {
    kind: Kind,
    /// How messages name it.
    name: String,
}

enum Kind {
    /// A file that gets its name at the end.
    File { file: File, folder: OwnedFd, name: OsString, temporary: Option<OsString> },
    /// A pipe, a device or a descriptor of the caller's: written in place.
    Stream(OwnedFd),
}

/// How long the reader of a pipe has.
const PATIENCE: Duration = Duration::from_secs(1);

impl Target {
    /// Opens a path: a regular or absent file is written under another name and renamed, anything else in place.
    ///
    /// # Errors
    /// Those of open(2); a directory is EISDIR.
    pub fn open(path: &Path) -> io::Result<Target> {
        if let Some(number) = open_descriptor(path) {
            return Target::descriptor(number);
        }
        let kind = match fs::metadata(path) {
            Ok(status) if status.is_dir() => return Err(Errno::ISDIR.into()),
            Ok(status) if status.is_file() => {
                // Whoever may not write the file may not replace it either. A planted link is refused here too.
                File::options().append(true).open(path)?;
                new_file(&fs::canonicalize(path)?)?
            }
            // Without its reader a FIFO opens at once only for both directions.
            Ok(status) if status.file_type().is_fifo() => Kind::Stream(open_in_place(path, OFlags::RDWR)?),
            Ok(_) => Kind::Stream(open_in_place(path, OFlags::WRONLY)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => new_file(path)?,
            Err(error) => return Err(error),
        };
        Ok(Target { kind, name: path.display().to_string() })
    }

    /// Takes a descriptor that the caller opened.
    ///
    /// # Errors
    /// EBADF if it is not open, or not for writing.
    pub fn descriptor(number: u16) -> io::Result<Target> {
        let copy = sys::duplicate(number)?;
        if rustix::fs::fcntl_getfl(&copy)?.intersection(OFlags::RWMODE) == OFlags::RDONLY {
            return Err(Errno::BADF.into());
        }
        Ok(Target { kind: Kind::Stream(copy), name: format!("descriptor {number}") })
    }

    /// How messages name it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes the whole report. Waits for the reader of a pipe for at most a second.
    ///
    /// # Errors
    /// Those of write(2) and rename(2); TimedOut for a reader that does not read.
    pub fn write(self, text: &str) -> io::Result<()> {
        match self.kind {
            Kind::Stream(fd) => write_within(fd.as_fd(), &mut text.as_bytes(), PATIENCE),
            Kind::File { mut file, folder, name, temporary } => {
                let written =
                    file.write_all(text.as_bytes()).and_then(|()| publish(&file, &folder, &name, temporary.as_deref()));
                if let (Err(_), Some(temporary)) = (&written, &temporary) {
                    let _ = unlinkat(&folder, temporary, AtFlags::empty());
                }
                written
            }
        }
    }
}

/// The descriptor of ours that a path means, as /dev/stdout and /dev/fd/3 do. Opened by its path a file would be written
/// from its beginning, a socket not at all, and a rename would replace the link.
fn open_descriptor(path: &Path) -> Option<u16> {
    const MOST_LINKS: usize = 40;
    let descriptors = fs::canonicalize("/proc/self/fd").ok()?;
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = fs::canonicalize(folder).ok()?;
        if folder == descriptors {
            return path.file_name()?.to_str()?.parse().ok();
        }
        path = folder.join(fs::read_link(&path).ok()?);
    }
    None
}

fn open_in_place(path: &Path, access: OFlags) -> io::Result<OwnedFd> {
    let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

/// A file without a name in the target's folder, or with another name where the file system has no such files.
fn new_file(path: &Path) -> io::Result<Kind> {
    let name = path.file_name().ok_or(Errno::ISDIR)?.to_owned();
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mode = Mode::from_raw_mode(0o666);
    match openat(&folder, c".", OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, mode) {
        Ok(fd) => Ok(Kind::File { file: fd.into(), folder, name, temporary: None }),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let temporary = temporary_name(&name)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let fd = openat(&folder, &temporary, flags, mode)?;
            Ok(Kind::File { file: fd.into(), folder, name, temporary: Some(temporary) })
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Gives a written file its name.
fn publish(file: &File, folder: &OwnedFd, name: &OsStr, temporary: Option<&OsStr>) -> io::Result<()> {
    let temporary = match temporary {
        Some(temporary) => temporary.to_owned(),
        None => {
            let temporary = temporary_name(name)?;
            // A name can only be given to it through /proc, open(2) on O_TMPFILE.
            let nameless = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            linkat(CWD, &nameless, folder, &temporary, AtFlags::SYMLINK_FOLLOW)?;
            temporary
        }
    };
    renameat(folder, &temporary, folder, name).map_err(|errno| {
        let _ = unlinkat(folder, &temporary, AtFlags::empty());
        errno.into()
    })
}

fn temporary_name(name: &OsStr) -> io::Result<OsString> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{:016x}", u64::from_ne_bytes(random)));
    Ok(temporary)
}
