//! One process follows another: a candidate starts beside the one that serves, which finishes what it holds.

use std::sync::Arc;
use std::time::Duration;

use bingo_plugin_sdk::manifest::Reload;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Halt, Keeper, Order, Phase, Retired, Serving};
use crate::telemetry::words;

/// How many processes of a plugin may finish what they hold beside the one that serves.
const RETIRED: usize = 2;

/// How often a retired process is looked at once nobody can call it any more.
const LOOK: Duration = Duration::from_millis(20);

impl Keeper {
    /// Starts a candidate beside the process that serves, and lets it follow when it is well.
    pub(super) async fn renew(&mut self, serving: Box<Serving>) -> Phase {
        self.setup = self.owner.setup(&self.source.name);
        let source = match self.reload() {
            Ok(source) => source,
            Err(reason) => return self.kept(serving, &reason),
        };
        let mut serving = Some(serving);
        let prepared = self.prepare(&source, Some(&mut serving)).await;
        let (prepared, serving) = match (prepared, serving) {
            (Ok(prepared), Some(serving)) => (prepared, serving),
            // It died meanwhile.
            (Ok(_), None) => {
                self.source = source;
                return Phase::Start { after: Some("it died while it was replaced".into()) };
            }
            (Err(halt), serving) => return self.unswapped(halt, serving),
        };
        if source.manifest.reload == Reload::StopFirst {
            // What could not be started must not end what serves.
            if let Err(error) = self.owner.program(&source, &self.setup, prepared.as_ref()).await {
                return self.kept(serving, &words(&error));
            }
            let reason: Arc<str> = "it is being replaced".into();
            self.publish(self.restarting(&reason));
            serving.process.stop(&reason).await;
            self.source = source;
            return Phase::Start { after: None };
        }
        let process = match self.owner.spawn(&source, &self.setup, prepared).await {
            Ok(process) => process,
            Err(error) => return self.kept(serving, &words(&error)),
        };
        let old = std::mem::replace(&mut self.source, source);
        let mut serving = Some(serving);
        match self.shake(process, Some(&mut serving)).await {
            Ok(well) => {
                self.deaths.forget();
                self.restarts += 1;
                let phase = self.ready(well);
                serving.into_iter().for_each(|serving| self.retire(serving));
                phase
            }
            Err(halt) => {
                if serving.is_some() {
                    self.source = old;
                }
                self.unswapped(halt, serving)
            }
        }
    }

    /// What follows when no candidate came to serve; the old process may have died meanwhile.
    fn unswapped(&mut self, halt: Halt, serving: Option<Box<Serving>>) -> Phase {
        match (halt, serving) {
            (Halt::Failed(error), Some(serving)) => self.kept(serving, &words(&error)),
            (Halt::Failed(error), None) => self.refused(&error, Some("it died while it was replaced".into())),
            (Halt::Told(order), Some(serving)) => self.again(order, serving),
            (Halt::Told(order), None) => self.obey(order),
        }
    }

    /// Follows an order that came while a candidate was starting, which is gone.
    fn again(&mut self, order: Option<Order>, serving: Box<Serving>) -> Phase {
        match order {
            Some(Order::Renew(reply) | Order::Enable(reply)) => {
                // What changed once more is tried from the start, by the order that `serve` finds next.
                self.replies.extend(reply);
                self.owner.renew(&self.source.name);
                Phase::Serve(serving)
            }
            order => {
                let phase = self.obey(order);
                self.retire(serving);
                phase
            }
        }
    }

    /// The old process serves on, because the candidate is not well.
    fn kept(&mut self, serving: Box<Serving>, reason: &str) -> Phase {
        if self.owner.stop.is_cancelled() {
            return Phase::Serve(serving);
        }
        let (name, generation) = (&self.source.name, serving.process.connection.generation());
        let text =
            format!("{name}: the new process is not used, generation {generation} serves on: {reason}");
        self.owner.post("PLUGIN_SWAP_FAILED", text);
        self.answer(Err(reason.to_owned()));
        Phase::Serve(serving)
    }

    /// Lets a process finish what it holds, beside at most one more.
    pub(super) fn retire(&mut self, serving: Box<Serving>) {
        self.retired.retain(|retired| !retired.task.is_finished());
        let overdue = (self.retired.len() + 1).saturating_sub(RETIRED);
        self.retired.drain(..overdue).for_each(|oldest| oldest.hurry.cancel());
        let hurry = CancellationToken::new();
        let finishing = finish(serving, self.owner.stop.clone(), hurry.clone());
        self.retired.push(Retired { hurry, task: self.owner.tasks.spawn(finishing) });
    }
}

/// Waits until nobody holds the process and all its calls are over, then stops it.
async fn finish(serving: Box<Serving>, stop: CancellationToken, hurry: CancellationToken) {
    let Serving { mut process, released, .. } = *serving;
    let connection = process.connection.clone();
    let idle = async {
        released.cancelled().await;
        while !connection.is_idle() {
            sleep(LOOK).await;
        }
    };
    let (limit, replaced) = (connection.limits().retire, Instant::now());
    tokio::select! {
        () = idle => {}
        () = connection.clock().passed(|| replaced, limit) => {}
        () = hurry.cancelled() => {}
        () = stop.cancelled() => {}
        reason = process.death() => return process.destroy(&reason).await,
    }
    tracing::info!(plugin = %connection.plugin(), generation = %connection.generation(), "a process is retired");
    process.stop(&"it was replaced by another process of the plugin".into()).await;
}
