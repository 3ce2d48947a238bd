//! How commands talk with a person: results on stdout, remarks and questions on stderr.

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

use super::CliError;
use crate::printable;

/// Asks the person at the terminal.
pub(super) fn confirmed(question: &str) -> Result<bool, CliError> {
    let mut stderr = std::io::stderr().lock();
    if !std::io::stdin().is_terminal() || !stderr.is_terminal() {
        let reason = format!("there is no terminal to ask on: {question}");
        return Err(CliError::Usage { reason, hint: "look at it, then say `--yes`" });
    }
    let asked = write!(stderr, "{} [y/N] ", printable::line(question)).and_then(|()| stderr.flush());
    asked.map_err(CliError::Output)?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(CliError::Output)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

pub(super) fn say(line: &str) -> Result<ExitCode, CliError> {
    writeln!(std::io::stdout().lock(), "{}", printable::line(line)).map_err(CliError::Output)?;
    Ok(ExitCode::SUCCESS)
}

/// Says something beside the result.
pub(super) fn remark(line: &str) {
    // Where stderr is gone there is nobody to tell.
    let _ = writeln!(std::io::stderr().lock(), "note: {}", printable::line(line));
}

/// Returns rows below their heads, each column as wide as its widest cell.
pub(super) fn table<const N: usize>(heads: [&str; N], rows: Vec<[String; N]>) -> String {
    let heads = heads.map(str::to_owned);
    let rows: Vec<[String; N]> = std::iter::once(heads)
        .chain(rows)
        .map(|row| row.map(|cell| printable::line(&cell).into_owned()))
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_must_be_and_obey_nothing() {
        let rows = vec![["a\u{1b}[2J".to_owned(), "x".to_owned()], ["é".to_owned(), String::new()]];
        assert_eq!(table(["N", "LONG"], rows), "N           LONG\na\\u{1b}[2J  x\né\n");
    }
}
