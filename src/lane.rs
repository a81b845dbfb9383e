//! The delivery threads.

use crate::session::Admission;
use tokio::sync::mpsc;

/// The handle to all lanes.
pub struct Lanes {
    mailboxes: Vec<mpsc::Sender<Admission>>,
}

impl Lanes {
    /// Hands a connection to the least loaded lane.
    ///
    /// # Errors
    /// Gives the admission back when every lane's mailbox is full or the lanes have stopped.
    pub fn admit(&self, admission: Admission) -> Result<(), Box<Admission>> {
        match self.mailboxes.first() {
            Some(mailbox) => mailbox.try_send(admission).map_err(|e| Box::new(e.into_inner())),
            None => Err(Box::new(admission)),
        }
    }
}
