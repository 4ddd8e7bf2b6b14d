use super::output::Output;
use super::session::{Session, Work, find, unexpected};
use super::{CliResult, Global, Outcome};
use crate::admin::{Request, Response};
use std::path::PathBuf;

/// Wait until all closed files are stored and durable
#[derive(clap::Args)]
#[command(
    after_help = "Does not wait for files that programs close meanwhile. It also converts files that the daemon would let \
    rest first: those with a policy like idle:10m, and those that are written often. Files that are repeatedly rewritten as \
    a whole, and share nothing with their older versions, stay plain.\nExample: cp -r project /data/ && dedupctl settle /data"
)]
pub(super) struct Settle {
    /// Any path in the overlay; by default the current directory
    path: Option<PathBuf>,
}

impl Settle {
    pub(super) fn run(&self, global: &Global, out: &Output) -> CliResult {
        let (session, _) = Session::open(find(global, self.path.as_deref())?, Work::Change, out)?;
        let withholds = session.withholds();
        let report = match session.ask(Request::Settle, out)? {
            Response::Settle(report) => report,
            other => return Err(unexpected(&other)),
        };
        out.result(&report, |report| match report.pending {
            0 => "settled\n".to_owned(),
            pending => format!("settled; {pending} files were closed meanwhile\n"),
        })?;
        match report.kept_plain {
            0 => {}
            1 => out.note("1 file is kept plain: it is rewritten repeatedly as a whole"),
            files => {
                out.note(&format!("{files} files are kept plain: they are rewritten repeatedly as a whole"));
            }
        }
        if withholds {
            out.note("nothing is mounted: files were indexed, and stay plain until the overlay is mounted");
        }
        Ok(Outcome::Clean)
    }
}
