"""Files that are read as a whole: text, Markdown and HTML, and PDF and DOCX with other packages."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from io import BytesIO
from typing import Any, Final

from embedlib.errors import SourceError, first_line
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.sources.file_bytes import BrokenFileError, read_bytes
from embedlib.indexing.sources.file_formats import place_of, read_text
from embedlib.indexing.sources.html_text import decode_html, html_text
from embedlib.indexing.sources.input_files import InputFile
from embedlib.indexing.sources.json_values import BadValueError, check_text
from embedlib.indexing.sources.protocol import InputFormat
from embedlib.packages.installing import import_extra, install_line

_EXTRA: Final = "documents"
_PACKAGES: Final[dict[InputFormat, str]] = {"pdf": "pypdf", "docx": "mammoth"}

_MAX_HTML_BYTES: Final = 1 << 26
_MAX_PACKED_BYTES: Final = 1 << 28
"""More than any document: such files are read into memory as a whole."""

_MAX_XML_BYTES: Final = 1 << 26
"""Of the parts of a DOCX file that hold text, which takes some ten times as much when it is read. A
file of a few kilobytes may be made to grow beyond every memory."""

_MAX_PARTS: Final = 100_000
"""Of a DOCX file. To list one that holds nothing takes ten times its bytes of memory."""

_OLD_WORD: Final = b"\xd0\xcf\x11\xe0"
"""How old Word files begin, and DOCX files with a password. Source: [MS-CFB], 2.2."""

_BEFORE_XML: Final = b"\xef\xbb\xbf\xff\xfe\0 \t\r\n"
"""Bytes that may stand in front of the first < of a part in UTF-8 or UTF-16."""

_MAX_PAGES: Final = 20_000
_FIRST_PAGES: Final = 8
"""Of which one has text: a cover has none."""


def check_package(input_format: InputFormat) -> None:
    """Refuse a format whose package is not installed.

    Raises:
        SourceError: the message has the command that installs it.
    """
    if input_format in _PACKAGES:
        import_extra(_PACKAGES[input_format], _EXTRA, SourceError)


def first_ids(name: str, input_format: InputFormat) -> list[str]:
    """Return the ids of the first documents that a file of this name may have."""
    if input_format != "pdf":
        return [name]
    return [f"{name}#{page}" for page in range(1, _FIRST_PAGES + 1)]


def read_file(file: InputFile) -> list[Document | BadRow]:
    """Return the documents of a file: one, or those of its pages; none: an empty text of a folder.

    A file that cannot be read to its end gives one bad row and nothing else.
    """
    place = place_of(file.path)
    try:
        documents = list(_read(file, place))
        if not documents and file.is_named:
            raise BadValueError("is empty")
        return documents
    except (BadValueError, BrokenFileError) as error:
        if file.input_format == "pdf":  # its pages are unknown, and so are their ids
            return [BadRow(place=place, reason=str(error), file=file.name)]
        return [BadRow(place=place, reason=str(error), id=file.name)]


def _read(file: InputFile, place: str) -> Iterator[Document | BadRow]:
    if file.input_format == "pdf":
        yield from _read_pages(file, place)
        return
    metadata: dict[str, Any] = {}
    if file.input_format in ("html", "docx"):
        is_html = file.input_format == "html"
        text, title = html_text(_read_html(file.path) if is_html else _read_docx(file.path))
        metadata = {"title": title} if title else {}
    else:
        text = read_text(file.path)
    if not text or text.isspace():
        return
    check_text(text)
    yield Document(
        id=file.name,
        text=text,
        metadata=metadata,
        place=place,
        is_markdown=file.input_format != "text",
    )


def _read_html(path: str) -> str:
    data = read_bytes(path, _MAX_HTML_BYTES)
    try:
        return decode_html(data)
    except UnicodeDecodeError as error:
        raise BrokenFileError(
            f"is not in the encoding that it declares, or else in UTF-8 (byte {error.start + 1})"
        ) from error


def _read_packed(path: str) -> bytes:
    """Return the content of a PDF or Word file, which has more than 0 bytes when it is whole.

    An empty one is a copy that has just begun: to skip it would remove what is stored of it.

    Raises:
        BrokenFileError: it cannot be read, is too large, or is empty.
    """
    data = read_bytes(path, _MAX_PACKED_BYTES)
    if not data:
        raise BrokenFileError("is empty; copy or save it again")
    return data


def _read_docx(path: str) -> str:
    """Return a Word file as HTML."""
    mammoth = import_extra("mammoth", _EXTRA, SourceError)
    data = _read_packed(path)
    if data.startswith(_OLD_WORD):
        raise BrokenFileError("is encrypted, or an old .doc; save it as .docx without a password")
    if data.count(b"PK\x01\x02") > _MAX_PARTS:  # each is listed with these bytes
        raise BrokenFileError(f"has more than {_MAX_PARTS:,} parts; save it again")
    try:
        with zipfile.ZipFile(BytesIO(data)) as parts:
            xml = [part for part in parts.infolist() if _may_be_xml(parts, part)]
        if sum(part.file_size for part in xml) > _MAX_XML_BYTES:
            raise BrokenFileError(f"has more than {_MAX_XML_BYTES >> 20} MiB of text; divide it")
        no_image = mammoth.images.img_element(lambda _: {})  # else each would be in the HTML
        page: str = mammoth.convert_to_html(BytesIO(data), convert_image=no_image).value
        return page
    except BrokenFileError:
        raise
    except Exception as error:  # of damaged files; they are of many kinds
        raise _damaged("a Word file (.docx)", error) from error


def _may_be_xml(parts: zipfile.ZipFile, part: zipfile.ZipInfo) -> bool:
    """Return whether a part may hold text, by its first bytes: the file says which ones do."""
    with parts.open(part) as stream:
        first = stream.read(64).lstrip(_BEFORE_XML)
    return first[:1] in (b"<", b"")


def _read_pages(file: InputFile, place: str) -> Iterator[Document | BadRow]:
    """Yield the pages of a PDF that have text."""
    pypdf = import_extra("pypdf", _EXTRA, SourceError)
    data = _read_packed(file.path)
    try:
        reader = pypdf.PdfReader(BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise BrokenFileError("is encrypted; save it without a password")
        num_pages = len(reader.pages)
    except BrokenFileError:
        raise
    except Exception as error:  # of damaged files; they are of many kinds
        raise _unreadable_pdf(error) from error
    if num_pages > _MAX_PAGES:
        raise BrokenFileError(f"has {num_pages:,} pages; divide it into files of {_MAX_PAGES:,}")
    is_scan = True
    for number in range(1, num_pages + 1):
        page = _read_page(reader, number, file.name, place)
        if page is not None:
            is_scan = False
            yield page
    if is_scan:
        raise BrokenFileError("has no text on any page; recognize its text (OCR) first")


def _read_page(reader: Any, number: int, name: str, place: str) -> Document | BadRow | None:
    """Return a page as a document; None: it has no text."""
    id_, page_place = f"{name}#{number}", f"page {number} of {place}"
    try:
        # Fonts without a table of their characters give NUL and lone surrogates.
        text = reader.pages[number - 1].extract_text()
        check_text(text)
    except BadValueError as error:
        return BadRow(place=page_place, reason=str(error), id=id_)
    except Exception as error:  # of damaged pages; they are of many kinds
        return BadRow(place=page_place, reason=str(_unreadable_pdf(error)), id=id_)
    if not text or text.isspace():
        return None
    return Document(id=id_, text=text, metadata={"page": number}, place=page_place)


def _unreadable_pdf(error: Exception) -> BrokenFileError:
    missing = import_extra("pypdf.errors", _EXTRA, SourceError).DependencyError
    if isinstance(error, missing) and "AES" in str(error):  # older ciphers need no package
        return BrokenFileError(f"is encrypted with AES; {install_line(_EXTRA)}")
    return _damaged("PDF", error)


def _damaged(kind: str, error: Exception) -> BrokenFileError:
    return BrokenFileError(f"cannot be read as {kind}: {first_line(error)}")
