"""The text of an HTML page, as Markdown: its headings guide the cuts between chunks."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from contextlib import suppress
from html import unescape

_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}
_HIDDEN = frozenset(("script", "style", "template", "noscript", "nav", "svg", "iframe", "object"))
"""Elements whose content is no text of the page, or leads to other pages."""
_BLOCKS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "body", "caption", "dd", "details"),
        *("dialog", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form"),
        *("header", "hr", "html", "li", "main", "ol", "p", "pre", "section", "summary", "table"),
        *("tbody", "tfoot", "thead", "tr", "ul", *_HEADINGS),
    )
)
_ENDS_OF_NAV = _BLOCKS - {"p"}
"""Blocks whose end, where they began before a `nav`, ends that, too; browsers ignore a lone </p>.
Source: https://html.spec.whatwg.org/multipage/parsing.html#parsing-main-inbody"""
_CELLS = frozenset(("td", "th"))
_IN_CELLS = frozenset(("p", "div"))
"""Blocks that end no line inside of a cell; Word's tables have them around every text."""
_LIST_ITEMS = frozenset(("li", "tr", "dt", "dd"))
"""Blocks that follow one another without a blank line."""

_MARKUP = re.compile(r"(?=#{1,6}(?: |$)|=+$)|(?:(?:[-+*]|\d{1,9}[.)]) )*(?=`{3,}[^`]*$|~{3,})")
"""What would make a heading of a line that is none, or a block of code of all that follow."""

_BACKTICKS = re.compile("`+")

_RAW = {tag: re.compile(f"</{tag}", re.IGNORECASE) for tag in ("script", "style")}
"""Elements in which only their own end is markup."""

_IN_TAG = r"""[^<>=]|=(?!\s{0,9}["'])|=\s{0,9}"[^"<]*"|=\s{0,9}'[^'<]*'"""
_TOKEN = re.compile(
    rf"""<!--(?:-?>|.*?(?:--!?>|\Z))
    | <(?P<end>/?)(?P<tag>[a-zA-Z][\w:-]*)(?![\w:-])
      (?:(?:(?:{_IN_TAG})*=\s{{0,9}}(?:"[^"<]*<[^"]*"|'[^'<]*<[^']*')){{0,64}}(?:{_IN_TAG})*
      |[^<>]*)>
    | <[!?/][^<>]*>
    | (?P<data>[^<]+|<)""",
    re.DOTALL | re.VERBOSE,
)
"""A piece of a page. Not `html.parser`, which in Python 3.11.7 takes minutes for 60 KB of tags that
do not end: here, the search for the end of a tag stops at the next one, or the next after 64 values
with a < in them, and a name is never taken for a shorter one and more."""

_ENDLESS_NUMBER = re.compile(r"&#[0-9]{600,};?")
"""A reference to no character: to browsers it is U+FFFD. Python reads numbers of up to 4,300
digits, or as many as it is told to, at least 640."""

_TO_THE_PAGE = re.compile(r"\shref\s*=\s*[\"']?#", re.IGNORECASE)
"""In the tag of a link to a place of its own page."""

_CHARSET = re.compile(rb"<meta[^>]*charset\s*=\s*[\"']?\s*([\w:.-]+)", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"<\?xml[^>]*?encoding\s*=\s*[\"']\s*([\w:.-]+)")
"""In the declaration of XHTML. Source:
https://html.spec.whatwg.org/multipage/parsing.html#xml-encoding"""

_HEAD_BYTES = 1024
"""Where the declaration of an encoding must be. Source:
https://html.spec.whatwg.org/multipage/semantics.html#charset"""

