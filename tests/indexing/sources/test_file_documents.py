"""HTML, PDF and DOCX files as sources."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from io import BytesIO
from operator import length_hint
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedlib.errors import SourceError
from embedlib.indexing import SourceOptions, open_source
from embedlib.indexing.chunks.markdown import Outline
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.sources import file_documents
from embedlib.indexing.sources.html_text import decode_html, html_text
from embedlib.packages.installing import install_line
from tests.indexing.sources.pdf_files import pdf
from tests.indexing.sources.reading import read


def bad_row(path: str) -> BadRow:
    [row] = read(path)
    assert isinstance(row, BadRow)
    assert "\n" not in row.reason
    return row


def docx(body: str, name: str = "word/document.xml", before: str = "") -> bytes:
    word = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    package = "http://schemas.openxmlformats.org/package/2006/relationships"
    types = "http://schemas.openxmlformats.org/package/2006/content-types"
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr("[Content_Types].xml", f'<Types xmlns="{types}"/>')
        parts.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{package}"><Relationship Id="r1" Type="{kind}" '
            f'Target="{name}"/></Relationships>',
        )
        parts.writestr(
            name,
            f'{before}<w:document xmlns:w="{word}"><w:body>{body}</w:body></w:document>',
        )
        parts.writestr(
            "word/styles.xml",
            f'<w:styles xmlns:w="{word}"><w:style w:type="paragraph" w:styleId="Heading1">'
            '<w:name w:val="heading 1"/></w:style></w:styles>',
        )
    return file.getvalue()


def paragraph(text: str, style: str = "") -> str:
    kind = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{kind}<w:r><w:t>{text}</w:t></w:r></w:p>"


PAGE = """<!doctype html><html><head><title> A  page </title><style>p {}</style>
<script>if (a < b) { "<p>" }</script></head><body><nav><a href="/">Home</a></nav>
<h1>First &amp; last</h1><p>One
   <b>bold</b> word.<br>A line.</p><ul><li>a</li><li><a href="x">b</a></li></ul>
<table><tr><th>n</th><td>1</td></tr><tr><td>m</td><td>2</td></tr></table>
<pre># no heading

  x</pre><h2>End</h2>after</body></html>"""

TEXT = """# First & last

One bold word.
A line.

- a
- b

n | 1
m | 2

```
# no heading

  x
```

## End

