//! The question about a call, and which answers fit a question.

use bingo_plugin_sdk::interaction::{Answer, AnswerSpec, InteractionKind};
use serde_json::{Value, json};

use super::subject::Subject;

/// The most characters of a question's summary.
const SUMMARY: usize = 120;

/// What a person reads of a call.
pub(in crate::kernel) struct Asked<'a> {
    pub(in crate::kernel) tool: &'a str,
    pub(in crate::kernel) input: &'a Value,
    pub(in crate::kernel) subjects: &'a [Subject],
    /// The rule that an `allowSession` answer installs.
    pub(in crate::kernel) scope: Option<String>,
    /// Why somebody wants a person to confirm it.
    pub(in crate::kernel) reason: Option<String>,
}

impl Asked<'_> {
    /// Returns the question and the answers it takes (kernel rule 4.3.26).
    pub(in crate::kernel) fn question(self) -> (InteractionKind, Vec<AnswerSpec>) {
        let about = match self.subjects {
            [] => self.input.to_string(),
            subjects => subjects.iter().map(Subject::shown).collect::<Vec<_>>().join(" "),
        };
        let text = self.reason.unwrap_or_else(|| format!("{} {about}", self.tool));
        let summary = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(SUMMARY).collect();
        let mut answers = vec![AnswerSpec::AllowOnce, AnswerSpec::Deny];
        if self.scope.is_some() {
            answers.insert(1, AnswerSpec::AllowSession);
        }
        let (tool, session_scope) = (self.tool.to_owned(), self.scope);
        (InteractionKind::Permission { tool, summary, preview: None, session_scope }, answers)
    }
}

/// Checks an answer against what was asked.
///
/// # Errors
/// In words, when the kind is not accepted, a chosen option does not exist, or the scope is not the offered one.
pub(in crate::kernel) fn check_answer(
    kind: &InteractionKind,
    accepted: &[AnswerSpec],
    answer: &Answer,
) -> Result<(), String> {
    if !accepted.contains(&answer.spec()) {
        let words: Vec<String> = accepted.iter().map(|spec| json!(spec).to_string()).collect();
        return Err(format!("this question takes {}", words.join(", ")));
    }
    match (kind, answer) {
        (InteractionKind::Permission { session_scope, .. }, Answer::AllowSession { scope })
            if session_scope.as_ref() != Some(scope) =>
        {
            Err(format!("the scope `{scope}` was not offered"))
        }
        (InteractionKind::Question { options, multi, .. }, Answer::Choice { ids }) => {
            if let Some(id) = ids.iter().find(|id| !options.iter().any(|option| option.id == **id)) {
                return Err(format!("`{id}` is none of the options"));
            }
            if ids.is_empty() || (ids.len() > 1 && !multi) {
                return Err("choose exactly one option".to_owned());
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use bingo_plugin_sdk::interaction::QuestionOption;

    use super::*;
    use crate::kernel::permission::subject::subjects;

    fn asked(input: Value, scope: Option<&str>, reason: Option<&str>) -> (InteractionKind, Vec<AnswerSpec>) {
        let subjects = subjects(&input, "/".as_ref());
        let (scope, reason) = (scope.map(str::to_owned), reason.map(str::to_owned));
        Asked { tool: "t", input: &input, subjects: &subjects, scope, reason }.question()
    }

    fn summary(kind: InteractionKind) -> String {
        let InteractionKind::Permission { summary, .. } = kind else { panic!("{kind:?}") };
        summary
    }

    /// Rule 4.3.26.
    #[test]
    fn a_question_says_what_the_call_is_about_on_one_line() {
        assert_eq!(summary(asked(json!({ "command": "ls\n -l", "x": 1 }), None, None).0), "t ls -l");
        assert_eq!(summary(asked(json!({ "n": 1 }), None, None).0), r#"t {"n":1}"#);
        assert_eq!(summary(asked(json!({}), None, Some("mind  this")).0), "mind this");
        let long = summary(asked(json!({ "path": "é".repeat(200) }), None, None).0);
        assert_eq!(long.chars().count(), 120);
        assert_eq!(asked(json!({}), None, None).1, [AnswerSpec::AllowOnce, AnswerSpec::Deny]);
        let with = [AnswerSpec::AllowOnce, AnswerSpec::AllowSession, AnswerSpec::Deny];
        assert_eq!(asked(json!({}), Some("t"), None).1, with);
    }

    /// Rule 3.5.39. Mends 9.1.14.
    #[test]
    fn answers_are_checked_against_the_question() {
        let (kind, accepted) = asked(json!({}), Some("t"), None);
        let scope = |scope: &str| Answer::AllowSession { scope: scope.to_owned() };
        assert!(check_answer(&kind, &accepted, &Answer::AllowOnce).is_ok());
        assert!(check_answer(&kind, &accepted, &scope("t")).is_ok());
        assert!(check_answer(&kind, &accepted, &scope("*")).is_err());
        assert!(check_answer(&kind, &accepted, &Answer::Confirm).is_err());
    }

    /// Rule 3.5.39.
    #[test]
    fn a_choice_is_one_option_that_exists_or_several_where_several_may_be() {
        let option = |id: &str| QuestionOption { id: id.to_owned(), label: String::new(), description: None };
        let question = |multi| InteractionKind::Question {
            question: "which?".to_owned(),
            header: None,
            options: vec![option("a"), option("b")],
            free_text: true,
            multi,
        };
        let check = |multi, ids: &[&str]| {
            let ids = ids.iter().map(|id| (*id).to_owned()).collect();
            check_answer(&question(multi), &[AnswerSpec::Choice], &Answer::Choice { ids })
        };
        for (multi, ids) in [(false, &["a"][..]), (true, &["a"]), (true, &["a", "b"])] {
            assert_eq!(check(multi, ids), Ok(()), "{ids:?} of several: {multi}");
        }
        for multi in [false, true] {
            assert_eq!(check(multi, &["a", "c"]), Err("`c` is none of the options".to_owned()));
            assert_eq!(check(multi, &[]), Err("choose exactly one option".to_owned()));
        }
        assert_eq!(check(false, &["a", "b"]), Err("choose exactly one option".to_owned()));
    }
}
