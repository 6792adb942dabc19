//! What ranks of this host print.

use std::io;
use std::sync::Arc;

use tokio::net::unix::pipe::Receiver;
use tokio::sync::{Semaphore, watch};

use super::super::output::silence;
use super::talk::{PIECE, Word};
use super::voice::Voice;

/// A rank, and whether it is its standard error.
pub(super) type StreamOfRank = (u32, bool);

/// Sends what a rank prints, as much as there is room for; a pipe that is silent once the job is
/// over is of no rank. Once there is no launcher any more, what is printed is thrown away: ranks
/// that may still say something must not end by writing where no process reads.
pub(super) async fn relay(
    (rank, is_err): StreamOfRank,
    pipe: Receiver,
    window: Arc<Semaphore>,
    voice: Voice,
    mut stop: watch::Receiver<bool>,
) {
    let mut piece = vec![0; PIECE];
    loop {
        // The launcher's reader may be slow; that is no silence of the pipe.
        let Ok(first) = window.acquire().await else { return throw_away(&pipe, &mut piece).await };
        first.forget();
        let is_ready = tokio::select! {
            biased;
            ready = pipe.readable() => ready.is_ok(),
            () = silence(&mut stop) => false,
        };
        if !is_ready {
            break;
        }
        // One is held already.
        let more = window.available_permits().min(PIECE - 1);
        let more = match window.try_acquire_many(more as u32) {
            Ok(permits) => {
                permits.forget();
                more
            }
            Err(_) => 0,
        };
        let read = pipe.try_read(&mut piece[..=more]);
        let count = match read {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(_) => break,
        };
        window.add_permits(more + 1 - count);
        if count > 0 {
            voice.say(&Word::Output { rank, is_err, bytes: piece[..count].to_vec() });
        }
    }
    voice.say(&Word::OutputEnded { rank, is_err });
}

async fn throw_away(pipe: &Receiver, piece: &mut [u8]) {
    while pipe.readable().await.is_ok() {
        match pipe.try_read(piece) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
