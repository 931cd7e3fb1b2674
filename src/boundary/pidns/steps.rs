//! The steps into a namespace, in the order that the kernel wants, and what it means if one of them is refused.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{CapabilitySet, capabilities};

use crate::sys::{self, Namespace};
use crate::voice::{Why, cause};

/// What gives the right to make namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    /// The caller's own, capabilities(7).
    Own,
    /// Those over a user namespace made for it.
    OfUserNamespace,
}

/// Those that this process has.
///
/// # Errors
/// Why it has none.
pub(super) fn rights() -> Result<Rights, Why> {
    let is_able = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    match is_able {
        true => Ok(Rights::Own),
        // A user namespace would take from root what it is root for: other owners, other users.
        false if geteuid().is_root() => {
            Err("root needs the capability CAP_SYS_ADMIN for it (docker run --cap-add SYS_ADMIN)".into())
        }
        false => Ok(Rights::OfUserNamespace),
    }
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Making the user namespace and mapping this user in it, user_namespaces(7).
    User,
    /// Making the PID namespace.
    Pid,
    /// Forking.
    Fork,
    /// Making the mount namespace, so that no mount of ours is seen outside.
    Mounts,
    /// Mounting a /proc.
    Proc,
}

/// A step that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Which.
    pub step: Step,
    /// How.
    pub errno: Errno,
}

impl Step {
    /// All of them.
    pub const ALL: [Step; 5] = [Step::User, Step::Pid, Step::Fork, Step::Mounts, Step::Proc];

    /// Takes it; the errno of a refusal.
    pub(super) fn refused(self) -> impl Fn(io::Error) -> Refused {
        move |error| Refused { step: self, errno: Errno::from_io_error(&error).unwrap_or(Errno::IO) }
    }
}

/// Makes the namespaces of this process's future children. The process itself stays where it is, but for the user
/// namespace, where it has no more rights over what is outside than it had.
pub(super) fn enter(rights: Rights) -> Result<(), Refused> {
    if rights == Rights::OfUserNamespace {
        enter_user_namespace().map_err(Step::User.refused())?;
    }
    sys::unshare(Namespace::Pid).map_err(Step::Pid.refused())
}

/// The user stays who it is: mapping it to root would give every program that asks for its user another answer.
fn enter_user_namespace() -> io::Result<()> {
    let (user, group) = (geteuid(), getegid());
    sys::unshare(Namespace::User)?;
    // Without it the group can't be mapped, user_namespaces(7).
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// Shows this process its own PID namespace in /proc, in a mount namespace of its own. Mounts that are made outside later
/// still come in. The working directory stays. May run between birth and exec.
///
/// # Errors
/// EPERM in a container that masks parts of /proc, EINVAL in a chroot that is no mount point.
pub fn show_own_namespace() -> Result<(), Refused> {
    sys::unshare(Namespace::Mount).map_err(Step::Mounts.refused())?;
    let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change(c"/", propagation).map_err(|errno| Refused { step: Step::Mounts, errno })?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(c"proc", c"/proc", c"proc", flags, None).map_err(|errno| Refused { step: Step::Proc, errno })
}

impl Refused {
    /// Why it failed. Of any process that has the rights of the one that tried.
    pub fn explain(self) -> Why {
        rights().map_or_else(|why| why, |rights| self.explain_with(rights))
    }

    /// For a frame.
    pub fn to_bytes(self) -> [u8; 3] {
        let step = Step::ALL.iter().position(|step| *step == self.step).expect("all of them are there");
        let [low, high, ..] = self.errno.raw_os_error().to_le_bytes();
        [u8::try_from(step).expect("there are few"), low, high]
    }

    /// From a frame.
    pub fn from_bytes([step, low, high]: [u8; 3]) -> Option<Refused> {
        let step = *Step::ALL.get(usize::from(step))?;
        let errno = Some(i32::from_le_bytes([low, high, 0, 0])).filter(|errno| (1..4096).contains(errno))?;
        Some(Refused { step, errno: Errno::from_raw_os_error(errno) })
    }

    fn explain_with(self, rights: Rights) -> Why {
        let is_forbidden = matches!(self.errno, Errno::PERM | Errno::ACCESS);
        let reason = cause(self.errno.raw_os_error());
        match (self.step, self.errno) {
            (Step::User | Step::Pid | Step::Mounts, Errno::NOSPC | Errno::USERS) => {
                let kind = match self.step {
                    Step::User => "user",
                    Step::Pid => "pid",
                    _ => "mnt",
                };
                let help = format!("sysctl user.max_{kind}_namespaces says how many");
                Why::new("no more namespaces are allowed", help)
            }
            (Step::Mounts, Errno::INVAL) => {
                Why::new("the root directory is no mount point, as in a chroot", "bind-mount it onto itself first")
            }
            (Step::Proc, _) if is_forbidden && sysctl(APPARMOR) != Some(1) => Why::new(
                "no /proc can be mounted, since parts of this one are covered, as in containers",
                "have the container leave /proc whole (docker run --security-opt systempaths=unconfined)",
            ),
            _ if is_forbidden && rights == Rights::OfUserNamespace => forbidden(sysctl(APPARMOR), sysctl(CLONE)),
            (Step::User, _) => format!("cannot make a user namespace: {reason}").into(),
            (Step::Pid, _) => format!("cannot make a PID namespace: {reason}").into(),
            (Step::Fork, _) => format!("cannot fork in a new PID namespace: {reason}").into(),
            (Step::Mounts, _) => format!("cannot make a mount namespace: {reason}").into(),
            (Step::Proc, _) => format!("cannot mount /proc: {reason}").into(),
        }
    }
}

/// Ubuntu's switch.
const APPARMOR: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
/// Debian's switch.
const CLONE: &str = "/proc/sys/kernel/unprivileged_userns_clone";

fn sysctl(path: &str) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Who keeps this user from user namespaces.
fn forbidden(apparmor: Option<u32>, clone: Option<u32>) -> Why {
    let how = match (apparmor, clone) {
        (_, Some(0)) => "sysctl kernel.unprivileged_userns_clone=1 would allow them",
        (Some(1), _) => "sysctl kernel.apparmor_restrict_unprivileged_userns=0 would allow them",
        _ => "a chroot, a container's seccomp filter or a security module is in the way",
    };
    Why::new("user namespaces are forbidden here, and an ordinary user needs one", how)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_as_it_was() {
        for step in Step::ALL {
            let refused = Refused { step, errno: Errno::PERM };
            assert_eq!(Refused::from_bytes(refused.to_bytes()), Some(refused));
        }
    }

    #[test]
    fn a_refusal_names_what_would_help() {
        let explain = |step, errno| Refused { step, errno }.explain_with(Rights::OfUserNamespace).to_string();
        let forbidden = |apparmor, clone| forbidden(apparmor, clone).to_string();
        assert!(forbidden(None, Some(0)).contains("kernel.unprivileged_userns_clone=1"));
        assert!(forbidden(Some(1), None).contains("kernel.apparmor_restrict_unprivileged_userns=0"));
        assert!(forbidden(Some(0), Some(1)).contains("seccomp"));
        assert!(explain(Step::User, Errno::NOSPC).contains("user.max_user_namespaces"));
        assert!(explain(Step::Pid, Errno::NOSPC).contains("user.max_pid_namespaces"));
        assert!(explain(Step::Mounts, Errno::INVAL).contains("chroot"));
        assert!(explain(Step::User, Errno::INVAL).contains("Invalid argument"));
    }
}
