"""Makes PDF files for tests."""

from __future__ import annotations


def pdf(*texts: str) -> bytes:
    """A PDF with a page for each text; the smallest one that has what readers need."""
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    kids = b" ".join(b"%d 0 R" % (4 + 2 * n) for n in range(len(texts)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Count %d /Kids [%s] >>" % (len(texts), kids),
        font,
    ]
    for number, text in enumerate(texts):
        drawn = b"BT /F1 12 Tf 72 720 Td (%s) Tj ET" % text.encode()
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * number),
            b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawn), drawn),
        ]
    data, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    return (
        data
        + b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R >>\n"
        % ((size, table, size))
        + b"startxref\n%d\n%%%%EOF\n" % len(data)
    )
