//! What must always hold, checked at every step.

use std::collections::BTreeMap;
use std::time::Duration;

use baton_election::record::EpochRecord;

/// Something that must hold did not.
#[derive(Debug)]
pub struct Broken {
    /// In which run.
    #[allow(dead_code, reason = "printed")]
    pub seed: u64,
    /// When.
    #[allow(dead_code, reason = "printed")]
    pub at: Duration,
    /// What.
    pub what: String,
}

#[derive(Debug, Default)]
pub struct Check {
    seed: u64,
    /// Who holds each epoch number, and with which nonce.
    holders: BTreeMap<u64, (String, String)>,
    /// Tokens of promotions, in the order of real time.
    tokens: Vec<(u64, String)>,
    /// The longest that a calm was without a coordinator, in hundredths of the bound.
    pub slowest: u64,
}

impl Check {
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    fn broken(&self, at: Duration, what: String) -> Broken {
        Broken { seed: self.seed, at, what }
    }

    /// A record was written: one holder and one nonce for each epoch number, and numbers only rise (I1, I4).
    pub fn written(
        &mut self,
        at: Duration,
        before: Option<&EpochRecord>,
        after: &EpochRecord,
    ) -> Result<(), Broken> {
        let holder = (after.coordinator_id.clone(), after.nonce.clone());
        let known = self.holders.entry(after.epoch_number).or_insert_with(|| holder.clone());
        if *known != holder {
            let what = format!("epoch number {} has two holders: {known:?}, {holder:?}", after.epoch_number);
            return Err(self.broken(at, what));
        }
        let highest = self.holders.keys().next_back().copied().unwrap_or(0);
        if after.epoch_number < highest {
            let what = format!("the epoch number fell from {highest} to {}", after.epoch_number);
            return Err(self.broken(at, what));
        }
        let same_term = before.is_some_and(|before| before.nonce == after.nonce);
        if same_term && before.is_some_and(|before| before.lease_seq >= after.lease_seq) {
            return Err(self.broken(at, format!("the record did not move on: {after:?}")));
        }
        Ok(())
    }

    /// A worker begins to coordinate, or may go on: no other does (I2, I5).
    pub fn leading(&mut self, at: Duration, leading: &[String]) -> Result<(), Broken> {
        if leading.len() > 1 {
            return Err(self.broken(at, format!("two coordinators at a time: {leading:?}")));
        }
        Ok(())
    }

    /// A worker begins to coordinate: its token is higher than all before it (I3).
    pub fn promoted(&mut self, at: Duration, worker: &str, token: u64) -> Result<(), Broken> {
        if let Some((last, who)) = self.tokens.last()
            && token <= *last
        {
            return Err(self.broken(at, format!("{worker} was given {token} after {who} was given {last}")));
        }
        self.tokens.push((token, worker.to_owned()));
        Ok(())
    }

    /// There was no coordinator for `without` in a calm; at most `bound` is allowed.
    pub fn idle(&mut self, at: Duration, without: Duration, bound: Duration) -> Result<(), Broken> {
        let share = u64::try_from(without.as_micros() * 100 / bound.as_micros()).unwrap_or(u64::MAX);
        self.slowest = self.slowest.max(share);
        if without > bound {
            let what = format!("no coordinator for {without:?}, the bound is {bound:?}");
            return Err(self.broken(at, what));
        }
        Ok(())
    }

    pub fn promotions(&self) -> u64 {
        self.tokens.len() as u64
    }

    pub fn last_coordinator(&self) -> Option<&str> {
        self.tokens.last().map(|(_, worker)| worker.as_str())
    }
}
