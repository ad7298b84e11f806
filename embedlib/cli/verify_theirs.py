"""`embedlib verify --against FILE` and `--against URL`: vectors that were made elsewhere."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from embedlib.cli.options import TitledOption, decorated
from embedlib.cli.paths import FilePath
from embedlib.cli.progress import loading
from embedlib.cli.text_input import TEXT, one_line
from embedlib.cli.usage_errors import refuse
from embedlib.config import Config
from embedlib.errors import ConfigError
from embedlib.models.compiled.fidelity_report import Gate

if TYPE_CHECKING:
    from embedlib.matching.match import Match
    from embedlib.matching.server import Server
    from embedlib.matching.setting import Prompt
    from embedlib.matching.theirs import Theirs

PRECISIONS: Final = ("float32", "bf16")
"""What `--against` compares with other than vectors made elsewhere."""
NUM_WORST: Final = 3
TITLE: Final = "Against a file or a URL"


class Against(FilePath):
    """A precision, the URL of a server, or a file with vectors."""

    def __init__(self) -> None:
        """Create the type."""
        super().__init__(dir_okay=False)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return the value; fails for a file that does not exist."""
        if value in PRECISIONS or is_url(value):
            return str(value)
        path = str(super().convert(value, param, ctx))
        if not os.path.isfile(path):
            self.fail(f"{value!r} is neither float32, bf16 nor a URL, and no such file", param, ctx)
        return path


@dataclass(frozen=True, kw_only=True)
class TheirsOptions:
    """The options for vectors made elsewhere; each is None or False where it is not given."""

    query: bool
    document: bool
    prompt_name: str | None
    prompt: str | None
    normalize: bool
    truncate_dim: int | None
    served_model: str | None
    field: str | None

    @property
    def given(self) -> list[str]:
        """The flags of those that are given."""
        return [
            f"--{name.replace('_', '-')}"
            for name, value in vars(self).items()
            if value not in (None, False)
        ]

    def chosen_prompt(self) -> Prompt:
        """Return what `encode` is told of the prompt.

        Raises:
            click.UsageError: two options choose it.
        """
        from embedlib.matching.setting import Prompt

        role = "query" if self.query else "document" if self.document else None
        choices = {"role": role, "prompt_name": self.prompt_name, "prompt": self.prompt}
        wanted = {name: value for name, value in choices.items() if value is not None}
        if len(wanted) > 1 or (self.query and self.document):
            raise click.UsageError("give one of --query, --document, --prompt-name and --prompt")
        said = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
        return Prompt(arguments=wanted, said=said or "the model's default prompt")


_option = partial(click.option, cls=TitledOption, title=TITLE)

theirs_options = decorated(
    _option("--query", is_flag=True, help="Use the model's prompt for queries."),
    _option("--document", is_flag=True, help="Use the model's prompt for documents."),
    _option("--prompt-name", help="Use the model's prompt with this name."),
    _option("--prompt", type=TEXT, help="Put this prompt in front of every text."),
    _option("--normalize", is_flag=True, help="Scale every vector to unit length."),
    _option(
        "--truncate-dim",
        type=click.IntRange(1),
        help="Keep only this many first dimensions, and ask a server for as many.",
    ),
    _option("--served-model", help="The model's name at the server.  [default: MODEL]"),
    _option("--field", help="Field of the file that holds the text.  [default: text]"),
)
"""Decorates a command with the options of `TheirsOptions`."""


def is_url(value: str) -> bool:
    """Return whether a value of `--against` is an address."""
    return value.startswith(("http://", "https://"))


