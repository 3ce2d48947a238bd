#!/usr/bin/env python3
"""Prints which numbered rules of the kernel's description no test names: `tests/rules.py ../shared/spec/kernel.md`.

A test names the rules that it holds in the comment right above it, `/// Rule 3.4.32, 3.4.33.`, and the lines of §9.1 that
it holds mended, `/// Mends 9.1.5.`. Rules are those of §1 to §5 and §7; those of §8 may be named too. Exceptions, each with its reason, are the lines
`| 3.4.35 | … |` of docs/decisions.md. Also printed: names and exceptions of rules that do not exist, and exceptions
of rules that a test names. Exit 1 when anything is printed.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECTIONS = {"1", "2", "3", "4", "5", "7"}
# Rules that a test may name, but need not.
OPTIONAL = {"8"}
NUMBER = re.compile(r"\b\d+(?:\.\d+){1,2}\b")


def rules(text):
    """The rules of the description: `section.group.number`, or `section.number` where a section has no groups."""
    section = group = None
    for line in text.splitlines():
        if heading := re.match(r"##+ (\d+)(?:\.(\d+))?\W", line):
            section, group = heading.groups()
        elif (rule := re.match(r"(\d+)\. ", line)) and section:
            where = f"{section}.{group}" if group else section
            if section in SECTIONS | OPTIONAL or where == "9.1":
                yield f"{where}.{rule[1]}"


def named(path):
    """The rules named above the tests of a file."""
    comment = []
    for line in path.read_text().splitlines():
        line = line.strip()
        if line.startswith("///"):
            comment.append(line)
        elif line.startswith("#["):
            if re.match(r"#\[(tokio::)?test\b", line):
                for words in comment:
                    if re.match(r"/// (Rule|Mends) ", words) or " Mends " in words:
                        yield from NUMBER.findall(words)
        else:
            comment = []


def needs_a_test(number):
    return number.split(".")[0] not in OPTIONAL


def main():
    known = list(rules(pathlib.Path(sys.argv[1]).read_text()))
    sources = [path for folder in ("src", "plugin-sdk", "tests") for path in (ROOT / folder).rglob("*.rs")]
    tested = {number for path in sources for number in named(path)}
    decisions = (ROOT / "docs/decisions.md").read_text()
    excepted = set(re.findall(r"^\| (\d+(?:\.\d+){1,2}) \|", decisions, re.MULTILINE))
    found = [f"{number}: no test names it" for number in known if needs_a_test(number) and number not in tested | excepted]
    found += [f"{number}: there is no such rule" for number in sorted((tested | excepted) - set(known))]
    found += [f"{number}: excepted, but a test names it" for number in sorted(tested & excepted)]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
