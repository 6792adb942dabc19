//! Where ranks are reached, as each of them says: a rank that first talks to one asks for its card.

use crate::gather::Answer;
use crate::wire::{CARD_MAX, FromLauncher};

/// The cards of all ranks. They are here, so that no rank has them all.
#[derive(Debug)]
pub(crate) struct Cards(Vec<Vec<u8>>);

impl Cards {
    pub(crate) fn new(ranks: u32) -> Cards {
        Cards(vec![Vec::new(); ranks as usize])
    }

    /// Keeps what a rank says of itself; what is no card, because it is too long, is as none.
    pub(crate) fn keep(&mut self, rank: u32, card: Vec<u8>) {
        if let Some(place) = self.0.get_mut(rank as usize) {
            *place = if card.len() > CARD_MAX { Vec::new() } else { card };
        }
    }

    /// What the rank `from` is told of a rank: its card, which is empty if it has given none.
    pub(crate) fn answer(&self, from: u32, rank: u32) -> Answer {
        let card = self.0.get(rank as usize).cloned().unwrap_or_default();
        Answer { ranks: vec![from], message: FromLauncher::Card { rank, card } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(cards: &Cards, rank: u32) -> Vec<u8> {
        let Answer { ranks, message } = cards.answer(1, rank);
        assert_eq!(ranks, [1]);
        let FromLauncher::Card { rank: of, card } = message else { panic!("{message:?}") };
        assert_eq!(of, rank);
        card
    }

    #[test]
    fn a_card_is_told_as_it_was_given() {
        let mut cards = Cards::new(3);
        cards.keep(2, vec![7; CARD_MAX]);
        cards.keep(0, vec![7; CARD_MAX + 1]);
        cards.keep(3, vec![7]);
        assert_eq!(told(&cards, 2), [7; CARD_MAX]);
        for rank in [0, 1, 3, u32::MAX] {
            assert_eq!(told(&cards, rank), [0; 0], "rank {rank} has given none");
        }
    }
}