def compare_theirs(
    model: str,
    against: str,
    texts_path: Path | None,
    options: TheirsOptions,
    config: Config,
    gate: Gate,
) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Compare, and return the result as rows of a table and as JSON; "same" is its verdict."""
    from embedlib.embedder import Embedder
    from embedlib.matching.match import match
    from embedlib.matching.setting import Prompt
    from embedlib.session.late_interaction import check_one_vector

    prompt = options.chosen_prompt()
    server = _server(model, against, options, config) if is_url(against) else None
    theirs = None if server else _read_file(against, texts_path, options)
    # What the model itself gives: what a lower precision costs is asked otherwise.
    precision = "float32" if config.precision == "auto" else config.precision
    config = replace(
        config, precision=precision, on_truncate="ignore", truncate_dim=options.truncate_dim
    )
    with (
        loading(model, config.cache_folder) as progress,
        Embedder(model, config=config) as embedder,
    ):
        check_one_vector(embedder.spec, "embedlib verify --against")
        if embedder.spec.is_sparse:
            raise ConfigError("embedlib verify --against compares dense vectors, this is sparse")
        if server is not None:
            theirs = _ask(server, texts_path, embedder.spec.max_seq_tokens)
        assert theirs is not None, "read from the file otherwise"
        progress.pause()
        if not prompt.arguments and embedder.default_prompt_name is None:
            prompt = Prompt.literal("")
        result = match(embedder, theirs, prompt, normalizes=options.normalize, gate=gate)
        computed = f"{embedder.precision}, {prompt.said}"
    place = server.place if server else against
    return _rows(result, theirs, place, computed), _as_json(result, theirs)


def _read_file(against: str, texts_path: Path | None, options: TheirsOptions) -> Theirs:
    from embedlib.cli.records import is_jsonl
    from embedlib.matching.theirs import read_theirs

    if options.served_model:
        raise click.UsageError("--served-model is for a URL")
    if texts_path is not None and not is_jsonl(str(texts_path)):
        refuse("is for JSON Lines and Parquet; leave it out", "field")
    return read_theirs(Path(against), texts_path, options.field or "text")


def _server(model: str, against: str, options: TheirsOptions, config: Config) -> Server:
    """Return the server to ask.

    Raises:
        ConfigError: offline mode is on.
    """
    from huggingface_hub import constants

    from embedlib.matching.server import KEY_VARIABLE, Server

    if options.field:
        raise click.UsageError("--field is for a file")
    server = Server(
        url=against,
        model=options.served_model or model,
        key=os.environ.get(KEY_VARIABLE) or None,
        dim=options.truncate_dim,
    )
    if config.local_files_only or constants.HF_HUB_OFFLINE:
        raise ConfigError(
            f"--against {server.place} is not asked, since offline mode is on (local_files_only or "
            "HF_HUB_OFFLINE); give a file with vectors"
        )
    return server


def _ask(server: Server, texts_path: Path | None, max_seq_tokens: int) -> Theirs:
    from embedlib.fidelity import built_in_texts, read_texts
    from embedlib.matching.theirs import MAX_TEXTS, Theirs

    if texts_path is None:
        texts = built_in_texts(max_seq_tokens).thinned(4)  # a hosted model costs money
    else:
        texts = read_texts(texts_path)
    chosen = texts.all[:MAX_TEXTS]
    return Theirs(chosen, server.embed(chosen))


def _rows(result: Match, theirs: Theirs, place: str, computed: str) -> list[tuple[str, str]]:
    found = result.cosines
    verdict = "the same" if result.is_same else "DIFFERENT"
    if result.differences:
        verdict += f": the same with {', '.join(result.differences)}"
    elif result.hint:
        verdict += f": {result.hint}"
    worst = "\n".join(f"{cosine:.5f}  {text!r}" for text, cosine in _worst(result, theirs))
    return [
        ("compared", f"{len(theirs.texts)} texts, {theirs.vectors.shape[1]} numbers, of {place}"),
        ("computed", computed),
        ("mean cosine", f"{found.mean():.5f}"),
        ("min cosine", f"{found.min():.5f}"),
        ("worst texts", worst),
        ("result", verdict),
    ]


def _as_json(result: Match, theirs: Theirs) -> dict[str, Any]:
    return {
        "same": result.is_same,
        "texts": len(theirs.texts),
        "dim": theirs.vectors.shape[1],
        "mean": float(result.cosines.mean()),
        "min": float(result.cosines.min()),
        "worst": [{"text": text, "cosine": cosine} for text, cosine in _worst(result, theirs)],
        "differences": list(result.differences),
        "hint": result.hint,
    }


def _worst(result: Match, theirs: Theirs) -> list[tuple[str, float]]:
    rows = result.cosines.argsort(kind="stable")[:NUM_WORST]
    return [(one_line(theirs.texts[row]), float(result.cosines[row])) for row in rows]
