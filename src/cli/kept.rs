//! What an index that an overlay keeps knows of its files, some at a time: for methods with a report of their own.

use super::error::CliError;
use super::output::Output;
use super::session::{Repeated, unexpected};
use crate::admin::{
    MethodContent, MethodContents, MethodKeys, NotKnown, Progress, Request, Response, Unit, of_hex,
};
use crate::control::Found;
use crate::similarity::SimilarityError;
use crate::similarity::methods::{Chosen, KeyVisitor, unpack_keys};

/// An index that is kept.
pub(super) struct KeptIndex {
    store: Repeated,
    /// What it is of.
    pub(super) method: Chosen,
    /// What it was made with, for people to read.
    pub(super) parameters: String,
    /// Its contents below the path that was asked about, by number.
    pub(super) contents: Vec<MethodContent>,
    /// What it has not.
    pub(super) not_known: NotKnown,
}

impl KeptIndex {
    /// Asks for its contents; if there is no such index, tells with which parameters there is one, if any. Holds the names of
    /// all files.
    pub(super) fn open(
        found: Found,
        method: &Chosen,
        out: &Output,
    ) -> Result<Result<KeptIndex, Option<String>>, CliError> {
        let (store, path) = Repeated::open(found, out)?;
        let mut kept = KeptIndex {
            store,
            method: method.clone(),
            parameters: String::new(),
            contents: Vec::new(),
            not_known: NotKnown::default(),
        };
        let mut meter = out.meter();
        let mut next = Some(0);
        while let Some(from) = next {
            let request = Request::MethodContents { path: path.clone(), method: method.clone(), from };
            match kept.store.ask(request, out)? {
                Response::NotKept(has) => {
                    drop(meter);
                    kept.close()?;
                    return Ok(Err(has));
                }
                Response::MethodContents(answer) => {
                    let MethodContents { method, parameters, contents, next: then, not_known } = answer;
                    (kept.method, kept.parameters) = (method, parameters);
                    (kept.not_known, next) = (not_known, then);
                    kept.contents.extend(contents);
                }
                other => return Err(unexpected(&other)),
            }
            let done = kept.contents.len() as u64;
            meter.show(&Progress { what: "reading the index".into(), done, total: 0, unit: Unit::Files });
        }
        drop(meter);
        Ok(Ok(kept))
    }

    /// Gives `visit` each key. What else goes wrong is kept in `failed`.
    pub(super) fn each_key(
        &self,
        out: &Output,
        failed: &mut Option<CliError>,
        visit: KeyVisitor<'_>,
    ) -> Result<(), SimilarityError> {
        self.keys(out, visit).map_err(|e| {
            *failed = Some(e);
            SimilarityError::Interrupted
        })
    }

    fn keys(&self, out: &Output, visit: KeyVisitor<'_>) -> Result<(), CliError> {
        let mut next = Some(0);
        while let Some(from) = next {
            let request = Request::MethodKeys { method: self.method.clone(), from };
            let MethodKeys { packed, next: then } = match self.store.ask(request, out)? {
                Response::MethodKeys(keys) => keys,
                other => return Err(unexpected(&other)),
            };
            let goes_on = of_hex(&packed).and_then(|packed| unpack_keys(&packed, visit));
            match goes_on {
                Some(true) => next = then,
                Some(false) => return Ok(()),
                None => {
                    let message = format!("the index of {} was not understood", self.method);
                    return Err(CliError::new(message).hint("`dedupctl check --rebuild` makes it anew"));
                }
            }
        }
        Ok(())
    }

    pub(super) fn close(self) -> Result<(), CliError> {
        self.store.close()
    }
}
