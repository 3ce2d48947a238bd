//! The settings as the layers take them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{AppError, AppOptions, Places};
use crate::journal::{Keep, MIB};
use crate::kernel::{KernelSettings, Rule, Rules};
use crate::ports::Notice;
use crate::settings::{self, OnHookTimeout, PluginSettings, Retention, Settings};
use crate::supervisor::{PluginOptions, Setups};
use crate::trust::TrustStore;

/// The settings as they are now, all of them checked.
pub(super) struct Loaded {
    pub(super) kernel: KernelSettings,
    pub(super) keep: Keep,
    pub(super) setups: Setups,
    pub(super) remarks: Vec<Notice>,
}

impl Loaded {
    pub(super) fn load(places: &Places, options: &AppOptions) -> Result<Self, AppError> {
        let store = TrustStore::open(&places.data_dir);
        let (settings, others) = settings::load(&places.settings(options.settings.clone()), &store)?;
        let remarks = store.notice().into_iter().chain(others).collect();
        Ok(Self {
            kernel: kernel_settings(&settings, options)?,
            keep: keep(&settings.retention),
            setups: plugin_setups(&settings)?,
            remarks,
        })
    }
}

fn keep(retention: &Retention) -> Keep {
    let bytes = retention.mebibytes.map(|size| u64::from(size.get()) * MIB);
    let [days, sessions] = [retention.days, retention.sessions].map(|count| count.map(NonZeroU32::get));
    Keep { days, sessions, bytes }
}

fn kernel_settings(settings: &Settings, options: &AppOptions) -> Result<KernelSettings, AppError> {
    let wrong = |key: &str| {
        let key = key.to_owned();
        move |reason| AppError::Setting { key, reason }
    };
    let configured = settings.permissions.default_mode.as_deref().unwrap_or("default");
    let configured = configured.parse().map_err(wrong("permissions.defaultMode"))?;
    let read = |key: &str, texts: &[String]| -> Result<Vec<Rule>, AppError> {
        texts.iter().map(|text| text.parse().map_err(wrong(key))).collect()
    };
    let permissions = &settings.permissions;
    let mut rules = Rules {
        allow: options.allowed.clone(),
        deny: read("permissions.deny", &permissions.deny)?,
        ask: read("permissions.ask", &permissions.ask)?,
    };
    rules.allow.extend(read("permissions.allow", &permissions.allow)?);
    let named = options.model.as_ref().or(settings.model.as_ref());
    let (provider, model) = match named.map(|name| name.split_once('/')) {
        Some(Some((provider, model))) => (Some(provider.to_owned()), Some(model.to_owned())),
        _ => (settings.provider.clone(), named.cloned()),
    };
    Ok(KernelSettings {
        provider,
        model,
        thinking: settings.thinking,
        max_tokens: settings.max_tokens,
        max_rounds: settings.max_rounds.get(),
        models: settings.models.clone(),
        mode: options.mode.unwrap_or(configured),
        rules,
        sync: settings.journal.sync,
    })
}

fn plugin_setups(settings: &Settings) -> Result<Setups, AppError> {
    let mut setups = Setups::new();
    for (name, config) in &settings.plugins {
        setups.entry(name.clone()).or_default().config = config.clone();
    }
    for (name, own) in &settings.supervisor {
        setups.entry(name.clone()).or_default().options = plugin_options(name, own)?;
    }
    Ok(setups)
}

fn plugin_options(name: &str, own: &PluginSettings) -> Result<PluginOptions, AppError> {
    Ok(PluginOptions {
        enabled: own.enabled.unwrap_or(true),
        env: own.env.clone(),
        inherit_env: own.inherit_env,
        deny_unanswered: own.on_hook_timeout == OnHookTimeout::Deny,
        timeouts: typed(name, "timeouts", &own.timeouts)?,
        restart: typed(name, "restart", &own.restart)?,
        limits: typed(name, "limits", &own.limits)?,
    })
}

/// Returns a table of numbers below `supervisor.<name>` as the type that says which keys it has.
fn typed<T: DeserializeOwned>(
    name: &str,
    table: &str,
    numbers: &BTreeMap<String, u64>,
) -> Result<T, AppError> {
    let numbers: serde_json::Map<String, Value> =
        numbers.iter().map(|(key, number)| (key.clone(), (*number).into())).collect();
    serde_path_to_error::deserialize(Value::Object(numbers)).map_err(|error| AppError::Setting {
        key: format!("supervisor.{name}.{table}.{}", error.path()),
        reason: error.inner().to_string(),
    })
}
