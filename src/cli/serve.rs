use super::attributes::Attributes;
use super::error::CliError;
use super::home::home;
use super::output::Output;
use super::watcher::Watcher;
use super::{CliResult, Global, Outcome, replica, synced};
use crate::control::{self, ControlError};
use crate::repo::InitOptions;
use crate::sync::pipe::{self, Outgoing};
use crate::sync::plan::Summary;
use crate::sync::proto::{self, Failure, Message};
use crate::sync::{Local, Replica, Session, link};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

/// Answer a sync on stdin and stdout (ssh starts this)
#[derive(clap::Args)]
#[command(
    after_help = "`dedupctl sync HOST:DIR` starts this on HOST by ssh.\nExample: dedupctl serve --stdio /data"
)]
pub(super) struct Serve {
    /// The overlay; a directory without a store becomes one
    dir: PathBuf,
    /// Speak the protocol on stdin and stdout
    #[arg(long, required = true)]
    stdio: bool,
    /// Answer one sync after another, and tell the other side about changes
    #[arg(long)]
    watch: bool,
    /// Create the directory if it is missing
    #[arg(long)]
    create: bool,
    /// Refuse any copy except this device's
    #[arg(long, value_name = "DEVICE")]
    expect: Option<String>,
    /// Accept an empty directory as one whose files were all deleted
    #[arg(long)]
    force: bool,
    /// Only compare
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    attributes: Attributes,
    /// Allow the overlay in a system directory, in another user's home, or above mounts
    #[arg(long)]
    force_root: bool,
    /// Give up after this long without a sign from the other side
    #[arg(long, value_name = "SECONDS", default_value_t = pipe::SILENCE_SECONDS, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
}

impl Serve {
    pub(super) fn run(&self, _global: &Global, _out: &Output) -> CliResult {
        debug_assert!(self.stdio);
        let file =
            |fd: io::Result<_>| fd.map(File::from).map_err(|e| CliError::new(format!("open a pipe: {e}")));
        let from = file(io::stdin().as_fd().try_clone_to_owned())?;
        let to = file(io::stdout().as_fd().try_clone_to_owned())?;
        let limits = pipe::Limits { silence: Duration::from_secs(self.timeout.into()), rate: None };
        let (mut from, mut to) = pipe::connect(from, to, limits);
        let served = match self.watch {
            true => self.keep_serving(&mut from, &to),
            false => self.serve(&mut from, &mut to),
        };
        served.inspect_err(|e| {
            // The caller has a terminal; this process may have none.
            let failure = Failure { message: e.message.clone(), hint: e.hint.clone() };
            if !e.silent {
                let _ = proto::write(&mut to, &Message::Failed(failure));
            }
        })?;
        Ok(Outcome::Clean)
    }

    /// Returns the options for a new overlay.
    fn init(&self) -> InitOptions {
        InitOptions { force_root: self.force_root, home: home(), ..InitOptions::default() }
    }

    /// Returns whether a copy must be created. A missing copy that an earlier sync met is an error without `--create`.
    fn is_to_be_made(&self) -> Result<bool, CliError> {
        let missing = !self.dir.exists() || matches!(control::find(&self.dir), Err(ControlError::NoStore(_)));
        match &self.expect {
            Some(expected) if missing && !self.create => {
                let message = format!(
                    "{}: no copy is here, and that of {expected} was met here before",
                    self.dir.display()
                );
                Err(CliError::new(message)
                    .hint("mount the disk that it is on; or make a new copy here with `--create`"))
            }
            _ => Ok(missing),
        }
    }

    fn check_device(&self, expected: &str, found: &str) -> Result<(), CliError> {
        if expected == found {
            return Ok(());
        }
        let message = format!(
            "{}: this is the copy of {found}, and that of {expected} was met here before",
            self.dir.display()
        );
        Err(CliError::new(message).hint(
            "plug in the disk of that copy; or sync with this one from now on: `dedupctl sync --replace`, or \
             `dedupctl remote add --replace` for a name",
        ))
    }

    fn serve(&self, from: &mut impl Read, to: &mut impl Write) -> Result<(), CliError> {
        if !self.create && !self.dir.exists() {
            let message = format!("{}: no such directory", self.dir.display());
            return Err(
                CliError::new(message).hint("mount the disk that it is on, or make it with `--create`")
            );
        }
        let made = self.is_to_be_made()?;
        if self.dry_run
            && let Some(plain) = replica::Plain::find(&self.dir, &self.init())?
        {
            let mut local = plain.replica(self.force, self.attributes, Box::new(|_, _| {}))?;
            return answer(&mut local, None, from, to).map(drop);
        }
        let mounted = replica::open(&self.dir, Some(&self.init()))?;
        let mut local = mounted.replica(self.force, self.dry_run, self.attributes, Box::new(|_, _| {}))?;
        if let Some(expected) = self.expect.as_ref().filter(|_| !made) {
            self.check_device(expected, local.device().as_str())?;
        }
        let session = answer(&mut local, None, from, to)?;
        if !self.dry_run {
            synced::note(&mounted.memory, &mounted.tree, &session, None)?;
        }
        if session.outcome().here != Summary::default() && !self.dry_run {
            local.settle(mounted.is_temporary())?;
        }
        Ok(())
    }

    /// Answers one sync after another, until the other side closes the connection.
    fn keep_serving<W: Write + AsFd + Send + 'static>(
        &self,
        from: &mut impl Read,
        to: &Outgoing<W>,
    ) -> Result<(), CliError> {
        let mounted = replica::open_mounted(&self.dir)?;
        let watcher = Watcher::start(mounted.daemon(), to.clone(), Message::Changed(()))?;
        to.stay_alive();
        let (mut to, mut hello) = (to.clone(), None);
        loop {
            watcher.busy();
            let mut local = mounted.replica(self.force, false, self.attributes, Box::new(|_, _| {}))?;
            if let Some(expected) = &self.expect {
                self.check_device(expected, local.device().as_str())?;
            }
            let session = answer(&mut local, hello, from, &mut to)?;
            drop(local);
            synced::note(&mounted.memory, &mounted.tree, &session, None)?;
            watcher.idle()?;
            hello = link::until_called(from, &mut to)?;
            if hello.is_none() {
                return Ok(());
            }
        }
    }
}

/// Answers one sync, whose first message may be here already.
fn answer(
    local: &mut Local<'_>,
    hello: Option<Message>,
    from: &mut impl Read,
    to: &mut impl Write,
) -> Result<Session, CliError> {
    let mut session = Session::answer();
    if let Some(hello) = hello {
        session.receive(hello, local)?;
    }
    let done = link::run(&mut session, local, from, to, &mut |_, _| {});
    // The caller has got the error already.
    done.map_err(|e| CliError { silent: true, ..CliError::from(e) })?;
    Ok(session)
}