after"""


def test_a_page_becomes_markdown() -> None:
    Path("a.html").write_text(PAGE)
    assert read("a.html") == [
        Document(
            id="a.html",
            text=TEXT,
            metadata={"title": "A page"},
            place="'a.html'",
            is_markdown=True,
        )
    ]


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("plain", "plain"),
        ("<p>a<p>b", "a\n\nb"),
        ("<h1>a", "# a"),
        ("<script>x", ""),
        ("<svg><title>no</title><svg></svg>x</svg>y", "y"),
        # Signs that link to their own heading are no text of it; other links are.
        ('<h2>C#<a class="headerlink" title="Link" href="#c">\u00b6</a></h2>a', "## C#\n\na"),
        (
            '<h2><a id=x href="#x"><svg>no</svg></a>b<span><A HREF=#b>#</A></span></h2>a',
            "## b\n\na",
        ),
        ('<p>a<a href="#f">[1]</a> <a href="b#c">#</a><a>*</a> <a href="#">', "a[1] #*"),
        ('<p>a <a href="#b"><p>*</a>', "a\n\n*"),
        ('<pre><a href="#1">#</a> a</pre>', "```\n# a\n```"),
        # A nav that its author has not ended hides no more than its own block, and no <main>.
        ("<header><h1>b</h1><nav>no</header>a<p>b", "# b\n\na\n\nb"),
        ("<body><nav><ul><li>no</ul><main>a</main>b", "a\n\nb"),
        ("<nav><ul><li>no<li>no</ul></p>no<div>no</div><nav></nav>no</nav>a", "a"),
        ("<template><main>no</div></main>no</template>a", "a"),
        ("<script/>a", "a"),
        ("<li><p>a</p></li>", "a"),
        ("</pre></p>a", "a"),
        ("<pre> <td>a", "```\n a\n```"),
        ("<pre>a<p>b</p>  c\n# d</pre>e", "```\na\nb\n  c\n# d\n```\n\ne"),
        ("<div>" * 20_000 + "deep", "deep"),
        # These take minutes if every < looks for its end.
        ("<a " * 20_000, "<a " * 19_999 + "<a"),
        ("<a " + '="<a " ' * 10_000, "<a " + '="<a " ' * 9_999 + '="<a "'),
        ("<" + "a" * 100_000, "<" + "a" * 100_000),
        ("<td> " * 20_000 + "a", "a"),
        ("<p " + "a='<b>' " * 16 + ">c", "c"),
        ("<p title='a>b' data-x=\"<p>\" id=a\">a<b class='>'>c", "ac"),
        ("<p title='a>b</p>c", "b\n\nc"),
        ("<script>'<!--'</SCRIPT>a<style><!--</style>b<STYLE>c", "ab"),
        ("<?xml version='1.0'?>a<p-x>b<p:x>c\fd", "abc d"),
        ("1 < 2 <3> </>", "1 < 2 <3>"),
        ("a&nbsp;b&#8364;&lt;p&gt;", "a\xa0b€<p>"),
        (f"a&#{'1' * 5000};&amp;", "a\ufffd&"),  # Python reads no number of so many digits
        ("<!-- no --><p>a<!-- ", "a"),
        ("a<!-->b<!--->c<!-- no --!>d<!-- > -- -> no -->e", "abcde"),
        # Editors write blocks into cells: a row is a line all the same.
        (
            "<table><tr><td><p>a</p></td><td><div>b</div><br>c</td></tr><tr><th><p>d</th></tr>"
            "</table><p>e</p>f",
            "a | b c\nd\n\ne\n\nf",
        ),
        (
            "<h1>T</h1><p># as root</p><p>#1</p><pre># x</pre>",
            "# T\n\n\\# as root\n\n#1\n\n```\n# x\n```",
        ),
        ("<p>a<br>==</p><p>a ==<br>== a</p>", "a\n\\==\n\na ==\n== a"),
        ("<p>~~~</p><p>``` a</p><p>```a```</p>", "\\~~~\n\n\\``` a\n\n```a```"),
        ("<ul><li>``` a<li>1. ~~~</ul>", "- \\``` a\n- 1. \\~~~"),
        ("<p>+ ~~~<p>* ~~~<p>123456789) ~~~", "+ \\~~~\n\n* \\~~~\n\n123456789) \\~~~"),
        ("<pre>```\n# a</pre>b", "````\n```\n# a\n````\n\nb"),
        ("<pre>a<pre># b</pre># c</pre>d", "```\na\n# b\n# c\n```\n\nd"),
        ("<pre># a", "```\n# a\n```"),
        ("a<p/>b", "a\n\nb"),
        ("a <b> b</b>", "a b"),
        ("<td>b<br>c", "b c"),
        ("<tr> <td>a", "a"),
        ("<noscript>a</noscript><template>b</template><object>c</object><iframe>d</iframe>e", "e"),
        ("<dl><dt>a<dd>b</dl>", "a\nb"),
        ("<pre>a\u2028b  </pre>", "```\na\u2028b\n```"),
        ("<h2> </h2>a", "a"),
        ("<p>#", "\\#"),
        ("<td>a<ul><li>b<br>c", "a\n\n- b\nc"),
        ("<td>a</td>b<br>c", "ab\nc"),
        ("<tr><td>a</tr>b<br>c", "a\nb\nc"),
    ],
)
def test_pages_are_read_as_they_are_meant(page: str, text: str) -> None:
    assert html_text(page)[0] == text


@given(
    st.lists(
        st.sampled_from(
            [
                *("<p>", "<pre>", "</pre>", "<li>", "<br>", "<h1>", "<h2>a ", "</h2>"),
                *("# ", "#", "==", "```", "`", "~~~", "- ", "1. ", "a", " ", "\n"),
            ]
        )
    )
)
@settings(max_examples=200)
def test_only_the_headings_of_a_page_are_headings(parts: list[str]) -> None:
    page = "".join(parts)
    # A paragraph after the page shows that no block of code has swallowed it.
    text, _ = html_text(page + "</pre>" * page.count("<pre>") + "<h3>end</h3>")
    headings = [heading.title for heading in Outline(text).headings]
    assert headings[-1:] == ["end"]
    assert len(headings) <= page.count("<h") + 1


@given(
    st.lists(st.sampled_from(["<p>", "</p>", "<pre>", "</pre>", "<li>", "a", " ", "\n", "<br>"]))
)
@settings(max_examples=100)
def test_no_word_of_a_page_is_lost_or_made(parts: list[str]) -> None:
    text, _ = html_text("".join(parts))
    assert text.count("a") == parts.count("a")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("ä".encode(), "ä"),
        ("\ufeffä".encode(), "ä"),
        ("\ufeffä".encode("utf-16-le"), "ä"),
        ("\ufeffä".encode("utf-16-be"), "ä"),
        (b'<meta charset="latin1">\x80', '<meta charset="latin1">€'),
        (b'<meta charset="ascii">\x80', '<meta charset="ascii">€'),
        (b"<meta charset = ' cp1251 '>\xff", "<meta charset = ' cp1251 '>я"),
        # Characters that only the encoding has which browsers take for the declared one.
        ('<meta charset="gb2312">镕'.encode("gbk"), '<meta charset="gb2312">镕'),
        ('<meta charset="gbk">㐀'.encode("gb18030"), '<meta charset="gbk">㐀'),
        ('<meta charset="big5">恒'.encode("big5hkscs"), '<meta charset="big5">恒'),
        ('<meta charset="shift_jis">①髙'.encode("cp932"), '<meta charset="shift_jis">①髙'),
        ('<meta charset="euc-kr">똠'.encode("cp949"), '<meta charset="euc-kr">똠'),
        (
            b"<META content='text/html; charset=cp1251'>\xff",
            "<META content='text/html; charset=cp1251'>я",
        ),
        (
            b'<?xml version="1.0" encoding="ISO-8859-1"?>\xe4',
            '<?xml version="1.0" encoding="ISO-8859-1"?>ä',
        ),
        (b"<?xml encoding = 'cp1251' ?>\xff", "<?xml encoding = 'cp1251' ?>я"),
        ('<?xml encoding="utf-16"?>ä'.encode(), '<?xml encoding="utf-16"?>ä'),
        (
            b'<?xml encoding="cp1251"?><meta charset="latin1">\xe4',
            '<?xml encoding="cp1251"?><meta charset="latin1">ä',
        ),
        ('<?xml?><p encoding="latin1">ä'.encode(), '<?xml?><p encoding="latin1">ä'),
        ('<meta charset="utf-16">ä'.encode(), '<meta charset="utf-16">ä'),
        ('<meta charset="utf-16le">ä'.encode(), '<meta charset="utf-16le">ä'),
        ('<meta charset="utf-32">ä'.encode(), '<meta charset="utf-32">ä'),
        ('<meta charset="cp037">ä'.encode(), '<meta charset="cp037">ä'),
        ('<meta charset="hex">ä'.encode(), '<meta charset="hex">ä'),
        ('<meta charset="undefined">ä'.encode(), '<meta charset="undefined">ä'),
        ('<meta charset="unknown">ä'.encode(), '<meta charset="unknown">ä'),
        (b'<meta charset="punycode">-9ec', '<meta charset="punycode">-9ec'),
        (b'<meta charset="idna">.xn--4ca', '<meta charset="idna">.xn--4ca'),
        (b'<meta charset="unicode_escape">\\n', '<meta charset="unicode_escape">\\n'),
        (
            b'<meta charset="raw_unicode_escape">\\u0041',
            '<meta charset="raw_unicode_escape">\\u0041',
        ),
        ('a<?xml encoding="latin1"?>ä'.encode(), 'a<?xml encoding="latin1"?>ä'),
        ('\ufeff<meta charset="latin1">ä'.encode(), '<meta charset="latin1">ä'),
        (f'{" " * 1024}<meta charset="latin1">ä'.encode(), f'{" " * 1024}<meta charset="latin1">ä'),
    ],
)
def test_the_encoding_is_the_declared_one(data: bytes, text: str) -> None:
    assert decode_html(data) == text


def test_pages_that_are_not_read() -> None:
    with pytest.raises(UnicodeDecodeError):  # though it were UTF-8
        decode_html('<meta charset="latin1">\u00c1'.encode())
    Path("a.html").write_bytes(b"a\xff")
    assert bad_row("a.html").reason == (
        "is not in the encoding that it declares, or else in UTF-8 (byte 2)"
    )
    Path("b.html").write_text("<p> </p>")
    assert bad_row("b.html").reason == "is empty"


def test_a_page_too_large_is_a_bad_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_documents, "_MAX_HTML_BYTES", 1 << 20)
    Path("a.html").write_bytes(b"a" * ((1 << 20) + 1))
    assert bad_row("a.html").reason == "has more than 1 MiB; divide it"


def test_a_folder_is_read_for_them_only_if_asked() -> None:
    Path("docs").mkdir()
    Path("docs/a.md").write_text("a")
    Path("docs/b.htm").write_text("b")
    Path("docs/c.XHTML").write_text("c")
    told: list[str] = []
    assert [row.id for row in read("docs", told=told)] == ["docs/a.md"]
    assert told == [
        "docs/: 2 files of other kinds were skipped: .htm, .xhtml; name them with glob (--glob)"
    ]
    pages = ["docs/b.htm", "docs/c.XHTML"]
    assert [row.id for row in read("docs", input_format="html")] == pages
    assert [row.id for row in read("docs", glob=("*",))] == ["docs/a.md", *pages]


@pytest.mark.parametrize(("name", "package"), [("a.pdf", "pypdf"), ("a.docx", "mammoth")])
def test_without_the_package_the_way_to_install_it_is_named(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    Path(name).write_bytes(b"")
    told = f"{package} is not installed; {install_line('documents')}"
    with pytest.raises(SourceError, match=re.escape(told)):
        open_source([name], SourceOptions(), print)


def test_the_pages_of_a_pdf_are_documents() -> None:
    pytest.importorskip("pypdf")
    Path("a.pdf").write_bytes(pdf("one", "", "three"))
    assert read("a.pdf") == [
        Document(id="a.pdf#1", text="one", metadata={"page": 1}, place="page 1 of 'a.pdf'"),
        Document(id="a.pdf#3", text="three", metadata={"page": 3}, place="page 3 of 'a.pdf'"),
    ]
    assert length_hint(open_source(["a.pdf"], SourceOptions(), print), -1) == -1
    Path("scan.pdf").write_bytes(pdf("", ""))
    assert bad_row("scan.pdf") == BadRow(
        place="'scan.pdf'",
        reason="has no text on any page; recognize its text (OCR) first",
        file="scan.pdf",
    )


def test_pages_of_a_pdf_that_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pypdf")
    Path("a.pdf").write_bytes(pdf("one", r"nul \000"))
    good, bad = read("a.pdf")
    assert (good.id, bad.id) == ("a.pdf#1", "a.pdf#2")
    assert isinstance(bad, BadRow)
    assert bad.reason.startswith("has NUL")
    monkeypatch.setattr(file_documents, "_MAX_PAGES", 2)
    assert len(read("a.pdf")) == 2
    Path("a.pdf").write_bytes(pdf("one", "two", "three"))
    assert bad_row("a.pdf").reason == "has 3 pages; divide it into files of 2"


@pytest.mark.parametrize("num_covers", [0, 1])
def test_a_pdf_whose_cover_has_no_text_keeps_its_name(num_covers: int, tmp_path: Path) -> None:
    pytest.importorskip("pypdf")
    Path("a.pdf").write_bytes(pdf(*[""] * num_covers, "text"))
    source: Any = open_source(["a.pdf"], SourceOptions(), print)
    stored = {f"{tmp_path}/a.pdf#{num_covers + 1}"}
    source.keep_ids(lambda ids: len(stored.intersection(ids)))
    assert {row.id for row in source} == stored


@pytest.mark.parametrize(("suffix", "package"), [("pdf", "pypdf"), ("docx", "mammoth")])
def test_a_document_of_no_bytes_is_a_bad_row_in_a_folder_too(suffix: str, package: str) -> None:
    pytest.importorskip(package)
    Path("docs").mkdir()
    name = f"docs/a.{suffix}"
    Path(name).write_bytes(b"")
    told: list[str] = []
    (row,) = read("docs", input_format=suffix, told=told)
    assert isinstance(row, BadRow)
    assert (row.reason, row.file or row.id) == ("is empty; copy or save it again", name)
    assert told == []


def encrypt(name: str, password: str, algorithm: str) -> None:
    pypdf = pytest.importorskip("pypdf")
    writer = pypdf.PdfWriter(clone_from=BytesIO(pdf("text")))
    writer.encrypt(password, owner_password="owner", algorithm=algorithm)
    writer.write(name)


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-128", "AES-256"])
def test_an_encrypted_pdf_is_a_bad_row(algorithm: str) -> None:
    if algorithm != "RC4-128":
        pytest.importorskip("cryptography")
    for name, password in (("a.pdf", "secret"), ("b.pdf", "")):
        encrypt(name, password, algorithm)
    assert bad_row("a.pdf").reason == "is encrypted; save it without a password"
    assert [row.id for row in read("b.pdf")] == ["b.pdf#1"]


def test_without_the_package_for_aes_the_way_to_install_it_is_named() -> None:
    pytest.importorskip("cryptography")
    for algorithm in ("AES-128", "AES-256"):
        encrypt(f"{algorithm}.pdf", "", algorithm)
    script = """
