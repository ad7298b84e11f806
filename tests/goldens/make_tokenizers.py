"""Write tokenizer_edits.json: what transformers makes of tokenizer folders with one edit.

    python tests/goldens/make_tokenizers.py

Run by hand, in an environment with the `goldens` dependency group.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from tests.campaign.tokenizer_edits import BASES, TEXTS, digest, draw  # noqa: E402

NUM_EDITS = 16


def reference(folder: Path) -> str | None:
    """Return the digest of the ids of all texts and a pair; None if transformers fails."""
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
        ids = [tokenizer(text)["input_ids"] for text in TEXTS]
        return digest([*ids, tokenizer(TEXTS[0], TEXTS[1])["input_ids"]])
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime":  # a panic
            return None
        raise


def main() -> None:
    rows: dict[str, list[list[str | None]]] = {}
    for base in BASES:
        rows[base] = []
        for number in range(NUM_EDITS + 1):
            with tempfile.TemporaryDirectory() as temporary:
                edit = draw(Path(temporary), base, number)
                rows[base].append([edit, reference(Path(temporary))])
    versions = {name: version(name) for name in ("transformers", "tokenizers")}
    path = HERE / "tokenizer_edits.json"
    path.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
