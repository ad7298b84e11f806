"""The headings of a Markdown text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

# Source: CommonMark 0.31, sections 4.2 ATX headings, 4.3 setext headings, 4.5 fenced code blocks.
_ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]|$)")
"""Matches the beginning of a heading. What ends one is not looked for by a pattern: it would try
each blank of a line of a million as the first."""
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_ITEM = re.compile(r" {0,3}(?:[-+*]|\d{1,9}[.)])[ \t]+")
"""Matches the marker of a list, behind which a fence may begin (section 5.2). In a list in a list
it hides no heading: what it holds has four blanks in front."""
_NO_PARAGRAPH = re.compile(r"\s*$| {4}|\t| {0,3}(?:[>|]|[-+*](?:\s|$)|\d{1,9}[.)]\s)")
"""Matches lines that cannot be the text of a setext heading."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of level 1 to 6 at `text[start:end]`."""

    level: int
    title: str
    start: int
    end: int


class Outline:
    """The headings of a Markdown text, and which of them apply at a position."""

    def __init__(self, text: str) -> None:
        self.headings = list(_headings(text))
        self._starts = [heading.start for heading in self.headings]
        self._parents: list[int] = []
        """Of each heading the place of the one that it is under; -1: none."""
        for place, heading in enumerate(self.headings):
            parent = place - 1
            while parent >= 0 and self.headings[parent].level >= heading.level:
                parent = self._parents[parent]
            self._parents.append(parent)

    def is_all(self, text: str, start: int, end: int) -> bool:
        """Whether `text[start:end]` consists of headings, or of parts of them, and white space."""
        return not text[self.skip(text, start, end) : end].strip()

    def skip(self, text: str, start: int, end: int) -> int:
        """Return the end of the headings that `text[start:end]` begins with; `start`: of none."""
        position = start
        for place in range(max(0, bisect_right(self._starts, start) - 1), len(self.headings)):
            heading = self.headings[place]
            if heading.start >= end or text[position : heading.start].strip():
                break
            position = max(position, heading.end)
        return position

    def above(self, position: int) -> tuple[str, ...]:
        """Return the titles of the headings that a character is under, outermost first.

        A character within a heading is under that heading's parents, not under the heading itself.
        """
        place = bisect_right(self._starts, position) - 1
        if place >= 0 and position < self.headings[place].end:
            place = self._parents[place]
        path: list[str] = []
        while place >= 0:
            path.append(self.headings[place].title)
            place = self._parents[place]
        return tuple(reversed(path))


def _headings(text: str) -> Iterator[Heading]:
    fence, indent = "", 0
    paragraph: tuple[int, str] | None = None
    for start, line in _lines_after_front_matter(text):
        if fence:
            columns = line.expandtabs(4)
            if not columns[:indent].strip():
                # A closing fence has at least as many of the same character, and nothing after.
                marker = _FENCE.match(columns, indent)
                if marker and marker[1].startswith(fence) and not columns[marker.end() :].strip():
                    fence = ""
                continue
            fence = ""  # ends with the item of the list in which it is
        item = _ITEM.match(line)
        if marker := _FENCE.match(line, item.end() if item else 0):
            fence, paragraph = marker[1], None
            indent = len(item[0].expandtabs(4)) if item else 0
            continue
        if atx := _ATX.match(line):
            paragraph = None
            yield Heading(len(atx[1]), _title(line[atx.end() :]), start, start + len(line))
        elif paragraph and (underline := _UNDERLINE.match(line)):
            level = 1 if underline[1].startswith("=") else 2
            yield Heading(level, paragraph[1].strip(), paragraph[0], start + len(line))
            paragraph = None
        else:
            paragraph = None if _NO_PARAGRAPH.match(line) else (start, line)


def _title(line: str) -> str:
    """Return the title of a heading without the # that may close it, behind a blank."""
    title = line.strip()
    without = title.rstrip("#")
    return without.rstrip() if without[-1:] in ("", " ", "\t") else title


def _lines_after_front_matter(text: str) -> Iterator[tuple[int, str]]:
    """Yield position and text of every line, except those of a YAML block at the beginning."""
    lines = re.finditer(r"[^\r\n]*(?:\r\n|\r|\n|$)", text)
    is_front_matter = bool(re.match(r"---[ \t]*\r?\n", text)) and bool(
        re.search(r"\n(?:---|\.\.\.)[ \t]*\r?(?:\n|$)", text)
    )
    for number, match in enumerate(lines):
        line = match[0].rstrip("\r\n")
        if not is_front_matter:
            yield match.start(), line
        elif number and line.rstrip() in ("---", "..."):
            is_front_matter = False
