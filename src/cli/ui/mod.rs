//! `dedupctl ui`: the reports of other commands as pages for a browser on this machine. [`crate::web`] decides which
//! requests are answered.

mod job;
mod pages;
mod source;

use super::error::CliError;
use super::output::Output;
use super::{CliResult, Global, Outcome};
use crate::web::Server;
use pages::Ui;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use source::Source;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Time for running requests to end after a signal.
const END_TIME: Duration = Duration::from_secs(2);

/// Serve pages for a browser on this machine
#[derive(clap::Args)]
#[command(
    after_help = "Prints an address with a secret token: everyone who has it can read all that this command can read. \
    The pages are served on this machine only and change nothing. Ctrl-C ends the command. \
    Until then it keeps the store open if nothing is mounted.\n\
    Example: dedupctl ui /data\n\
    Example: ssh -L 8080:127.0.0.1:8080 server dedupctl ui /data --port 8080"
)]
pub(super) struct UiCommand {
    /// Any path in the overlay; by default the current directory
    path: Option<PathBuf>,
    /// Listen at this port of 127.0.0.1 [default: a free one]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    port: u16,
}

#[derive(Serialize)]
struct Started {
    url: String,
}

impl UiCommand {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let failed = |what: &str, e: io::Error| CliError::new(format!("{what}: {e}"));
        // From here on a signal ends the command successfully.
        let (mut told, tell) = UnixStream::pair().map_err(|e| failed("wait for signals", e))?;
        for signal in [SIGINT, SIGTERM] {
            let tell = tell.try_clone().map_err(|e| failed("wait for signals", e))?;
            signal_hook::low_level::pipe::register(signal, tell)
                .map_err(|e| failed("wait for signals", e))?;
        }
        let ui = Ui::new(Source::open(global, self.path.as_deref(), out)?);
        let server = Server::bind(self.port).map_err(|e| {
            failed(&format!("listen at port {} of 127.0.0.1", self.port), e)
                .hint("give another --port, or none for a free one")
        })?;
        let pages = ui.clone();
        server.start(move |request| pages.answer(request)).map_err(|e| failed("start a thread", e))?;
        out.result(&Started { url: server.url().to_owned() }, |started| format!("{}\n", started.url))?;
        out.note("open this in a browser on this machine; Ctrl-C ends it");
        let _ = told.read_exact(&mut [0]);
        server.stop(END_TIME);
        Ok(Outcome::Clean)
    }
}
