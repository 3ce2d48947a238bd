//! `bingo serve`: serves frontends until they are done.

use std::process::ExitCode;

use clap::Args;

use super::report::READER_GONE;
use super::{CliError, HostArgs};
use crate::app;
use crate::surface::{self, Served};

/// Serve frontends over JSON-RPC
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Serve one client over standard input and output; this is the default
    #[arg(long)]
    stdio: bool,
    #[command(flatten)]
    pub(super) host: HostArgs,
}

pub(super) fn run(args: &ServeArgs) -> Result<ExitCode, CliError> {
    let options = args.host.options();
    app::block_on(app::Workers::Many, async move {
        let app = app::App::start(options)?;
        app.watch_plugins();
        let control = app.listen_for_control();
        let served = surface::serve(app.kernel(), app::terminated()).await;
        drop(control);
        surface::print_notices(&app.shutdown().await).map_err(CliError::Output)?;
        match served.map_err(CliError::Output)? {
            Served::Done => Ok(ExitCode::SUCCESS),
            Served::ReaderGone => Ok(ExitCode::from(READER_GONE)),
        }
    })?
}
