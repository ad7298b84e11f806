"""What the site does to pages that are read on a forge as they are.

- `../embedlib/config.py` is a link to that file there. The site has no such file, so the link goes
  to the repository; one to a file that does not exist fails the build.
- Pictures of SVG stand in the page itself, so that they take its colours, dark or light.
- The first page gets its own template, and its list of tasks becomes cards.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OUTSIDE = re.compile(r"\]\(((?:\.\./)+[^)#\s]*|[\w./-]+\.py)(#[^)\s]*)?\)")
PICTURE = re.compile(r'<p><img alt="[^"]*" src="[^"]*images/([\w-]+\.svg)" ?/?></p>')
log = logging.getLogger("mkdocs.hooks.repository_links")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Point links that leave docs/ at the repository, and set what pages are shown with."""
    if page.is_homepage:
        page.meta.update(template="home.html", hide=["navigation", "toc"])
    if page.file.src_uri.startswith("reference/"):
        page.meta["search"] = {"boost": 0.5}  # pages that explain come first
    folder = Path(page.file.abs_src_path).parent

    def replace(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        if target.is_relative_to(ROOT / "docs") and target.suffix != ".py":
            return link[0]
        if not target.exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, target)
        path = target.relative_to(ROOT).as_posix()
        return f"]({config.extra['repository']}/{path}{link[2] or ''})"

    return OUTSIDE.sub(replace, markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Put pictures of SVG into the page, and the first page's tasks on cards."""

    def inline(image: re.Match[str]) -> str:
        path = ROOT / "docs" / "images" / image[1]
        return f'<figure class="figure">{path.read_text(encoding="utf-8")}</figure>'

    html = PICTURE.sub(inline, html)
    if page.is_homepage:
        html = html.replace("<h1 ", "<h1 hidden ", 1)  # the template has a headline of its own
        html = html.replace("<ul>", '<ul class="cards">', 1)
    return html
