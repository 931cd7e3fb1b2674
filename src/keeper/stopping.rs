//! How the keeper asks the tree to end: whom the signals of a stop's stages reach.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::process::Pid;

use crate::signals::Sig;
use crate::supervisor::Receivers;
use crate::sys;
use crate::tree::{AndThen, Births, Process, Receiver, Sent, deliver};

use super::Keeper;

/// How long those may be looked for at most who were born while the first signal was prepared.
const LOOK_FOR_MISSED: Duration = Duration::from_millis(200);

impl Keeper<'_> {
    /// Lists the tree, takes a picture of it, then signals: the command first, since it may want to look after its children
    /// itself. A picture that came after the signal would show who acts on it, not what hung.
    pub(super) fn stop(&mut self, sig: Sig, receivers: Receivers) {
        if self.command.is_some() {
            self.announce(sig);
        }
        let begin = Births::now();
        let list = self.list();
        self.take_picture(&list, sys::now());
        let group = self.commands_group(&list);
        let command = self.command.as_ref().map(|command| command.pid);
        let is_in_group = |process: &Process| process.stat.as_ref().is_some_and(|stat| Some(stat.group) == group);
        let is_receiver = |process: &Process| match receivers {
            Receivers::Tree => true,
            Receivers::CommandsGroup => is_in_group(process) || Some(process.pid) == command,
            Receivers::Command => Some(process.pid) == command,
            Receivers::NotCommandsGroup => !is_in_group(process),
        };
        let (mut reached, others): (Vec<Process>, Vec<Process>) = list.into_iter().partition(is_receiver);
        let (mut sent, before) = self.send(&reached, sig);
        if receivers == Receivers::NotCommandsGroup {
            // The terminal has sent them the signal, and they may be stopped.
            self.send(&others, Sig::CONT);
        }
        if receivers != Receivers::Command && Births::now().are_more_than(begin) {
            // Whom the signal ends at once starts no helpers.
            let all_end = others.is_empty() && reached.iter().all(|process| process.is_ended_by(sig));
            let until = if all_end { None } else { Some(before) };
            let missed: Vec<Process> = self.missed(until, &reached, &others).into_iter().filter(is_receiver).collect();
            sent.append(self.send(&missed, sig).0);
            reached.extend(missed);
        }
        if receivers == Receivers::NotCommandsGroup {
            reached.extend(others);
        }
        self.receivers = Some(reached);
        self.note_sent(&sent, sig, "");
    }

    /// Those who are not on the list of a stop though they were born before this moment, or at any, the command aside. A
    /// shell that starts one job after the other does that while it is listed, too, and its jobs would live until SIGKILL.
    fn missed(&self, before: Option<Births>, reached: &[Process], others: &[Process]) -> Vec<Process> {
        let end = sys::now() + LOOK_FOR_MISSED;
        let list = self.tree.list(Some(self.time_to_list().map_or(end, |stage| stage.min(end))));
        let before = before.unwrap_or_else(Births::now);
        let mut missed = before.missed(reached.iter().chain(others), list, Births::now());
        missed.retain(|process| !self.is_command(process));
        missed
    }

    pub(super) fn stop_again(&mut self, sig: Sig) {
        // Nobody gets it twice.
        let is_new = |_: &Process, now: &Process| sig != Sig::TERM || !self.asked.contains(&now.pid.as_raw_pid());
        let still = self.still_there(self.receivers.iter().flatten(), is_new);
        let (sent, _) = self.send(&still, sig);
        self.note_sent(&sent, sig, "");
    }

    /// Some ignore a signal from the moment on at which they act on it: who could when it was sent is not deaf. But a job of
    /// a shell between fork and exec still had the shell's handlers then, or its mask, and ignores it as another program.
    pub(super) fn ask_deaf(&mut self, to: Sig) {
        let may_be_deaf = |process: &&Process| !self.asked.contains(&process.pid.as_raw_pid());
        let receivers: Vec<&Process> = self.receivers.iter().flatten().filter(may_be_deaf).collect();
        // Most commands leave nobody to list.
        if receivers.is_empty() {
            return;
        }
        let still = self.still_there(receivers, |then, now| !then.acts_on(to) || then.is_another_program(now));
        let sent = self.tree.ask_deaf(&self.receivers_of(&still), to, self.time_to_signal());
        if !sent.to.is_empty() || sent.why.is_some() {
            self.note_sent(&sent, Sig::TERM, &format!(" that ignored SIG{to}"));
        }
        self.asked.extend(sent.to.into_iter().map(Pid::as_raw_pid));
    }

    /// Those of an earlier listing who are on one made now, as they are now, and fit with what they were.
    fn still_there<'a>(
        &self,
        earlier: impl IntoIterator<Item = &'a Process>,
        fits: impl Fn(&Process, &Process) -> bool,
    ) -> Vec<Process> {
        let earlier: BTreeMap<i32, &Process> =
            earlier.into_iter().map(|process| (process.pid.as_raw_pid(), process)).collect();
        let is_meant = |now: &Process| {
            earlier.get(&now.pid.as_raw_pid()).is_some_and(|earlier| earlier.is(now) && fits(earlier, now))
        };
        self.list().into_iter().filter(is_meant).collect()
    }

    /// Gives who got it, and the moment right before the first did: who is born from then on may be a helper of those who
    /// act on it.
    fn send(&self, processes: &[Process], sig: Sig) -> (Sent, Births) {
        let mut before = None;
        let sent = self.tree.reach(&self.receivers_of(processes), self.time_to_signal(), &mut |_, pidfd| {
            before.get_or_insert_with(Births::now);
            deliver(pidfd, sig, AndThen::Continue)
        });
        (sent, before.unwrap_or_else(Births::now))
    }

    /// The command comes first, by its own pidfd, which none of the others' need can take away.
    pub(super) fn receivers_of<'a>(&'a self, processes: &'a [Process]) -> Vec<Receiver<'a>> {
        let pidfd = |process: &Process| Some(self.command.as_ref()?.pidfd.as_fd()).filter(|_| self.is_command(process));
        let mut receivers: Vec<Receiver<'_>> =
            processes.iter().map(|process| Receiver { process, pidfd: pidfd(process) }).collect();
        receivers.sort_by_key(|receiver| receiver.pidfd.is_none());
        receivers
    }

    /// The command's process group, or once it has ended the one that it was born into.
    fn commands_group(&self, list: &[Process]) -> Option<i32> {
        let command = list.iter().find(|process| self.is_command(process)).and_then(|command| command.stat.as_ref());
        command.map(|stat| stat.group).or(self.group)
    }
}
