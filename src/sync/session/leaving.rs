use super::super::batch::Teller;
use super::super::content::{Sender, Want};
use super::super::error::SyncError;
use super::super::replica::Replica;
use super::super::tree::Tree;

/// Contents on the way to the peer: deltas first, then chunks.
pub(super) struct Leaving {
    pub(super) teller: Teller,
    pub(super) sender: Sender,
}

impl Leaving {
    pub(super) fn new(
        wants: Vec<Want>,
        theirs: &Tree,
        replica: &mut dyn Replica,
    ) -> Result<Leaving, SyncError> {
        let (teller, others) = Teller::new(wants, theirs, replica)?;
        Ok(Leaving { teller, sender: Sender::new(others)? })
    }
}
