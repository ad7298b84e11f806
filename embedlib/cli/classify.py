"""`embedlib classify`: print the labels of texts, with scores."""

from __future__ import annotations

from typing import Any

import click

from embedlib.cli.json_output import print_json
from embedlib.cli.options import ENGINE_OPTIONS, MODEL_OPTIONS, GroupedCommand, config_options
from embedlib.cli.paths import FilePath
from embedlib.cli.progress import loading, prints_to_terminal, tell_if_typed
from embedlib.cli.text_input import one_line, text_input_options
from embedlib.config import Config
from embedlib.errors import visible_line
from embedlib.progress.screens import Reading

_CHUNK_TEXTS = 4096
"""Texts scored together: enough to keep the engine busy, few enough to hold in memory."""


@click.command(cls=GroupedCommand)
@click.argument("model")
@click.argument("inputs", nargs=-1, type=FilePath())
@click.option(
    "-k",
    "--top-k",
    type=click.IntRange(min=1),
    default=1,
    help="Number of labels to print for each text.",
)
@text_input_options
@click.option(
    "--raw-scores", is_flag=True, help="Print the model's raw scores, without sigmoid or softmax."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per text: the input's fields and its labels, highest score first.",
)
@config_options("max_seq_tokens", "on_truncate", *ENGINE_OPTIONS, *MODEL_OPTIONS)
def classify(
    model: str,
    inputs: tuple[str, ...],
    top_k: int,
    input_format: str,
    field: str,
    raw_scores: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Label the texts of INPUTS with MODEL.

    MODEL is a folder, a pack, a hub name, or package:NAME. INPUTS are files with one text per line;
    without INPUTS, or for -, texts are read from standard input. A reward model gives each text one
    score.

    \b
    Example:
      embedlib classify SamLowe/roberta-base-go_emotions comments.txt --top-k 3
    """
    config = Config(**options)

    from itertools import islice

    from embedlib.classifier import Classifier
    from embedlib.cli.records import count_records, input_paths, read_records
    from embedlib.session.running import rows_from

    paths = input_paths(inputs, input_format)
    tell_if_typed(paths)
    records = read_records(paths, input_format=input_format, field=field)
    with (
        loading(model, config.cache_folder) as progress,
        Classifier(model, config=config) as classifier,
    ):
        if prints_to_terminal():
            progress.pause()
        else:
            total = count_records(paths)
            progress.watch(
                "Classifying",
                "texts",
                lambda: Reading(done=classifier.stats().num_texts, total=total),
            )
        num_texts = 0
        while chunk := list(islice(records, _CHUNK_TEXTS)):
            texts = [record.text for record in chunk]
            with rows_from(num_texts):
                predicted = classifier.predict(
                    texts, top_k, raw_scores=raw_scores, show_progress_bar=False
                )
            num_texts += len(texts)
            for record, labels in zip(chunk, predicted, strict=True):
                if as_json:
                    print_json({**record.fields, "labels": labels})
                else:
                    shown = ", ".join(f"{each['label']} {each['score']:.4f}" for each in labels)
                    click.echo(f"{visible_line(shown)}  {one_line(record.text)}")
