"""Counts as `wc -lwmc` does in a UTF-8 locale (GNU coreutils), bytes that are not UTF-8 included."""

import re
import unicodedata

CHUNK = 1 << 20

# Runs of anything but what `wc` takes for space. A run is a word if something in it can be printed.
RUN = re.compile("[^\t-\r \u00a0\u1680\u2000-\u200a\u202f\u205f\u2060\u3000]+")
UNPRINTABLE = {"Cc", "Cn", "Cs", "Zl", "Zp"}
UNDECODABLE = re.compile("[\udc80-\udcff]")
# Past the end of Unicode, but still characters to `wc`.
OLD_UTF8 = re.compile(
    rb"\xf4[\x90-\xbf][\x80-\xbf]{2}|[\xf5-\xf7][\x80-\xbf]{3}|\xf8[\x88-\xbf][\x80-\xbf]{3}"
    rb"|[\xf9-\xfb][\x80-\xbf]{4}|\xfc[\x84-\xbf][\x80-\xbf]{4}|\xfd[\x80-\xbf]{5}"
)


def whole_characters(chunks):
    """Cuts chunks so that none ends inside a character."""
    rest = b""
    for chunk in chunks:
        data = rest + chunk
        cut = max(len(data) - 5, 0)  # a character has at most six bytes
        while cut < len(data) and 0x80 <= data[cut] < 0xC0:
            cut += 1
        yield data[:cut]
        rest = data[cut:]
    yield rest


def count(path, progress=lambda done: None):
    """Returns [lines, words, characters, bytes]."""
    lines = words = characters = size = 0
    in_word = False  # whether the last chunk ended inside a word that is counted already
    with open(path, "rb") as file:
        for data in whole_characters(iter(lambda: file.read(CHUNK), b"")):
            text = data.decode("utf-8", "surrogateescape")
            size += len(data)
            lines += data.count(b"\n")
            characters += len(text)
            if UNDECODABLE.search(text):
                characters += len(OLD_UTF8.findall(data)) - len(UNDECODABLE.findall(text))
            end = 0
            for run in RUN.finditer(text):
                goes_on = in_word and run.start() == 0
                counted = goes_on or any(unicodedata.category(c) not in UNPRINTABLE for c in run.group())
                words += counted and not goes_on
                end = run.end() if counted else 0
            in_word = (in_word if not text else end == len(text))
            progress(size)
    return [lines, words, characters, size]
