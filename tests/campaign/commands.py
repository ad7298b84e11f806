"""Bad command lines: every command, with options drawn from its own definition and odd values.

A command must end in order: done, refused by click's usage, or with one line "Error: ...".
"""

from __future__ import annotations

import os
import random
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import click
from click.testing import CliRunner, Result

from embedlib.cli import main
from embedlib.testing import write_tiny_model
from tests.campaign.verdict import LONGEST_MESSAGE, Judge, Verdict, describe, finding

LINES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "encode": ("encode", "embedder", "texts.txt", "-o", "out.npy"),
        "classify": ("classify", "classifier", "texts.txt"),
        "rerank": ("rerank", "a question", "texts.txt", "-m", "reranker"),
        "index": ("index", "rows.jsonl", "-m", "embedder", "--to", "jsonl:vectors.jsonl"),
        "chunks": ("chunks", "rows.jsonl", "-m", "embedder"),
        "search": ("search", "a question", "--to", "jsonl:stored.jsonl", "-m", "embedder"),
        "status": ("status", "jsonl:stored.jsonl"),
        "inspect": ("inspect", "embedder"),
        "doctor": ("doctor",),
        "verify": ("verify", "embedder", "--precision", "int8", "--texts", "texts.txt"),
        "compile": ("compile", "embedder", "--precision", "int8", "--out", "compiled"),
        "bench-write": ("bench-write", "--to", "jsonl:bench.jsonl", "--num-rows", "20"),
    }
)
"""A right line of each command but `bench`, whose single run takes longer than all of these."""
ODD_WORDS: Final = (
    *("", " ", "false", "-1", "0", "1", "3", "1e30", "9" * 30, "9" * 5000, "nan", "inf", "0x10"),
    *(
        "a\nb",
        "a\r\nb",
        "\u2028",
        "\x1b[31m",
        "x" * 100_000,
        "\udcff",
        "ключ",
        "--",
        "-",
        "@",
        "%s",
    ),
    *(
        "{text}",
        "nowhere/..",
        ".",
        "nowhere/nothing",
        "/dev/null",
        "/dev/full",
        "texts.txt",
        "embedder",
    ),
    *("1/2", "0/0", "cpu", "cuda:99", "int8", "float32", "jsonl:other.jsonl", "npy:", "edge:e"),
    *(
        "parquet:stored.jsonl",
        "jsonl:texts.txt",
        "jsonl:nowhere/x",
        "postgresql://nobody@[::",
        "a:b",
    ),
    *("qdrant://", "edge:texts.txt", "jsonl:x?y=z", "jsonl:a\nb", "sqlite://", "fp8", "bert", "~x"),
)


@contextmanager
def open_judge(folder: Path) -> Iterator[Judge]:
    """Open a judge in a folder with tiny models, texts and a loaded destination."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    write_tiny_model(folder / "embedder", "bert")
    write_tiny_model(folder / "reranker", "bert-reranker")
    write_tiny_model(folder / "classifier", "bert-classifier")
    (folder / "texts.txt").write_text("one text\nanother\n", encoding="utf-8")
    rows = ('{"id": "a", "text": "one text"}\n', '{"id": "b", "text": "another"}\n')
    (folder / "rows.jsonl").write_text("".join(rows), encoding="utf-8")
    loaded = run(("index", "rows.jsonl", "-m", "embedder", "--to", "jsonl:stored.jsonl"))
    assert loaded.exit_code == 0, loaded.output

    def judge(rng: random.Random) -> Verdict:
        arguments = draw_line(rng)
        return judge_result(run(arguments), f"embedlib {shlex.join(arguments)}"[:300])

    yield judge


def draw_line(rng: random.Random) -> tuple[str, ...]:
    """Return a right line with up to three odd words and options."""
    name = rng.choice(list(LINES))
    line = list(LINES[name])
    command = main.get_command(click.Context(main), name)
    assert command is not None
    options = [
        option
        for option in command.params
        if isinstance(option, click.Option) and option.name not in ("debug", "help")
    ]
    if rng.random() < 0.3 and len(line) > 1:
        line[rng.randrange(1, len(line))] = rng.choice(ODD_WORDS)
    for option in rng.sample(options, min(len(options), rng.randrange(3))):
        line.append(rng.choice((*option.opts, *option.secondary_opts)))
        if not option.is_flag:
            line.append(_draw_value(rng, option))
    return tuple(line)


def _draw_value(rng: random.Random, option: click.Option) -> str:
    choices: tuple[Any, ...] = tuple(getattr(option.type, "choices", ()))
    if choices and rng.random() < 0.7:
        return str(rng.choice(choices))
    return rng.choice(ODD_WORDS)


def run(arguments: tuple[str, ...]) -> Result:
    return CliRunner().invoke(main, list(arguments), input="a text\n")


def judge_result(result: Result, what: str) -> Verdict:
    """Judge how a command ended by its exit code and what it wrote to standard error."""
    what = ascii(what)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return finding("foreign exception", f"{what}: {describe(result.exception)}")
    if result.exit_code == 0 or "FAILED" in result.stdout or '"passes": false' in result.stdout:
        return Verdict("done", what)  # a gate that is not passed is an answer, with exit code 1
    lines = result.stderr.splitlines()
    errors = [number for number, line in enumerate(lines) if line.startswith("Error:")]
    if not errors:
        return finding("no message", f"{what}: exit code {result.exit_code}, {lines[-3:]!r}")
    if errors[-1] != len(lines) - 1:
        return finding("message of several lines", f"{what}: {lines[errors[-1] :]!r:.300}")
    if len(lines[-1]) > LONGEST_MESSAGE:
        return finding("message too long", f"{what}: {lines[-1][:100]!r}")
    return Verdict("usage" if result.exit_code == 2 else "refused", what)
