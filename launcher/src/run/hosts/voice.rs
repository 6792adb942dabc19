//! An agent's end of the connection to its launcher: threads that may block write to it and read
//! from it.

use std::io::{self, Read, Write};
use std::sync::mpsc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::talk::{FRAME_MAX, GREETING, Order, Word};
use crate::seal::{self, Opener, Sealer, Side};
use crate::wire::{self, HELLO_MAX};

pub(super) fn complain(why: &str) -> u8 {
    // Shown by the launcher, if there is one.
    let _ = writeln!(io::stderr(), "rma-run agent: {why}");
    1
}

/// Shows a launcher that has started this agent by a remote shell that it is there, and takes what
/// both seal by from there on.
///
/// # Errors
///
/// The launcher is gone, says nothing for so long, or something else.
pub(super) fn greet(patience: Duration) -> io::Result<(Sealer, Opener)> {
    let mut to = io::stdout();
    to.write_all(format!("{GREETING}\n").as_bytes())?;
    to.flush()?;
    let patience = patience.try_into().map_err(io::Error::other)?;
    if poll(&mut [PollFd::new(&io::stdin(), PollFlags::IN)], Some(&patience))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let key = wire::read(io::stdin(), HELLO_MAX)?;
    Ok(seal::by_key(&key, Side::Other))
}

/// Comes to its end when the last [`Voice`] has, and all that was said is on its way.
pub(super) type Spoken = oneshot::Receiver<()>;

/// What goes to the launcher, through a thread that may block.
#[derive(Debug, Clone)]
pub(super) struct Voice(mpsc::Sender<Said>);

/// A frame, and what is dropped when it is on its way.
type Said = (Vec<u8>, Option<OwnedSemaphorePermit>);

impl Voice {
    pub(super) fn start(
        mut to: Box<dyn Write + Send>,
        mut sealer: Sealer,
    ) -> io::Result<(Voice, Spoken)> {
        let (voice, said) = mpsc::channel::<Said>();
        let (ending, spoken) = oneshot::channel::<()>();
        let speak = move || {
            // Told by its end.
            let _ending = ending;
            for (bytes, _permit) in said {
                let bytes = sealer.seal(bytes);
                // Its end is noticed where orders are read.
                if to.write_all(&bytes).and_then(|()| to.flush()).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("voice".into()).spawn(speak)?;
        Ok((Voice(voice), spoken))
    }

    pub(super) fn say(&self, word: &Word) {
        self.say_with(word, None);
    }

    /// Gives the permit back when that is said.
    pub(super) fn say_with(&self, word: &Word, permit: Option<OwnedSemaphorePermit>) {
        match wire::encode_within(word, FRAME_MAX) {
            // The thread is gone when the launcher is.
            Ok(frame) => _ = self.0.send((frame, permit)),
            // None is: what ranks say is bounded, and there is room for all of that.
            Err(error) => _ = complain(&format!("a word to the launcher is lost: {error}")),
        }
    }
}

/// Reads orders in a thread; the channel ends with the connection.
pub(super) fn listen(
    mut from: Box<dyn Read + Send>,
    mut opener: Opener,
) -> io::Result<UnboundedReceiver<Order>> {
    let (sender, orders) = unbounded_channel();
    let read = move || {
        let ended = loop {
            match seal::read::<Order>(&mut from, FRAME_MAX, &mut opener) {
                Ok(order) => {
                    if sender.send(order).is_err() {
                        return;
                    }
                }
                Err(error) => break error,
            }
        };
        let refused = opener.refused();
        if !wire::is_end(&ended) {
            complain(&format!("the launcher cannot be understood: {ended}"));
        } else if refused > 0 {
            complain(&format!("{refused} orders that are not of the launcher were refused"));
        }
    };
    std::thread::Builder::new().name("ear".into()).spawn(read)?;
    Ok(orders)
}
