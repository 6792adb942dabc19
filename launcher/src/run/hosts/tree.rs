//! A tree of agents: of many hosts, this process reaches some by a remote shell of its own, and
//! those by one that the agent of another host has started. What is said goes through that agent,
//! which does not understand it.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::process::ExitStatus;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::Remote;
use super::talk::{Order, PIECE};

/// By which other host each is reached, if not by this process: `reaches` says of each whether
/// another one can reach it, and no more than `fan_out` are reached from one place; 0 is no limit.
/// A host is reached by one that stands before it.
pub(super) fn ways(reaches: &[bool], fan_out: u32) -> Vec<Option<usize>> {
    let mut before = Vec::new();
    let ways = reaches.iter().enumerate().map(|(host, is_reached)| {
        if !is_reached {
            return None;
        }
        before.push(host);
        let place = (before.len() - 1).checked_div(fan_out as usize)?;
        place.checked_sub(1).map(|place| before[place])
    });
    ways.collect()
}

/// What orders for a host go through, and what is said by way of others, or of it.
pub(super) struct Wires {
    pub(super) orders: UnboundedSender<Order>,
    pub(super) said: UnboundedReceiver<Order>,
    /// Of hosts that are reached by this one.
    pub(super) branches: Branches,
    /// If it is reached by another.
    pub(super) stem: Option<Stem>,
}

/// Those of each host.
pub(super) fn wires(remote: &Remote) -> Vec<Wires> {
    let wires = remote.hosts.iter().map(|_| {
        let (orders, said) = unbounded_channel();
        Wires { orders, said, branches: Branches::new(), stem: None }
    });
    let mut wires: Vec<Wires> = wires.collect();
    for (host, by) in remote.ways().into_iter().enumerate() {
        let Some(by) = by else { continue };
        let name = remote.hosts[by].name.clone();
        let before = wires[by].stem.as_ref().map_or(0, |stem| stem.depth);
        let (branch, stem) = branch(host as u32, (name, before), wires[by].orders.clone());
        wires[by].branches.insert(host as u32, branch);
        wires[host].stem = Some(stem);
    }
    wires
}

/// Where what the remote shell of a host prints, that another one has started, is passed to.
pub(super) struct Branch {
    /// Its standard output and error; none once it has ended.
    printed: [Option<UnboundedSender<Vec<u8>>>; 2],
    ended: Option<oneshot::Sender<Result<ExitStatus, String>>>,
}

/// Branches of a host, by the numbers of the hosts.
pub(super) type Branches = HashMap<u32, Branch>;

impl Branch {
    /// What was printed; nothing is the end.
    pub(super) fn take(&mut self, is_err: bool, bytes: Vec<u8>) {
        let to = &mut self.printed[usize::from(is_err)];
        if bytes.is_empty() {
            *to = None;
        } else if let Some(to) = to {
            // Fails when the launcher listens to that host no more.
            let _ = to.send(bytes);
        }
    }

    /// It has ended, or could not be started.
    pub(super) fn end(&mut self, how: Result<ExitStatus, String>) {
        self.printed = [None, None];
        if let Some(ended) = self.ended.take() {
            let _ = ended.send(how);
        }
    }
}

/// The other end of a [`Branch`], and the orders of the host that it is of.
pub(super) struct Stem {
    pub(super) host: u32,
    /// The host by which it is reached, and how many are on the way.
    pub(super) by: String,
    pub(super) depth: u32,
    pub(super) orders: UnboundedSender<Order>,
    pub(super) printed: [Printed; 2],
    pub(super) ended: oneshot::Receiver<Result<ExitStatus, String>>,
}

/// For `host`, which is reached by the host `by`, that so many others are in front of.
fn branch(
    host: u32,
    (by, before): (String, u32),
    orders: UnboundedSender<Order>,
) -> (Branch, Stem) {
    let (out, printed) = unbounded_channel();
    let (err, complained) = unbounded_channel();
    let (ending, ended) = oneshot::channel();
    let printed = [printed, complained].map(|pieces| Printed { pieces, left: Vec::new() });
    let branch = Branch { printed: [Some(out), Some(err)], ended: Some(ending) };
    (branch, Stem { host, by, depth: before + 1, orders, printed, ended })
}

/// What a remote shell prints elsewhere.
pub(super) struct Printed {
    pieces: UnboundedReceiver<Vec<u8>>,
    /// Of the last piece.
    left: Vec<u8>,
}

impl AsyncRead for Printed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left.is_empty() {
            match self.pieces.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(piece) => self.left = piece.unwrap_or_default(),
            }
        }
        let count = self.left.len().min(buffer.remaining());
        buffer.put_slice(&self.left[..count]);
        self.left.drain(..count);
        Poll::Ready(Ok(()))
    }
}

/// The standard input of a remote shell elsewhere.
pub(super) struct Input {
    pub(super) host: u32,
    pub(super) orders: UnboundedSender<Order>,
}

impl AsyncWrite for Input {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // The largest frame of one host is too long for one of another with more around it.
        let bytes = &bytes[..bytes.len().min(PIECE)];
        let pass = Order::Pass { host: self.host, bytes: bytes.to_vec() };
        let sent = self.orders.send(pass).map_err(|_| io::ErrorKind::BrokenPipe.into());
        Poll::Ready(sent.map(|()| bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn hosts_are_reached_by_those_before_them() {
        let ways = |hosts: usize, fan_out| ways(&vec![true; hosts], fan_out);
        assert_eq!(ways(3, 0), [None; 3]);
        assert_eq!(ways(3, 3), [None; 3]);
        assert_eq!(ways(4, 1), [None, Some(0), Some(1), Some(2)]);
        let of_two = [None, None, Some(0), Some(0), Some(1), Some(1), Some(2)];
        assert_eq!(ways(7, 2), of_two);
        let many = ways(65_536, 16);
        for fan in [0, 1, 100] {
            let those = many.iter().filter(|way| **way == Some(fan));
            assert_eq!(those.count(), 16);
        }
        let depth = |host: usize| std::iter::successors(many[host], |way| many[*way]).count();
        assert_eq!((depth(15), depth(16), depth(65_535)), (0, 1, 3));
    }

    #[test]
    fn a_host_that_others_do_not_reach_is_reached_from_here() {
        let reached = [false, true, true, false, true];
        assert_eq!(ways(&reached, 1), [None, None, Some(1), None, Some(2)]);
    }

    #[tokio::test]
    async fn what_is_passed_on_is_the_same_bytes() {
        let (orders, mut ordered) = unbounded_channel();
        let (mut branch, mut stem) = branch(7, ("a".into(), 0), orders.clone());
        let bytes: Vec<u8> = (0..3 * PIECE).map(|at| (at % 251) as u8).collect();
        Input { host: 7, orders }.write_all(&bytes).await.unwrap();
        for piece in bytes.chunks(PIECE) {
            let expected = Order::Pass { host: 7, bytes: piece.to_vec() };
            assert_eq!(ordered.recv().await, Some(expected));
        }
        for piece in bytes.chunks(1000) {
            branch.take(false, piece.to_vec());
        }
        branch.take(false, Vec::new());
        branch.take(true, b"why".to_vec());
        branch.end(Err("so".into()));
        let mut printed = Vec::new();
        stem.printed[0].read_to_end(&mut printed).await.unwrap();
        assert!(printed == bytes);
        let mut complained = String::new();
        stem.printed[1].read_to_string(&mut complained).await.unwrap();
        assert_eq!((&*complained, stem.ended.await.unwrap()), ("why", Err("so".into())));
    }
}
