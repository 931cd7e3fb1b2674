//! Where the report goes. It is opened before the command starts, so that a bad one is found in time; a file appears
//! whole or not at all.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    Access, AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, accessat, fchmod, fchown, fstat, linkat, open, openat,
    renameat, statat, unlinkat,
};
use rustix::io::Errno;

use crate::sys;
use crate::voice::{dangling, write_within};

/// An open report target.
pub struct Target {
    kind: Kind,
    /// How messages name it.
    name: String,
}

enum Kind {
    /// A file that appears, or replaces another, when it is whole.
    New { folder: OwnedFd, name: OsString, file: Nameless, replaces: Option<File> },
    /// A file that can't be replaced: its folder is not ours to write, say.
    InPlace(File),
    /// A named pipe, open for both directions, since without its reader it opens at once in no other way.
    Fifo(OwnedFd),
    /// A pipe, a device or a descriptor of the caller's.
    Stream(OwnedFd),
}

/// What is written before it gets its name.
enum Nameless {
    /// A file without a name, open(2), O_TMPFILE: nothing stays of it if we are killed.
    Open(File),
    /// The file system has no such files: it is made when it is written.
    Later,
}

/// How long the reader of a pipe has.
const PATIENCE: Duration = Duration::from_secs(1);

impl Target {
    /// Opens a path: a regular or absent file is written under another name and renamed, anything else in place.
    ///
    /// # Errors
    /// Those of open(2); a directory is EISDIR. A sentence for a link that leads nowhere.
    pub fn open(path: &Path) -> io::Result<Target> {
        if let Some(number) = open_descriptor(path) {
            return Target::descriptor(number);
        }
        let kind = match fs::metadata(path) {
            Ok(status) if status.is_dir() => return Err(Errno::ISDIR.into()),
            Ok(status) if status.is_file() => {
                // Whoever may not write the file may not replace it either. A planted link is refused here too.
                let old = open_in_place(path, OFlags::WRONLY | OFlags::APPEND)?;
                if FileType::from_raw_mode(fstat(&old)?.st_mode).is_file() {
                    replacement(old.into())?
                } else {
                    Kind::Stream(old)
                }
            }
            Ok(status) if status.file_type().is_fifo() => Kind::Fifo(open_in_place(path, OFlags::RDWR)?),
            Ok(_) => Kind::Stream(open_in_place(path, OFlags::WRONLY)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => match dangling(path) {
                Some(why) => return Err(io::Error::new(error.kind(), why)),
                None => new_file(path, None)?,
            },
            Err(error) => return Err(error),
        };
        Ok(Target { kind, name: path.display().to_string() })
    }

    /// Takes a descriptor that the caller opened, and away from the command unless it is a standard stream.
    ///
    /// # Errors
    /// A sentence if it is not open, or not for writing.
    pub fn descriptor(number: u16) -> io::Result<Target> {
        let not_open = || io::Error::other(format!("not open; a shell opens it by {number}>FILE"));
        // The runtime has opened /dev/null over a standard stream that was closed.
        if sys::inherited().closed.get(usize::from(number)) == Some(&true) {
            return Err(not_open());
        }
        let is_closed = |error: &io::Error| error.raw_os_error() == Some(Errno::BADF.raw_os_error());
        let copy = sys::duplicate(number).map_err(|error| if is_closed(&error) { not_open() } else { error })?;
        if rustix::fs::fcntl_getfl(&copy)?.intersection(OFlags::RWMODE) == OFlags::RDONLY {
            return Err(io::Error::other("not open for writing"));
        }
        // A command that had it could write the report itself, and whoever is left running would keep its reader waiting.
        // A standard stream is the command's all the same.
        if number > 2 {
            sys::close_at_exec(number);
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
    /// Those of write(2) and rename(2); TimedOut for a reader that does not read, BrokenPipe where there is none.
    pub fn write(self, text: &str) -> io::Result<()> {
        match self.kind {
            Kind::Fifo(both) => {
                // As long as we could read it ourselves, what nobody reads would vanish without an error.
                let fd = open_in_place(&path_of(&both), OFlags::WRONLY)?;
                drop(both);
                write_within(fd.as_fd(), &mut text.as_bytes(), PATIENCE)
            }
            Kind::Stream(fd) => write_within(fd.as_fd(), &mut text.as_bytes(), PATIENCE),
            Kind::InPlace(file) => overwrite(file, text),
            Kind::New { folder, name, file, replaces } => {
                let temporary = temporary_name(&name)?;
                let written = write_temporary(&folder, &temporary, file, replaces.as_ref(), text)
                    .and_then(|()| Ok(renameat(&folder, &temporary, &folder, &name)?));
                if written.is_err() {
                    let _ = unlinkat(&folder, &temporary, AtFlags::empty());
                }
                match (written, replaces) {
                    // A mount point, or another's file in a sticky folder.
                    (Err(error), Some(old)) if !is_full(&error) => overwrite(old, text),
                    (written, _) => written,
                }
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

/// The path of what a descriptor means, proc_pid_fd(5).
fn path_of(fd: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Prepares a file that is to take the place of this one. Where that is its descriptor says: by now the path that it was
/// opened by may be a link to another, which nobody has shown to be ours to write.
fn replacement(old: File) -> io::Result<Kind> {
    let status = fstat(&old)?;
    let is_same = |folder: &OwnedFd, name: &OsStr| {
        let found = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino))
    };
    let Ok(path) = fs::read_link(path_of(&old)) else { return Ok(Kind::InPlace(old)) };
    Ok(match new_file(&path, Some(old))? {
        // It has been moved, or a folder on the way to it.
        Kind::New { folder, name, replaces: Some(old), .. } if !is_same(&folder, &name) => Kind::InPlace(old),
        kind => kind,
    })
}

/// Prepares a file that is to appear under this path.
fn new_file(path: &Path, replaces: Option<File>) -> io::Result<Kind> {
    // It passes over a slash at the end, with or without a dot behind it.
    let is_last = |name: &&OsStr| path.as_os_str().as_bytes().ends_with(name.as_bytes());
    let name = path.file_name().filter(is_last).ok_or(Errno::ISDIR)?.to_owned();
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let nameless = folder.and_then(|folder| {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match openat(&folder, c".", flags, Mode::from_raw_mode(0o666)) {
            Ok(fd) => Ok((folder, Nameless::Open(fd.into()))),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                accessat(&folder, c".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?;
                Ok((folder, Nameless::Later))
            }
            Err(errno) => Err(errno),
        }
    });
    match (nameless, replaces) {
        (Ok((folder, file)), replaces) => Ok(Kind::New { folder, name, file, replaces }),
        (Err(_), Some(old)) => Ok(Kind::InPlace(old)),
        (Err(errno), None) => Err(errno.into()),
    }
}

/// Writes the text under another name, with owner and mode of the file that it is to replace.
fn write_temporary(
    folder: &OwnedFd,
    temporary: &OsStr,
    file: Nameless,
    replaces: Option<&File>,
    text: &str,
) -> io::Result<()> {
    let (mut file, is_nameless) = match file {
        Nameless::Open(file) => (file, true),
        Nameless::Later => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            (File::from(openat(folder, temporary, flags, Mode::from_raw_mode(0o666))?), false)
        }
    };
    if let Some(old) = replaces.map(fstat).transpose()? {
        // Only root can give it away; then it must not be readable to more than before even so.
        let _ = fchown(&file, Some(Uid::from_raw(old.st_uid)), Some(Gid::from_raw(old.st_gid)));
        fchmod(&file, Mode::from_raw_mode(old.st_mode & 0o777))?;
    }
    file.write_all(text.as_bytes())?;
    if is_nameless {
        // A name can only be given to it through /proc, open(2) on O_TMPFILE.
        linkat(CWD, path_of(&file), folder, temporary, AtFlags::SYMLINK_FOLLOW)?;
    }
    Ok(())
}

/// Writes over what is there. It was opened for appending, so it is emptied first.
fn overwrite(mut file: File, text: &str) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all(text.as_bytes())
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn temporary_name(name: &OsStr) -> io::Result<OsString> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{:016x}", u64::from_ne_bytes(random)));
    Ok(temporary)
}
