//! The steps of a start, each of which heeds orders and the stop of the host: what the plugin needs is installed, its
//! process is started and shaken hands with.

use std::pin::pin;
use std::sync::Arc;

use bingo_plugin_sdk::handshake::InitializeResult;

use super::{Halt, Keeper, Order, Phase, Reply, Serving};
use crate::supervisor::discovery::PluginSource;
use crate::supervisor::generation::{Process, StartError};
use crate::supervisor::limits;
use crate::supervisor::prepare::{self, Preparation, Prepared};
use crate::supervisor::table::PluginState;

impl Keeper {
    pub(super) async fn start(&mut self, after: Option<Arc<str>>) -> Phase {
        self.publish(match &after {
            None => PluginState::Starting,
            Some(reason) => self.restarting(reason),
        });
        let source = self.source.clone();
        self.setup = self.owner.setup(&source.name);
        let prepared = match self.prepare(&source, None).await {
            Ok(prepared) => prepared,
            Err(Halt::Failed(error)) => return self.refused(&error, None),
            Err(Halt::Told(order)) => return self.obey(order),
        };
        if self.owner.is_preparing(&source.name) {
            self.publish(after.as_ref().map_or(PluginState::Starting, |reason| self.restarting(reason)));
        }
        let process = match self.owner.spawn(&source, &self.setup, prepared).await {
            Ok(process) => process,
            Err(error) => return self.refused(&error, None),
        };
        match self.shake(process, None).await {
            Ok(well) => self.ready(well),
            Err(Halt::Failed(error)) => self.refused(&error, after),
            Err(Halt::Told(order)) => self.obey(order),
        }
    }

    /// Has what the plugin needs installed, where that was not done for what it is now.
    pub(super) async fn prepare(
        &mut self,
        source: &PluginSource,
        serving: Option<&mut Option<Box<Serving>>>,
    ) -> Result<Option<Prepared>, Halt> {
        let mut step = match prepare::look(&self.owner, source, &self.setup).await {
            Ok(Preparation::Nothing) => return Ok(None),
            Ok(Preparation::Done(prepared)) => return Ok(Some(prepared)),
            Ok(Preparation::Wanted(step)) => step,
            Err(error) => return Err(Halt::Failed(error)),
        };
        let (owner, name, restarts, last) =
            (Arc::clone(&self.owner), &source.name, self.restarts, self.last.clone());
        let (command, deadline) = (step.command(), limits::words(step.deadline()));
        owner.inform(
            "PLUGIN_PREPARING",
            format!("{name} is being prepared, for {deadline} at most: {command}"),
        );
        // Beside a process that serves nothing is shown of it.
        let shown = serving.is_none();
        let tell = |progress: &str| {
            if shown {
                let state = PluginState::Preparing { progress: progress.into(), last: last.clone() };
                owner.publish(source, restarts, state);
            }
        };
        tell(&command);
        if let Err(halt) = self.attend(step.run(tell, &owner.stop), serving).await {
            step.give_up().await;
            return Err(halt);
        }
        let prepared = step.finish().await.map_err(Halt::Failed)?;
        owner.inform("PLUGIN_PREPARED", format!("{name} is prepared"));
        Ok(Some(prepared))
    }

    /// Shakes hands with a process that was just started.
    pub(super) async fn shake(
        &mut self,
        mut process: Process,
        serving: Option<&mut Option<Box<Serving>>>,
    ) -> Result<(Process, InitializeResult), Halt> {
        let owner = Arc::clone(&self.owner);
        let introduction = owner.introduction(&self.source, &self.setup);
        let halt = match self.attend(process.shake(&introduction, &owner.stop), serving).await {
            Ok(declared) => return Ok((process, declared)),
            Err(halt) => halt,
        };
        let reason = match &halt {
            Halt::Failed(error) => error.to_string(),
            Halt::Told(_) => "it was given up before it was ready".to_owned(),
        };
        process.destroy(&reason.into()).await;
        Err(halt)
    }

    /// Waits for a step of a start unless an order comes that it does not fulfil. A process that serves is watched
    /// meanwhile; its death is published.
    async fn attend<T>(
        &mut self,
        step: impl Future<Output = Result<T, StartError>>,
        mut serving: Option<&mut Option<Box<Serving>>>,
    ) -> Result<T, Halt> {
        let mut step = pin!(step);
        loop {
            let death = async {
                match serving.as_deref_mut() {
                    Some(Some(serving)) => serving.process.death().await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                result = &mut step => return result.map_err(Halt::Failed),
                order = self.order() => match order {
                    // Switched on it is.
                    Some(Order::Enable(reply)) => self.join(reply, serving.as_deref().and_then(Option::as_deref)),
                    order => return Err(Halt::Told(order)),
                },
                reason = death => {
                    let dead = serving.as_deref_mut().and_then(Option::take);
                    self.publish(self.restarting(&reason));
                    self.owner.bury(&self.source.name, dead.map(|dead| dead.process), &reason);
                }
            }
        }
    }

    /// Answers with the process that serves, or lets whoever asked wait for the one that is starting.
    fn join(&mut self, reply: Option<Reply>, serving: Option<&Serving>) {
        match (reply, serving) {
            (Some(reply), Some(serving)) => drop(reply.send(Ok(serving.process.connection.generation()))),
            (reply, _) => self.replies.extend(reply),
        }
    }
}