import sys
sys.modules["cryptography"] = sys.modules["Crypto"] = None
from embedlib.indexing import SourceOptions, open_source
for name in ("AES-128.pdf", "AES-256.pdf"):
    print(*{row.reason for row in open_source([name], SourceOptions(), print)})
"""
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    line = f"is encrypted with AES; {install_line('documents')}\n"
    assert (shown.stdout, shown.stderr) == (line * 2, "")


@pytest.mark.filterwarnings("ignore")  # those of the packages about damaged files
@pytest.mark.parametrize("suffix", ["pdf", "docx"])
def test_damaged_files_are_bad_rows(suffix: str) -> None:
    pytest.importorskip("pypdf")
    pytest.importorskip("mammoth")
    whole = pdf("one", "two") if suffix == "pdf" else docx(paragraph("one"))
    for number in range(0, len(whole), max(1, len(whole) // 40)):
        damaged = [whole[:number], whole[:number] + b"\xff\x00<<[" + whole[number + 5 :]]
        for data in damaged:
            Path(f"a.{suffix}").write_bytes(data)
            rows = read(f"a.{suffix}")
            assert rows
            assert all("\n" not in row.reason for row in rows if isinstance(row, BadRow))


def test_a_word_file_becomes_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mammoth")
    cells = "".join(f"<w:tc>{paragraph(text)}</w:tc>" for text in ("left", "right"))
    table = f"<w:tbl><w:tr>{cells}</w:tr></w:tbl>"
    body = paragraph("Title", "Heading1") + paragraph("One &lt;word&gt;.") + table
    Path("a.docx").write_bytes(docx(body))
    assert read("a.docx") == [
        Document(
            id="a.docx",
            text="# Title\n\nOne <word>.\n\nleft | right",
            place="'a.docx'",
            is_markdown=True,
        )
    ]
    monkeypatch.setattr(file_documents, "_MAX_XML_BYTES", 500)
    assert bad_row("a.docx").reason == "has more than 0 MiB of text; divide it"
    Path("c.docx").write_bytes(docx(body, "media/image.png"))  # the file says which part it is
    assert bad_row("c.docx").reason == "has more than 0 MiB of text; divide it"
    for before in ("\ufeff", " " * 70):
        Path("d.docx").write_bytes(docx(body, "media/image.png", before))
        assert bad_row("d.docx").reason == "has more than 0 MiB of text; divide it"
    monkeypatch.setattr(file_documents, "_MAX_PARTS", 3)
    assert bad_row("a.docx").reason == "has more than 3 parts; save it again"
    Path("e.docx").write_bytes(b"\xd0\xcf\x11\xe0 as it has with a password")
    assert bad_row("e.docx").reason.startswith("is encrypted, or an old .doc; save it as .docx")
    Path("b.docx").write_bytes(b"no zip")
    assert bad_row("b.docx").reason.startswith("cannot be read as a Word file (.docx): ")
    monkeypatch.setattr(zipfile, "ZipFile", raise_without_a_word)
    assert bad_row("b.docx").reason == "cannot be read as a Word file (.docx): RuntimeError"


def raise_without_a_word(*_: object) -> None:
    raise RuntimeError
