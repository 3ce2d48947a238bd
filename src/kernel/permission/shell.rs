//! A shell command taken apart as far as rules need it: the simple commands that it runs, word by word.
//!
//! It knows quotes and what joins commands, and nothing else: whatever a shell would fill in, redirect or nest makes a
//! command one that no rule allows. Rules that deny look at it more coarsely, and rather too often than too rarely.

/// Words that run the command behind them.
const WRAPPERS: [&str; 10] =
    ["sudo", "doas", "env", "command", "exec", "nohup", "nice", "time", "xargs", "eval"];

/// Returns the words of each simple command; nothing when it is more than words and what joins commands.
pub(super) fn parts(command: &str) -> Option<Vec<Vec<String>>> {
    let (mut parts, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut letters = command.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\'' => literal(&mut letters, word.get_or_insert_default())?,
            '"' => quoted(&mut letters, word.get_or_insert_default())?,
            '\\' => word.get_or_insert_default().push(letters.next().filter(|next| *next != '\n')?),
            '$' | '`' | '<' | '>' | '(' | ')' | '{' | '}' | '#' => return None,
            ';' | '|' | '&' | '\n' => {
                // `&&` and `||` are one joint; a single `&` runs what stands before it all the same.
                letters.next_if_eq(&letter);
                words.extend(word.take());
                parts.push(std::mem::take(&mut words));
            }
            space if space.is_whitespace() => words.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    parts.push(words);
    parts.retain(|words| !words.is_empty());
    Some(parts)
}

/// Reads up to the closing quote, which must be there, with nothing inside that a shell fills in.
fn quoted(letters: &mut impl Iterator<Item = char>, word: &mut String) -> Option<()> {
    loop {
        match letters.next()? {
            '"' => return Some(()),
            '$' | '`' => return None,
            '\\' => word.push(letters.next()?),
            letter => word.push(letter),
        }
    }
}

/// Reads up to the closing single quote, which must be there.
fn literal(letters: &mut impl Iterator<Item = char>, word: &mut String) -> Option<()> {
    loop {
        match letters.next()? {
            '\'' => return Some(()),
            letter => word.push(letter),
        }
    }
}

/// Returns whether each simple command begins with these words.
pub(super) fn all_begin_with(command: &str, prefix: &[&str]) -> bool {
    parts(command).is_some_and(|parts| !parts.is_empty() && parts.iter().all(|words| begins(words, prefix)))
}

/// Returns whether some part of a command begins with these words, behind assignments; behind a word that runs others,
/// whether they stand anywhere. What is nested or quoted counts too.
pub(super) fn any_begins_with(command: &str, prefix: &[&str]) -> bool {
    let joints = [';', '|', '&', '\n', '(', ')', '{', '}', '`', '<', '>', '"', '\'', '$'];
    // As they stand, and as a shell reads them.
    let standing = command.split(joints).map(|piece| piece.split_whitespace().map(str::to_owned).collect());
    let read = parts(command).into_iter().flatten();
    standing.chain(read).any(|words: Vec<String>| runs(&words, prefix))
}

fn runs(words: &[String], prefix: &[&str]) -> bool {
    let first = words.iter().position(|word| !word.contains('=')).unwrap_or(words.len());
    let own = &words[first..];
    let is_wrapped = own.first().is_some_and(|word| WRAPPERS.contains(&word.as_str()));
    begins(own, prefix) || is_wrapped && (1..own.len()).any(|start| begins(&own[start..], prefix))
}

fn begins<T: AsRef<str>>(words: &[T], prefix: &[&str]) -> bool {
    words.len() >= prefix.len() && words.iter().zip(prefix).all(|(word, wanted)| word.as_ref() == *wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_taken_apart_at_their_joints() {
        let told =
            |command: &str| parts(command).map(|parts| parts.iter().map(|words| words.join("|")).collect());
        let some = |parts: &[&str]| Some(parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>());
        assert_eq!(told("git  status"), some(&["git|status"]));
        assert_eq!(told("a; b && c || d | e & f\ng"), some(&["a", "b", "c", "d", "e", "f", "g"]));
        assert_eq!(told(r#"echo 'a b' "c d" e\ f '' "#), some(&["echo|a b|c d|e f|"]));
        assert_eq!(told("echo ';' \"|\" \\;"), some(&["echo|;|||;"]));
        assert_eq!(told(""), some(&[]));
        for command in [
            "a $(b)", "a `b`", "a > b", "a < b", "(a)", "{ a; }", "a $B", "a \"$B\"", "'a", "\"a", "a\\",
            "a # b",
        ] {
            assert_eq!(told(command), None, "{command}");
        }
    }

    #[test]
    fn a_prefix_is_whole_words_of_every_part() {
        assert!(all_begin_with("git status -s", &["git", "status"]));
        assert!(all_begin_with("git status && git  log", &["git"]));
        for command in
            ["git statusx", "git", "git status; rm x", "git status\nrm", "git status $(rm x)", "", " ; "]
        {
            assert!(!all_begin_with(command, &["git", "status"]), "{command}");
        }
        assert!(all_begin_with("'git' status", &["git", "status"]), "as the shell reads it");
    }

    #[test]
    fn what_denies_looks_behind_wrappers_and_into_nests() {
        for command in [
            "rm x",
            "sudo rm x",
            "A=1 rm x",
            "env -i A=1 rm x",
            "git status && rm x",
            "echo $(rm x)",
            "sh -c 'rm x'",
            "'rm' x",
            "r'm' x",
            "ls | xargs -n 1 rm",
        ] {
            assert!(any_begins_with(command, &["rm"]), "{command}");
        }
        for command in ["git status", "rmdir x", "git rm x", "echo rm", ""] {
            assert!(!any_begins_with(command, &["rm"]), "{command}");
        }
    }
}
