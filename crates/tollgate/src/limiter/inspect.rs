//! Reading the counters of one client.

use smallvec::SmallVec;

use super::LimiterSnapshot;
use crate::counters::{Charges, CounterStore, StoreError};
use crate::identity::{Request, Scratch};
use crate::inspect::{EndpointScope, Inspection};
use crate::record::RecordSink;
use crate::rules::CHARGES_MAX;
use crate::time::Timestamp;

impl<S: CounterStore, R: RecordSink> LimiterSnapshot<'_, S, R> {
    /// Returns what the counters of the request's client hold, for every enabled rule that counts it.
    ///
    /// While the store is unreachable, this node's fallback counters are returned instead.
    ///
    /// # Errors
    /// [`StoreError::Misconfigured`] when the store rejects our calls.
    pub async fn inspect(
        &self,
        request: &Request<'_>,
        endpoints: EndpointScope,
        now: Timestamp,
    ) -> Result<Inspection, StoreError> {
        let (limiter, rules) = (self.limiter, &self.rules);
        let request = Request { cost: 0, ..request.clone() };
        let mut scratch = Scratch::default();
        let (of_client, skipped) = rules.charges_to_inspect(&request, &mut scratch, endpoints);
        let mut inspection =
            Inspection { counters: Vec::new(), cooldown: None, skipped, degraded: false, now };
        // The penalty record is read by itself: a cooldown would hide the limits.
        let limits = of_client.charges.chunks(CHARGES_MAX).map(|some| (SmallVec::from_slice(some), None));
        let penalty = of_client.penalty.map(|penalty| (SmallVec::new(), Some(penalty)));
        for (charges, penalty) in limits.chain(penalty) {
            let charges = Charges { charges, penalty, dry_run: true, tenant: of_client.tenant };
            match limiter.charge(&charges, now).await {
                Ok(verdicts) => inspection.add(&charges, &verdicts, None),
                Err(StoreError::Misconfigured) => return Err(StoreError::Misconfigured),
                Err(_) => {
                    let nodes = limiter.counters.nodes();
                    let (verdicts, _) = limiter.fallback.charge(&charges, nodes, now);
                    inspection.add(&charges, &verdicts, Some(nodes));
                }
            }
        }
        Ok(inspection)
    }
}
