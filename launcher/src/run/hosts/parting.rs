//! The end of a connection whose rank has exited.

use tokio::sync::mpsc::UnboundedSender;

use super::super::driver::Input;
use super::super::machine::Event;

/// Has the agent take the connection of a rank that has exited for over when `grace` is: what the
/// rank said there has come by then, and what the rank has started may keep it open.
pub(super) fn part(
    rank: u32,
    sender: UnboundedSender<Input>,
    grace: impl Future<Output = ()> + Send + 'static,
) {
    tokio::spawn(async move {
        grace.await;
        // It fails where the agent itself has ended.
        _ = sender.send(Input::Event(Event::Disconnected(rank)));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Builder;
    use tokio::sync::mpsc::unbounded_channel;
    use tokio::sync::oneshot;

    #[test]
    fn words_that_come_within_the_grace_are_heard_before_the_end() {
        Builder::new_current_thread().build().unwrap().block_on(async {
            let (sender, mut heard) = unbounded_channel();
            let (end, grace) = oneshot::channel();
            part(3, sender.clone(), async { grace.await.unwrap() });
            // Whatever does not wait for the grace is done before this task goes on.
            tokio::task::yield_now().await;
            let word = Event::Left { rank: 3, failed: false, missed: None };
            sender.send(Input::Event(word.clone())).unwrap();
            drop(sender);
            end.send(()).unwrap();
            let mut next = async || match heard.recv().await {
                Some(Input::Event(event)) => Some(event),
                Some(_) => panic!("neither of both"),
                None => None,
            };
            assert_eq!(next().await, Some(word));
            assert_eq!(next().await, Some(Event::Disconnected(3)));
            assert_eq!(next().await, None, "told once");
        });
    }
}
