"""Full-text search: Qdrant's text index of the chunks, ranked by BM25 since Qdrant 1.20."""

from __future__ import annotations

from typing import Any

from embedlib.errors import SinkError
from embedlib_qdrant.points import Mark

SIMPLE = "simple"
"""Words as they are, in lower case: no stems, no stop words; Postgres' name for it."""
LANGUAGES = (
    *("arabic", "armenian", "danish", "dutch", "english", "finnish", "french", "german", "greek"),
    *("hungarian", "italian", "norwegian", "portuguese", "romanian", "russian", "spanish"),
    *("swedish", "tamil", "turkish"),
)
"""With stems. Source: `SnowballLanguage` of qdrant-client 1.20 and qdrant-edge-py 0.9."""
_NO_STOP_WORDS = ("armenian", "tamil")
"""Not in `Language` of both."""


def check_language(language: str, name: str) -> None:
    """Refuse a language that Qdrant does not know.

    Raises:
        SinkError: names those that it knows.
    """
    if language != SIMPLE and language not in LANGUAGES:
        raise SinkError(
            f"{name}: full_text = {language!r:.60} is no language of Qdrant; it has {SIMPLE}, "
            f"{', '.join(LANGUAGES)}"
        )


def require_language(mark: Mark, name: str) -> None:
    """Refuse to search in words that have no index.

    Raises:
        SinkError: they have none.
    """
    if mark.full_text is None:
        raise SinkError(f"{name} holds no full-text index; load it with --full-text")


def is_ranking(index: Any) -> bool:
    """Whether a payload index, of the client or of edge, is one that ranks; None: there is none."""
    return bool(getattr(getattr(index, "params", None), "scoring", None))


def client_text_index(models: Any, language: str) -> Any:
    """Return the parameters of the index; `models` is the module of that name of qdrant-client."""
    words = {}
    if language != SIMPLE:
        words["stemmer"] = models.SnowballParams(
            type=models.Snowball.SNOWBALL, language=models.SnowballLanguage(language)
        )
        if language not in _NO_STOP_WORDS:
            words["stopwords"] = models.Language(language)
    return models.TextIndexParams(
        type=models.TextIndexType.TEXT, lowercase=True, scoring=True, **words
    )


def edge_text_index(edge: Any, language: str) -> Any:
    """Return the same for `edge`, the module `qdrant_edge`."""
    words = {}
    if language != SIMPLE:
        name = language.title()
        words["stemmer"] = edge.SnowballParams(getattr(edge.SnowballLanguage, name))
        if language not in _NO_STOP_WORDS:
            words["stopwords"] = getattr(edge.Language, name)
    return edge.TextIndexParams(lowercase=True, scoring=True, **words)
