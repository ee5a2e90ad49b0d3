//! Tickets of requests.

use pmc_wire::Ticket;

/// Tokens that are drawn at once: asking the system for each would take as long as the rest of a request.
const BATCH: usize = 32;

/// Draws tickets.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    number: u64,
    tokens: Vec<[u8; 16]>,
}

impl Tickets {
    /// Returns the next ticket. `None` if the system has no random bytes.
    pub(super) fn next(&mut self) -> Option<Ticket> {
        if self.tokens.is_empty() {
            let mut tokens = [[0; 16]; BATCH];
            getrandom::fill(tokens.as_flattened_mut()).ok()?;
            self.tokens.extend_from_slice(&tokens);
        }
        self.number += 1;
        Some(Ticket {
            number: self.number,
            token: self.tokens.pop()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_differ() {
        let mut tickets = Tickets::default();
        let drawn: Vec<Ticket> = (0..100).map(|_| tickets.next().unwrap()).collect();
        let mut tokens: Vec<[u8; 16]> = drawn.iter().map(|ticket| ticket.token).collect();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 100);
        assert!(drawn.iter().map(|ticket| ticket.number).eq(1..=100));
    }
}
