//! The content of an overlay's saved index, in parts: for methods with their own report.

use super::super::error::CliError;
use super::super::output::Output;
use super::super::session::{Repeated, unexpected};
use crate::admin::{MethodContent, MethodContents, MethodKeys, NotKnown, Progress, Request, Response};
use crate::control::Found;
use crate::similarity::SimilarityError;
use crate::similarity::methods::{Chosen, KeyVisitor, unpack_keys};

/// A saved index.
pub(super) struct MethodIndex {
    store: Repeated,
    /// Its method.
    pub(super) method: Chosen,
    /// Its parameters, for people.
    pub(super) parameters: String,
    /// Its contents below the given path, by number.
    pub(super) contents: Vec<MethodContent>,
    /// Files that it lacks.
    pub(super) not_known: NotKnown,
}

impl MethodIndex {
    /// Requests its contents; if there is no such index, returns the parameters of an existing one. Holds the
    /// names of all files.
    pub(super) fn open(
        found: Found,
        method: &Chosen,
        out: &Output,
    ) -> Result<Result<MethodIndex, Option<String>>, CliError> {
        let (store, path) = Repeated::open(found, out)?;
        let mut kept = MethodIndex {
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
            meter.show(&Progress::files("reading the index", done, 0));
        }
        drop(meter);
        Ok(Ok(kept))
    }

    /// Passes each key to `visit`. Other errors go to `failed`.
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
            match unpack_keys(&packed, visit) {
                Some(true) => next = then,
                Some(false) => return Ok(()),
                None => {
                    let message = format!("the index of {} cannot be read", self.method);
                    return Err(CliError::new(message).hint("`dedupctl check --rebuild` rebuilds it"));
                }
            }
        }
        Ok(())
    }

    pub(super) fn close(self) -> Result<(), CliError> {
        self.store.close()
    }
}
