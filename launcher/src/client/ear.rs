//! What the launcher says to a rank, and the thread that hears it.

use std::io::{self, ErrorKind, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use super::managed::Guarded;
use super::{Fate, Job};
use crate::seal::{self, Opener};
use crate::start::StartError;
use crate::wire::{self, FRAME_MAX, FromLauncher};

/// What the launcher says next. What is refused on the way is counted, and told of once.
pub(super) fn hear(stream: &TcpStream, opener: &mut Opener, rank: u32) -> io::Result<FromLauncher> {
    let mut told = opener.refused();
    let said = seal::read(stream, FRAME_MAX, opener);
    if let Some(note) = opener.note(&mut told) {
        // Standard error may have no reader any more.
        let _ = writeln!(io::stderr(), "rma: rank {rank}: {note}");
    }
    said
}

/// A thread that reads what the launcher says: it may tell of other hosts, and of where ranks are,
/// at any time.
#[derive(Debug)]
pub(super) struct Ear {
    answers: Mutex<mpsc::Receiver<io::Result<FromLauncher>>>,
    pub(super) news: Arc<Mutex<News>>,
}

/// What is done with ranks that are gone.
type Hear = Box<dyn Fn(Range<u32>, Fate) + Send>;

/// What is done with the card of a rank; `None` says that there will be no further ones.
type Told = Box<dyn Fn(Option<(u32, &[u8])>) + Send>;

/// Ranks of other hosts that are gone, and where ranks are.
#[derive(Default)]
pub(super) struct News {
    pub(super) hear: Option<Hear>,
    pub(super) told: Option<Told>,
    /// The connection has ended, or says what is not understood: nothing more is heard.
    pub(super) is_over: bool,
    /// Those that this rank has not heard of yet.
    pub(super) unheard: Vec<(Range<u32>, Fate)>,
}

impl std::fmt::Debug for News {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("News").field("unheard", &self.unheard).finish_non_exhaustive()
    }
}

impl News {
    fn tell(&mut self, ranks: Range<u32>, fate: Fate) {
        match &self.hear {
            Some(hear) => hear(ranks, fate),
            None => self.unheard.push((ranks, fate)),
        }
    }
}

/// What it means that the connection ends.
#[derive(Debug)]
pub(super) struct End {
    /// Nothing, if this rank has ended it.
    pub(super) is_cut: Arc<AtomicBool>,
    /// Ranks that cannot be heard of any more.
    pub(super) lost: Vec<Range<u32>>,
    /// Of a launcher of others, which ends the job then.
    pub(super) managed: Option<Arc<Guarded>>,
}

impl End {
    pub(super) fn of(is_cut: &Arc<AtomicBool>, job: &Job, managed: Option<&Arc<Guarded>>) -> End {
        // The agent tells of other hosts, or rank 0, which serves.
        let here = job.here();
        let mut lost = vec![0..here.start, here.end..job.size];
        lost.retain(|ranks| !ranks.is_empty());
        End { is_cut: Arc::clone(is_cut), lost, managed: managed.cloned() }
    }
}

impl Ear {
    /// Of the connection of that rank, in a thread.
    pub(super) fn start(
        stream: &TcpStream,
        rank: u32,
        mut opener: Opener,
        end: End,
    ) -> Result<Ear, StartError> {
        let system = |source| StartError::System { call: "starting a thread", source };
        let stream = stream.try_clone().map_err(system)?;
        let (sender, answers) = mpsc::channel();
        let news = Arc::new(Mutex::new(News::default()));
        let its = Arc::clone(&news);
        let listen = move || {
            let is_over = loop {
                let said = hear(&stream, &mut opener, rank);
                if let Err(error) = &said
                    && !wire::is_end(error)
                {
                    // Standard error may have no reader any more.
                    let _ =
                        writeln!(io::stderr(), "rma: rank {rank} has lost its launcher: {error}");
                }
                let mut news = its.lock().unwrap_or_else(PoisonError::into_inner);
                match said {
                    Ok(FromLauncher::Gone { first, count, fate }) => {
                        news.tell(first..first.saturating_add(count), fate);
                        continue;
                    }
                    Ok(FromLauncher::Card { rank, ref card }) => {
                        news.told.iter().for_each(|told| told(Some((rank, card))));
                        continue;
                    }
                    _ => {}
                }
                let is_over = said.is_err();
                if is_over {
                    news.is_over = true;
                    news.told.iter().for_each(|told| told(None));
                }
                drop(news);
                let is_heard = sender.send(said).is_ok();
                if is_over || !is_heard {
                    break is_over;
                }
            };
            // pairs with the Release store in `cut`.
            if !is_over || end.is_cut.load(Ordering::Acquire) {
                return;
            }
            let mut news = its.lock().unwrap_or_else(PoisonError::into_inner);
            end.lost.iter().for_each(|ranks| news.tell(ranks.clone(), Fate::Failed));
            drop(news);
            end.managed.iter().for_each(|managed| managed.end_soon());
        };
        std::thread::Builder::new().name("rma-launcher".into()).spawn(listen).map_err(system)?;
        Ok(Ear { answers: Mutex::new(answers), news })
    }

    pub(super) fn answer(&self) -> io::Result<FromLauncher> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        // The thread has told its end, and is gone.
        answers.recv().unwrap_or_else(|_| Err(ErrorKind::UnexpectedEof.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::seal::{Side, With};

    /// An ear whose connection has ended: what it tells, until its thread is gone.
    fn ended(is_cut: bool, hears_before: bool) -> Vec<(Range<u32>, Fate)> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let is_cut = Arc::new(AtomicBool::new(is_cut));
        let end = End { is_cut, lost: vec![0..2, 3..4], managed: None };
        let (_, opener) = seal::pair(&[0; 32], With::Rank(1), [&[0; 32]; 2], Side::Other);
        let ear = Ear::start(&stream, 1, opener, end).unwrap();
        let (sender, heard) = mpsc::channel();
        let hear = Box::new(move |ranks, fate| sender.send((ranks, fate)).unwrap());
        if hears_before {
            ear.news.lock().unwrap().hear = Some(hear);
            drop(server);
            assert!(ear.answer().is_err());
            while Arc::strong_count(&ear.news) > 1 {
                std::thread::yield_now();
            }
        } else {
            drop(server);
            while Arc::strong_count(&ear.news) > 1 {
                std::thread::yield_now();
            }
            ear.news.lock().unwrap().unheard.drain(..).for_each(|(ranks, fate)| hear(ranks, fate));
        }
        drop(ear);
        heard.try_iter().collect()
    }

    #[test]
    fn ranks_that_cannot_be_heard_of_any_more_are_lost_unless_this_one_leaves() {
        let lost = [(0..2, Fate::Failed), (3..4, Fate::Failed)];
        for hears_before in [true, false] {
            assert_eq!(ended(false, hears_before), lost);
            assert_eq!(ended(true, hears_before), []);
        }
    }
}
