"""`embedlib encode`: embed texts and write their vectors to a file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from embedlib.cli.options import (
    ENGINE_OPTIONS,
    MODEL_OPTIONS,
    GroupedCommand,
    ModelArgument,
    config_options,
)
from embedlib.cli.paths import FilePath
from embedlib.cli.progress import loading, on_interrupt, prints_to_terminal, tell_if_typed
from embedlib.cli.text_input import TEXT, text_input_options
from embedlib.cli.usage_errors import refuse
from embedlib.config import Config, VectorPrecision
from embedlib.errors import ConfigError, count_of
from embedlib.progress.screens import Reading
from embedlib.settings.names import TEXT_SETTINGS

if TYPE_CHECKING:
    from embedlib.cli.records import Record
    from embedlib.models.prompts import Role
    from embedlib.vectors.arrays import AnyVectors

_FORMATS = ("npy", "jsonl")


@click.command(cls=GroupedCommand)
@click.argument("model", cls=ModelArgument, required=False)
@click.argument("inputs", nargs=-1, type=FilePath())
@click.option(
    "-o",
    "--output",
    type=FilePath(),
    default="-",
    help="File to write; - is standard output. A file appears under this name when it is complete.",
)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(_FORMATS),
    help="npy: one array [N, D]. jsonl: for each text a line with the input's fields and the "
    "embedding.  [default: from the extension of --output; jsonl on standard output]",
)
@text_input_options
@click.option("--query", is_flag=True, help="Use the model's prompt for queries.")
@click.option("--document", is_flag=True, help="Use the model's prompt for documents.")
@click.option(
    "--task",
    type=TEXT,
    help="What the vectors are for: one of the model's tasks, or your own words if the model takes "
    "an instruction; `embedlib inspect` lists both.",
)
@click.option("--prompt-name", help="Use the model's prompt with this name.")
@click.option("--prompt", type=TEXT, help="Put this prompt in front of every text.")
@click.option("--normalize", is_flag=True, help="Scale every vector to unit length.")
@click.option(
    "--output-precision",
    type=click.Choice(get_args(VectorPrecision)),
    default="float32",
    help="Number type of the vectors; binary and ubinary store one bit per dimension, eight in a "
    "byte.",
)
@click.option(
    "--quantization-ranges",
    type=FilePath(path_type=Path),
    help="For int8 and uint8: .npy file with the ranges that `Embedder.calibrate` returned.",
)
@config_options(*TEXT_SETTINGS, *ENGINE_OPTIONS, *MODEL_OPTIONS)
def encode(
    model: str,
    inputs: tuple[str, ...],
    output: str,
    output_format: str | None,
    input_format: str,
    field: str,
    query: bool,
    document: bool,
    task: str | None,
    prompt_name: str | None,
    prompt: str | None,
    normalize: bool,
    output_precision: VectorPrecision,
    **options: Any,
) -> None:
    """Embed the texts of INPUTS with MODEL.

    MODEL is a folder, a pack, a hub name, or package:NAME for a model installed as a Python
    package. INPUTS are files with one text per line; without INPUTS, or for -, texts are read from
    standard input.

    \b
    Examples:
      embedlib encode BAAI/bge-small-en-v1.5 --document notes.txt -o notes.npy
      cat tickets.jsonl | embedlib encode ./model --input-format jsonl > vectors.jsonl
    """
    role: Role | None = "query" if query else "document" if document else None
    _check_one_prompt(query and document, role or task, prompt_name, prompt)
    _check_ranges(output_precision, options["quantization_ranges"])
    output_format = _output_format(output, output_format)
    config = Config(**options)

    from embedlib.cli.records import count_records, input_paths, read_records
    from embedlib.embedder import Embedder
    from embedlib.indexing.sources.overwriting import check_not_input
    from embedlib.session.late_interaction import check_one_vector
    from embedlib.vectors.files import STDOUT, open_writer

    paths = input_paths(inputs, input_format)
    check_not_input(output, paths, "-o")
    tell_if_typed(paths)
    if output != STDOUT:
        on_interrupt(lambda: f"nothing was written to {output}; run the same command again")
    with (
        loading(model, config.cache_folder) as progress,
        Embedder(model, config=config) as embedder,
    ):
        check_one_vector(embedder.spec, "embedlib encode")
        if embedder.spec.is_sparse:
            raise ConfigError(
                f"{model} is sparse, it makes weights of tokens: embedlib index --sparse writes "
                "them beside the vectors of another model, and Embedder returns them in Python "
                "(output_value='sparse')"
            )
        dim = embedder.get_embedding_dimension()
        if output_precision in ("binary", "ubinary"):
            dim = -(-dim // 8)
        records = read_records(paths, input_format=input_format, field=field)
        to_vectors = partial(
            embedder.encode_stream,
            prompt_name=prompt_name,
            prompt=prompt,
            precision=output_precision,
            normalize_embeddings=normalize,
            role=role,
            task=task,
        )
        with open_writer(output, output_format, dim) as writer:
            rows = _rows(records, to_vectors)
            num_rows = 0
            if output == STDOUT and prints_to_terminal():
                progress.pause()
            else:
                total = count_records(paths)
                progress.watch(
                    "Encoding",
                    "texts",
                    lambda: Reading(done=embedder.stats().num_texts, total=total),
                )
            for num_rows, row in enumerate(rows, start=1):  # noqa: B007 - read at the end
                writer.write(*row)
        if output != STDOUT:
            progress.pause()  # the bar is left complete above the line
            progress.say(f"wrote {count_of(num_rows, 'vector')} of {dim:,} numbers to {output}")


def _rows(
    records: Iterable[Record], to_vectors: Callable[[Iterable[str]], Iterator[AnyVectors]]
) -> Iterator[tuple[dict[str, Any], AnyVectors]]:
    """Yield the fields of each record with its vector."""
    # The embedder reads some texts ahead; their records wait here for their vectors.
    waiting: deque[Record] = deque()

    def texts() -> Iterator[str]:
        for record in records:
            waiting.append(record)
            yield record.text

    for vector in to_vectors(texts()):
        yield waiting.popleft().fields, vector


def _check_one_prompt(is_both: bool, *choices: str | None) -> None:
    if is_both or sum(choice is not None for choice in choices) > 1:
        raise click.UsageError(
            "give one of --query or --document (and --task), --prompt-name and --prompt"
        )


def _check_ranges(precision: VectorPrecision, ranges: Path | None) -> None:
    if precision in ("int8", "uint8") and ranges is None:
        raise ConfigError(
            f"--output-precision {precision} needs the range of every dimension; save what "
            "Embedder.calibrate(texts) returns with numpy.save and name the file with "
            "--quantization-ranges"
        )
    if precision not in ("int8", "uint8"):
        refuse("is for --output-precision int8 and uint8; leave it out", "quantization_ranges")


def _output_format(output: str, output_format: str | None) -> str:
    extension = Path(output).suffix.removeprefix(".").lower()
    chosen = output_format or ("jsonl" if output == "-" else extension)
    if chosen not in _FORMATS:
        raise click.UsageError(f"{output!r} ends neither in .npy nor in .jsonl; add --format")
    if output == "-" and chosen == "npy" and prints_to_terminal():
        raise click.UsageError("npy cannot be printed on a terminal; add -o FILE")
    return chosen
