"""`embedlib pack`: all files of a model in one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from embedlib.cli.options import MODEL_OPTIONS, GroupedCommand, ModelArgument, config_options
from embedlib.cli.paths import FilePath
from embedlib.cli.progress import loading
from embedlib.cli.table import print_table
from embedlib.config import Config
from embedlib.errors import ConfigError, count_of


@click.command(cls=GroupedCommand)
@click.argument("model", cls=ModelArgument, required=False)
@click.option(
    "--output",
    "-o",
    "out",
    type=FilePath(path_type=Path, dir_okay=False),
    required=True,
    help="File to write, NAME.embedlib.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was packed as one JSON object.")
@config_options("template", "engine_cache_dir", *MODEL_OPTIONS)
def pack(model: str, out: Path, as_json: bool, **options: Any) -> None:
    """Write MODEL into one file, which is opened by its path.

    Such a pack has the weights, the tokenizer, all settings, the model's name and commit on the
    hub, and what was measured or compiled of it on this machine. It needs no network, is not
    unpacked, and is compared with its hashes when it is opened. MODEL is a folder, a hub name or
    package:NAME, of any kind of model, or an engine directory.

    \b
    Examples:
      embedlib pack BAAI/bge-small-en-v1.5 -o bge-small.embedlib
      embedlib encode bge-small.embedlib texts.txt -o vectors.npy
    """
    from embedlib.models.opening import OpenedModel
    from embedlib.models.packing.write import find_content, pack_model
    from embedlib.models.reading.pack_file import PACK_SUFFIX

    if out.suffix != PACK_SUFFIX:
        raise click.BadParameter(
            f"{str(out)!r}; the name of a pack ends with {PACK_SUFFIX}", param_hint="'--output'"
        )
    if not out.parent.is_dir():
        raise ConfigError(
            f"cannot write {str(out)!r}: there is no folder {str(out.parent)!r}; make it"
        )
    config = Config(**options)
    with loading(model, config.cache_folder) as progress:
        opened = OpenedModel.find(model, config)
        files = opened.read_files(with_head=opened.has_head)
        content = find_content(files, opened.manifest, config)
        digest = pack_model(files, content, out, progress.watch_counts("Packing", "B"))
    facts: dict[str, Any] = {
        "pack": str(out),
        "model": opened.name,
        "revision": opened.revision,
        "bytes": out.stat().st_size,
        "files": len(content.paths),
        "compiled": [version.precision for version in content.compiled],
        "reports": content.num_reports,
        "digest": digest,
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    print_table(
        [
            ("pack", str(out)),
            ("model", opened.name),
            *([("revision", opened.revision)] if opened.revision else []),
            ("size", f"{facts['bytes'] / 1e6:.1f} MB, {len(content.paths)} files"),
            *([("compiled", ", ".join(facts["compiled"]))] if content.compiled else []),
            *(
                [("measured", count_of(content.num_reports, "report"))]
                if content.num_reports
                else []
            ),
            ("digest", digest),
        ]
    )
