//! On a real terminal, under a real interactive bash: nobody should notice that treekill-run is there.

mod common;

#[path = "terminal/background.rs"]
mod background;
#[path = "terminal/giving_back.rs"]
mod giving_back;
#[path = "terminal/jobs.rs"]
mod jobs;
#[path = "terminal/keys.rs"]
mod keys;
#[path = "terminal/programs.rs"]
mod programs;
#[path = "terminal/pty.rs"]
mod pty;
#[path = "terminal/sessions.rs"]
mod sessions;
#[path = "terminal/vanishing.rs"]
mod vanishing;
