//! How much is allowed where no rule speaks (kernel rules 8.5.26 and 28).

use std::fmt;
use std::str::FromStr;

/// How much is allowed without asking.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PermissionMode {
    /// Asks for everything untrusted.
    #[default]
    Default,
    /// Also allows edits inside the session's directory by trusted tools.
    AcceptEdits,
    /// Denies all that is not trusted and read-only.
    Plan,
    /// Allows everything.
    BypassPermissions,
    /// Denies what would be asked.
    DontAsk,
}

impl PermissionMode {
    /// The names, as the command line and settings spell them.
    pub const NAMES: [&str; 5] = ["default", "acceptEdits", "plan", "bypassPermissions", "dontAsk"];
}

impl fmt::Display for PermissionMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(Self::NAMES[*self as usize])
    }
}

impl FromStr for PermissionMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "default" => Self::Default,
            "acceptEdits" => Self::AcceptEdits,
            "plan" => Self::Plan,
            "bypassPermissions" => Self::BypassPermissions,
            "dontAsk" => Self::DontAsk,
            _ => {
                return Err(format!(
                    "`{text}` is no permission mode; the modes are {}",
                    Self::NAMES.join(", ")
                ));
            }
        })
    }
}
