//! What commands of the kernel show.

use bingo_plugin_sdk::state::SessionState;
use bingo_plugin_sdk::view::View;

use crate::ports::Snapshot;

/// Returns the models that each provider declares.
pub(in crate::kernel) fn models(snapshot: &Snapshot) -> View {
    let panel = |spec: &bingo_plugin_sdk::handshake::ProviderSpec| {
        let items: Vec<String> = spec
            .models
            .iter()
            .map(|model| match &model.display {
                Some(display) => format!("{} ({display})", model.id),
                None => model.id.clone(),
            })
            .collect();
        let child = match items.is_empty() {
            true => View::Text { text: "it declares none; name one with `/model`".to_owned() },
            false => View::List { items },
        };
        View::Panel { title: format!("{}: declared by its plugin", spec.id), child: Box::new(child) }
    };
    let panels: Vec<View> = snapshot.providers.iter().map(|provider| panel(provider.spec())).collect();
    if panels.is_empty() {
        return View::Text { text: "no provider is there".to_owned() };
    }
    View::Stack { children: panels }
}

/// Returns the plugins as a table.
pub(in crate::kernel) fn plugins(snapshot: &Snapshot) -> View {
    let headers = ["plugin", "version", "state", "reason", "from"].map(str::to_owned).to_vec();
    let rows = snapshot.plugins.iter().map(|plugin| {
        let reason = plugin.reason.clone().unwrap_or_default();
        let (state, origin) = (plugin.state.to_owned(), plugin.origin.to_owned());
        vec![plugin.name.clone(), plugin.version.clone(), state, reason, origin]
    });
    View::Table { headers, rows: rows.collect() }
}

/// Returns where a session stands.
pub(in crate::kernel) fn status(state: &SessionState, mode: &str, level: &str) -> View {
    let summary = &state.summary;
    let none = || "none".to_owned();
    let mut rows = vec![
        row("session", summary.id.to_string()),
        row("title", summary.title.clone().unwrap_or_else(none)),
        row("cwd", summary.cwd.clone()),
        row("provider", summary.provider.clone().unwrap_or_else(none)),
        row("model", summary.model.clone().unwrap_or_else(none)),
        row("thinking", level.to_owned()),
        row("mode", mode.to_owned()),
    ];
    if let Some(context) = &state.context {
        let (used, window) = (context.used, context.window);
        rows.push(row("context", format!("{used} of {window} tokens, compacted at {}", context.trigger)));
    }
    let usage = summary.usage;
    rows.push(row("tokens", format!("{} in, {} out", usage.input_tokens, usage.output_tokens)));
    rows.extend(summary.parent.as_ref().map(|parent| row("parent", parent.session.to_string())));
    View::KeyValue { rows }
}

/// Returns what counts now, and below it how the command changes it.
pub(in crate::kernel) fn current(words: String, usage: &str, what: &str) -> View {
    View::Text { text: format!("{words}\nusage: {usage} ({what})") }
}

fn row(key: &str, value: String) -> [String; 2] {
    [key.to_owned(), value]
}