_READ_AS = {
    "ascii": "windows-1252",
    "iso8859-1": "windows-1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
"""What browsers take for an encoding that is declared: one with more characters, which pages use.
Source: https://encoding.spec.whatwg.org/#names-and-labels"""


_OF_PYTHON_ALONE = frozenset(
    ("idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined")
)
"""Codecs that no page is in. Punycode takes minutes for 400 KB that mean harm.
Source: https://docs.python.org/3/library/codecs.html#python-specific-encodings"""


def decode_html(data: bytes) -> str:
    """Decode a page by its byte order mark or its declaration, else as UTF-8.

    Raises:
        UnicodeDecodeError: it is something else.
    """
    for mark, name in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if data.startswith(mark):
            return data[len(mark) :].decode(name)
    head, found = data[:_HEAD_BYTES], None
    if not head.startswith(codecs.BOM_UTF8):
        found = _CHARSET.search(head) or _XML_ENCODING.match(head)
    name = "utf-8-sig"
    if found is not None:
        given = found[1].decode("ascii")
        with suppress(LookupError):  # unknown, or a codec for something else than texts: "hex"
            known = codecs.lookup(given).name
            # What was read as ASCII is in no encoding that writes it otherwise: UTF-16, EBCDIC.
            if known not in _OF_PYTHON_ALONE and found[1].decode(known, "replace") == given:
                name = _READ_AS.get(known, known)
    return data.decode(name)


def html_text(page: str) -> tuple[str, str]:
    """Return the text of a page and its title, "" if there is none."""
    reader, begin = _Reader(), 0
    while (token := _TOKEN.match(page, begin)) is not None:
        begin = token.end()
        if (data := token["data"]) is not None:
            reader.add(_unescaped(data))
        elif token["tag"] is not None:
            tag = token["tag"].lower()
            is_closed = token[0].endswith("/>") and tag in _HIDDEN  # of XHTML
            if token["end"]:
                reader.end(tag)
            elif not is_closed:
                reader.start(tag)
                if tag == "a" and _TO_THE_PAGE.search(token[0]):
                    reader.start_mark()
                if tag in _RAW:
                    end = _RAW[tag].search(page, begin)
                    begin = len(page) if end is None else end.start()
    return reader.text(), " ".join("".join(reader.title).split())


def _unescaped(data: str) -> str:
    """Return text with the characters that references stand for."""
    try:
        return unescape(data)
    except ValueError:  # a number with more digits than Python reads
        return unescape(_ENDLESS_NUMBER.sub("\ufffd", data))


class _Reader:
    """Collects lines; it keeps counts and no stack, so that no page is nested too deeply."""

    def __init__(self) -> None:
        self.title: list[str] = []
        self._parts: list[str] = []
        self._line: list[str] = []
        self._has_words = False
        self._hidden: Counter[str] = Counter()
        """Open elements in the outermost hidden one, itself included, by tag; else empty."""
        self._hidden_tag = ""
        self._is_title = False
        self._preformatted = 0
        self._fence_at = 0
        self._is_in_cell = False
        self._is_heading = False
        self._mark_at: int | None = None
        """Where in the line a link to the page itself begins."""

    def text(self) -> str:
        """Return the lines so far."""
        self._end_line()
        if self._preformatted:
            self._end_preformatted()
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(self._parts))
        return text.strip("\n")

    def start(self, tag: str) -> None:
        """Begin an element."""
        if tag == "main" and self._hidden_tag == "nav":  # which its author has not ended
            self._hidden.clear()
        if self._hidden:
            self._hidden[tag] += 1
        elif tag in _HIDDEN:
            self._hidden[tag], self._hidden_tag = 1, tag
        elif tag == "title":
            self._is_title = True
        elif tag == "br" and not self._is_in_cell:
            self._end_line()
        elif tag in _CELLS:
            self._is_in_cell = True
            if self._has_words:
                self._append(" | ")
        elif self._is_in_cell and (tag in _IN_CELLS or tag == "br"):
            self._line.append(" ")
        elif tag in _BLOCKS:
            self._is_in_cell = False
            self._end_block(tag)
            if tag in _HEADINGS:
                self._is_heading = True
                self._append(f"{_HEADINGS[tag]} ")
            elif tag == "li":
                self._append("- ")
            if tag == "pre":
                if not self._preformatted:
                    self._fence_at = len(self._parts)
                self._preformatted += 1

    def start_mark(self) -> None:
        """Begin a link to the page itself, of which a sign alone is no text: Sphinx's ¶, a #."""
        if not (self._hidden or self._preformatted):
            self._mark_at = len(self._line)

    def _end_mark(self) -> None:
        if self._mark_at is not None and not re.search(r"\w", "".join(self._line[self._mark_at :])):
            del self._line[self._mark_at :]
        self._mark_at = None

    def end(self, tag: str) -> None:
        """End an element."""
        if self._hidden:
            self._end_in_hidden(tag)
        elif tag == "title":
            self._is_title = False
        elif tag == "a":
            self._end_mark()
        elif tag in _CELLS:
            self._is_in_cell = False
        elif self._is_in_cell and tag in _IN_CELLS:
            self._line.append(" ")
        elif tag in _BLOCKS:
            self._is_in_cell = False
            self._end_line()
            if tag == "pre" and self._preformatted:
                self._preformatted -= 1
                if not self._preformatted:
                    self._end_preformatted()
            self._end_block(tag)

    def _end_in_hidden(self, tag: str) -> None:
        """End an element in a hidden one, that one itself, or one around a `nav` without an end."""
        if self._hidden[tag]:
            self._hidden[tag] -= 1
            if not self._hidden[self._hidden_tag]:
                self._hidden.clear()
        elif self._hidden_tag == "nav" and tag in _ENDS_OF_NAV:
            self._hidden.clear()
            self.end(tag)

    def add(self, data: str) -> None:
        """Add text."""
        if self._is_title:
            self.title.append(data)
        elif self._hidden:
            return
        elif self._preformatted:
            first, *others = data.split("\n")
            self._append(first)
            for line in others:
                self._end_line()
                self._append(line)
        else:
            self._append(re.sub(r"[ \t\r\n\f]+", " ", data))

    def _append(self, text: str) -> None:
        self._line.append(text)
        self._has_words = self._has_words or bool(text.strip())

    def _end_line(self) -> None:
        line = "".join(self._line)
        if not self._line:
            return
        self._line, self._has_words, self._mark_at = [], False, None
        line = line.rstrip() if self._preformatted else re.sub(" {2,}", " ", line).strip()
        if not (self._is_heading or self._preformatted) and (markup := _MARKUP.match(line)):
            line = f"{markup[0]}\\{line[markup.end() :]}"
        self._is_heading = False
        if self._preformatted or line.strip("#- "):
            self._parts.append(line)

    def _end_preformatted(self) -> None:
        """Put preformatted text, in which no line is a heading, between fences."""
        lines = self._parts[self._fence_at :]
        # A fence is ended by one of its own length, which the text must not have.
        longest = max((len(run) for line in lines for run in _BACKTICKS.findall(line)), default=0)
        fence = "`" * max(3, longest + 1)
        self._parts[self._fence_at :] = [fence, *lines, fence]

    def _end_block(self, tag: str) -> None:
        self._end_line()
        if tag not in _LIST_ITEMS and not self._preformatted:
            self._parts.append("")
