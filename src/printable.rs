//! Texts of plugins, projects and models, made harmless before a person reads them on a terminal or in a log.
//!
//! Such a text may hold control characters, which move the cursor, and characters that turn the direction of writing, with
//! which a path or a question can look like another one.

use std::borrow::Cow;

/// Returns a text for one line: every character that a terminal would obey, line ends included, stands there as an escape
/// such as `\u{1b}`.
pub fn line(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// Returns a text of several lines: like [`line()`], but line ends and tabs stay.
pub fn text(text: &str) -> Cow<'_, str> {
    escape(text, |character| matches!(character, '\n' | '\t'))
}

/// Returns a text of several lines as one entry among others: like [`text`], and every line after the first is indented, so
/// that none of them can pass for another entry.
pub fn entry(words: &str) -> String {
    words.lines().map(text).collect::<Vec<_>>().join("\n  ")
}

fn escape(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    let harmful = |character: char| !keep(character) && is_obeyed(character);
    if !text.contains(harmful) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match harmful(character) {
            true => escaped.extend(character.escape_default()),
            false => escaped.push(character),
        }
    }
    Cow::Owned(escaped)
}

/// Says that a character does something instead of being seen: controls (C0, DEL, C1), line and paragraph separators, and
/// the marks of direction of Unicode's UAX #9.
pub fn is_obeyed(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{061c}' | '\u{200e}' | '\u{200f}')
        || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped() {
        assert_eq!(line("a\u{1b}[2Jb\rc\nd\te"), "a\\u{1b}[2Jb\\rc\\nd\\te");
        assert_eq!(line("\u{9b}31m \u{202e}gnp.exe \u{2066}x"), "\\u{9b}31m \\u{202e}gnp.exe \\u{2066}x");
        assert_eq!(text("a\n\tb\r\n\u{7f}"), "a\n\tb\\r\n\\u{7f}");
    }

    #[test]
    fn an_entry_begins_no_other_one() {
        assert_eq!(entry("a\r\n[notice] b\n\nerror: c\rd\n"), "a\n  [notice] b\n  \n  error: c\\rd");
    }

    #[test]
    fn plain_text_of_any_script_stays() {
        let plain = "naïve 日本語 עברית 🙂 \\ \"";
        assert!(matches!(line(plain), Cow::Borrowed(same) if same == plain));
    }
}
