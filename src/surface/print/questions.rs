//! Questions during a run: asked on the terminal, refused without one (kernel rule 6.2.8).

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};

use bingo_plugin_sdk::ids::InteractionId;
use bingo_plugin_sdk::interaction::{Answer, AnswerSpec, Interaction, InteractionKind};
use tokio::task::JoinHandle;

use crate::printable;

/// The questions of a run, in the order they were opened: one is asked at a time.
#[derive(Debug, Default)]
pub(super) struct Questions {
    waiting: VecDeque<Interaction>,
    asked: Option<Asked>,
}

/// A question that was put to the person, or refused.
#[derive(Debug)]
struct Asked {
    interaction: InteractionId,
    answer: JoinHandle<Answer>,
}

impl Questions {
    /// Puts a question to the person once those before it are answered; refuses it when there is nobody to ask.
    pub(super) fn open(&mut self, interaction: &Interaction) {
        self.waiting.push_back(interaction.clone());
        self.ask_next();
    }

    /// Forgets a question that was answered or cancelled elsewhere.
    pub(super) fn close(&mut self, id: &InteractionId) {
        self.waiting.retain(|interaction| interaction.id != *id);
        self.asked.take_if(|asked| asked.interaction == *id);
        self.ask_next();
    }

    /// Waits for the answer to what is asked; for ever when nothing is.
    pub(super) async fn answered(&mut self) -> (InteractionId, Answer) {
        let Some(asked) = &mut self.asked else { return std::future::pending().await };
        let answer = (&mut asked.answer).await.unwrap_or(Answer::Cancel);
        let id = asked.interaction.clone();
        self.asked = None;
        self.ask_next();
        (id, answer)
    }

    fn ask_next(&mut self) {
        if self.asked.is_none()
            && let Some(interaction) = self.waiting.pop_front()
        {
            let id = interaction.id.clone();
            let answer = tokio::task::spawn_blocking(move || {
                if std::io::stdin().is_terminal() {
                    ask_on_terminal(&interaction)
                } else {
                    refusal(&interaction, Some(&nobody(&interaction)))
                }
            });
            self.asked = Some(Asked { interaction: id, answer });
        }
    }
}

/// Says why nobody answered, and what to do about it.
fn nobody(interaction: &Interaction) -> String {
    match &interaction.kind {
        InteractionKind::Permission { tool, .. } => {
            format!("non-interactive, nobody could be asked (`--allowed-tools {tool}` allows it)")
        }
        _ => "non-interactive".to_owned(),
    }
}

fn refusal(interaction: &Interaction, feedback: Option<&str>) -> Answer {
    if interaction.answers.contains(&AnswerSpec::Deny) {
        return Answer::Deny { feedback: feedback.map(str::to_owned) };
    }
    Answer::Cancel
}

fn ask_on_terminal(interaction: &Interaction) -> Answer {
    let Some(question) = shown(&interaction.kind) else { return Answer::Cancel };
    let mut stderr = std::io::stderr().lock();
    let shown = write!(stderr, "{question}: ").and_then(|()| stderr.flush());
    let mut line = String::new();
    if shown.is_err() || std::io::stdin().read_line(&mut line).is_err() {
        return refusal(interaction, None);
    }
    chosen(interaction, line.trim())
}

/// Returns a question with its choices as a person reads it; none when it cannot be asked here. Its words are a plugin's or
/// a model's, and those of an option must not look like another option's.
fn shown(kind: &InteractionKind) -> Option<String> {
    let (question, choices) = match kind {
        InteractionKind::Permission { summary, session_scope, .. } => {
            let session = if session_scope.is_some() { ", [a]llow for this session" } else { "" };
            (format!("allow {summary}?"), format!("[y]es{session}, [n]o"))
        }
        InteractionKind::Question { question, options, .. } => {
            // A line each: within one, words could look like the next option.
            let options = options.iter().map(|option| {
                format!("\n  [{}] {}", printable::line(&option.id), printable::line(&option.label))
            });
            (question.clone(), options.collect::<String>() + "\n")
        }
        InteractionKind::Confirm { title, detail } => {
            (format!("{title}: {detail}"), "[y]es, [n]o".to_owned())
        }
        InteractionKind::Login { .. } => return None,
    };
    let space = if choices.starts_with('\n') { "" } else { " " };
    Some(format!("{}{space}{choices}", printable::entry(&question)))
}

fn chosen(interaction: &Interaction, word: &str) -> Answer {
    let scope = match &interaction.kind {
        InteractionKind::Question { .. } if word.is_empty() => return Answer::Cancel,
        InteractionKind::Question { options, free_text, .. } => {
            if *free_text && !options.iter().any(|option| option.id == word) {
                return Answer::Text { text: word.to_owned() };
            }
            return Answer::Choice { ids: vec![word.to_owned()] };
        }
        InteractionKind::Permission { session_scope, .. } => session_scope.clone(),
        _ => None,
    };
    match (word, scope) {
        ("a", Some(scope)) => Answer::AllowSession { scope },
        ("y" | "yes" | "a", _) if interaction.answers.contains(&AnswerSpec::Confirm) => Answer::Confirm,
        ("y" | "yes" | "a", _) => Answer::AllowOnce,
        _ => refusal(interaction, None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_question_moves_no_cursor_and_looks_like_no_other_line() {
        let asked = |kind| shown(&serde_json::from_value(kind).unwrap()).unwrap();
        let options =
            json!([{"id": "a\n", "label": "\u{1b}[1A\u{202e}no"}, {"id": "b", "label": "keep\n  [c] lose"}]);
        let question =
            json!({"kind": "question", "question": "which?\u{9b}2J\nerror: x", "options": options});
        let shown = "which?\\u{9b}2J\n  error: x\n  [a\\n] \\u{1b}[1A\\u{202e}no\n  [b] keep\\n  [c] lose\n";
        assert_eq!(asked(question), shown);
        let confirm = json!({"kind": "confirm", "title": "go\r", "detail": "on"});
        assert_eq!(asked(confirm), "go\\r: on [y]es, [n]o");
    }
}
