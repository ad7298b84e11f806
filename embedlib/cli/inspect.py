"""`embedlib inspect`: show a model as embedlib reads it from its files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from embedlib.cli.json_output import print_json
from embedlib.cli.options import (
    ENGINE_OPTIONS,
    MODEL_OPTIONS,
    GroupedCommand,
    ModelArgument,
    config_options,
)
from embedlib.cli.progress import loading
from embedlib.cli.table import print_table
from embedlib.config import Config
from embedlib.errors import count_of

if TYPE_CHECKING:
    from embedlib.models.compiled.engine_folder import Manifest
    from embedlib.models.opening import OpenedModel
    from embedlib.models.prompts import Prompts, Role
    from embedlib.models.reading.files import ModelFiles
    from embedlib.models.spec import (
        Encoder,
        Head,
        LateInteraction,
        ModelSpec,
        Module,
        ScoreActivation,
    )

_MAX_SHOWN_PROMPT = 100
_ORIGINS = {
    "caller": "from the options",
    "folder": "from its folder",
    "known": "known to embedlib for this model (sentence-transformers adds none)",
}


@click.command(cls=GroupedCommand)
@click.argument("model", cls=ModelArgument, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.option("--fingerprint", is_flag=True, help="Also load the model and show its fingerprint.")
@config_options(
    *("template", "truncate_dim", "max_active_dims", "max_seq_tokens"),
    *ENGINE_OPTIONS,
    *MODEL_OPTIONS,
)
def inspect(model: str, as_json: bool, fingerprint: bool, **options: Any) -> None:
    """Show what the files of MODEL say about it.

    Lists layers, pooling, prompts, and the length limit with the file it comes from; for a reranker
    or classifier the labels, and how a pair is written. MODEL is a folder, a pack, a hub
    name, or package:NAME. Without --fingerprint, no weights are read, nor downloaded for a hub
    model that is not in the cache.

    The fingerprint is that of an index loaded with the same options and settings; --truncate-dim,
    --max-active-dims, --max-seq-tokens and those of the engine are for it alone.

    \b
    Examples:
      embedlib inspect BAAI/bge-small-en-v1.5
      embedlib inspect BAAI/bge-small-en-v1.5 --fingerprint --truncate-dim 256
    """
    config = Config(**options)

    from embedlib.models.compiled.engine_folder import spec_facts
    from embedlib.models.prompts import Prompts
    from embedlib.models.reading.pack_file import is_pack, open_pack

    with loading(model, config.cache_folder):
        opened, files = _read(model, config, with_weights=fingerprint)
    spec, table = files.spec, None if files.queries is None else files.queries.spec.encoder
    if spec.head is not None and fingerprint:
        raise click.UsageError(
            "--fingerprint: fingerprints are stored with vectors, but this model makes scores"
        )
    prompts = Prompts(spec, config, opened.known)
    digest = _fingerprint(model, config) if fingerprint else None
    pack = open_pack(opened.folder) if is_pack(opened.folder) else None
    if as_json:
        content = {
            "model": opened.name,
            "folder": str(opened.folder) if opened.has_weights else None,
            "revision": opened.revision,
            **({"fingerprint": digest} if digest else {}),
            **({"pack_digest": pack.index_digest} if pack else {}),
            **({"compiled": _compiled_facts(opened.manifest)} if opened.manifest else {}),
            **spec_facts(spec),
            **({"query_table_tokens": table.vocab_size} if table else {}),
            **_prompts_as_json(prompts),
        }
        print_json(content, indent=2)
        return
    print_table(
        [
            ("model", opened.name),
            ("folder", str(opened.folder) if opened.has_weights else "not downloaded"),
            *([("revision", opened.revision)] if opened.revision else []),
            *([("packed by", f"embedlib {pack.embedlib_version}")] if pack else []),
            *([("digest", pack.index_digest)] if pack else []),
            *([("compiled to", _describe_compiled(opened.manifest))] if opened.manifest else []),
            *_encoder_rows(spec.encoder),
            ("length limit", f"{spec.max_seq_tokens} tokens, from {spec.max_seq_tokens_source}"),
            ("modules", "\n".join(map(_describe, spec.modules)) or "none"),
            *(
                [("of queries", f"weights from a table of {table.vocab_size} tokens")]
                if table
                else []
            ),
            *(_embedding_rows(spec, prompts) if spec.head is None else _head_rows(spec.head)),
            *([("fingerprint", digest)] if digest else []),
        ]
    )


def _read(model: str, config: Config, *, with_weights: bool) -> tuple[OpenedModel, ModelFiles]:
    from embedlib.models.opening import OpenedModel

    if with_weights:
        opened = OpenedModel.find(model, config)
        return opened, opened.read_files(with_head=opened.has_head)
    with OpenedModel.described(model, config) as opened:
        return opened, opened.read_files(with_head=opened.has_head)


def _fingerprint(model: str, config: Config) -> str:
    from embedlib.embedder import Embedder

    with Embedder(model, config=config) as embedder:
        return embedder.fingerprint


def _compiled_facts(manifest: Manifest) -> dict[str, Any]:
    return {"precision": manifest.precision, "excluded": list(manifest.excluded)}


def _describe_compiled(manifest: Manifest) -> str:
    kept = f", without {', '.join(manifest.excluded)}" if manifest.excluded else ""
    return f"{manifest.precision}{kept}"


def _encoder_rows(encoder: Encoder) -> list[tuple[str, str]]:
    if encoder.is_table:
        size = f"{encoder.vocab_size} tokens, {count_of(encoder.hidden_size, 'number')} each"
        return [("family", f"{encoder.family}, a table without a transformer"), ("table", size)]
    heads = f"{encoder.num_heads} heads"
    if encoder.num_kv_heads != encoder.num_heads:
        heads += f" on {encoder.num_kv_heads} key/value heads"
    positions = "none; scores depend on the distance"
    if encoder.has_position_table:
        positions = f"learned, {encoder.num_positions}"
    elif encoder.rope is not None:
        positions = f"rotary ({encoder.rope.kind}, theta {encoder.rope.theta:g})"
    windows = sorted({window for window in encoder.windows if window is not None})
    seen = "only what is before it" if encoder.is_causal else "the whole text"
    if windows:
        num_windowed = sum(window is not None for window in encoder.windows)
        seen += f", within {', '.join(map(str, windows))} tokens in {num_windowed} layers"
    return [
        ("family", encoder.family),
        ("layers", f"{encoder.num_layers}, hidden size {encoder.hidden_size}, {heads}"),
        ("feed-forward", f"{encoder.intermediate_size} wide, {_feed_forward(encoder)}"),
        ("positions", positions),
        ("a token sees", seen),
        ("vocabulary", f"{encoder.vocab_size} tokens"),
    ]


def _feed_forward(encoder: Encoder) -> str:
    told = f"{encoder.activation}, gated" if encoder.is_gated else encoder.activation
    if encoder.experts is not None:
        experts, layers = encoder.experts, len(encoder.experts.layers)
        told += f"; {experts.num_chosen} of {experts.count} experts in {layers} layers"
    return told


def _describe(module: Module) -> str:
    from embedlib.models.spec import Dense, LayerNorm, Pooling, RoundTanh, SpladePooling

    if isinstance(module, Pooling):
        note = "" if module.include_prompt else ", without the prompt's tokens"
        return f"pooling: {' + '.join(module.modes)}{note}"
    if isinstance(module, Dense):
        return f"dense: {module.in_features} to {module.out_features}, {module.activation}"
    if isinstance(module, LayerNorm):
        return f"layer norm: {module.dim}"
    if isinstance(module, RoundTanh):
        return "round(127 tanh(x)): whole numbers"
    if isinstance(module, SpladePooling):
        logs = " of the logarithm" if module.num_logs == 2 else ""
        return f"splade: {module.strategy} of the logits' logarithms{logs}"
    return "normalize: to unit length"


def _embedding_rows(spec: ModelSpec, prompts: Prompts) -> list[tuple[str, str]]:
    late = spec.late_interaction
    return [
        ("embedding", _embedding(spec)),
        ("similarity", spec.similarity)
        if late is None
        else ("for each token", _describe_late(late)),
        ("a query gets", _describe_role(prompts, "query")),
        ("a document", _describe_role(prompts, "document")),
        *((("every text ends in", _quote(spec.suffix)),) if spec.suffix else ()),
        ("tasks", _describe_tasks(prompts)),
        ("prompts", _list_prompts(prompts)),
    ]


def _head_rows(head: Head) -> list[tuple[str, str]]:
    """Return the labels, the scores of Reranker and Classifier, and how a pair is written."""
    return [
        ("labels", ", ".join(head.labels)),
        ("Reranker", _describe_scores(head.reranker_activation)),
        ("Classifier", "none" if head.template else _describe_scores(head.activation)),
        ("a pair", _describe_pair(head)),
    ]


def _describe_pair(head: Head) -> str:
    template = head.template
    if template is not None:
        text = template.prefix + template.body + template.tail + template.suffix
        lines = [json.dumps(text, ensure_ascii=False)]
        if template.takes_instruction:
            lines.append(f"{{instruction}} is {_quote(template.instruction)} by default")
        return "\n".join(lines)
    if head.has_chat_template:
        return "by a chat template, which embedlib does not run; give --template"
    return "as the tokenizer writes it"


def _describe_scores(activation: ScoreActivation) -> str:
    return "raw scores" if activation == "identity" else f"{activation} of the raw scores"


def _embedding(spec: ModelSpec) -> str:
    length = "unit length" if spec.is_normalized else "not normalized"
    limit = "" if spec.truncate_dim is None else f", truncated to {spec.truncate_dim}"
    return f"{spec.embedding_dim} numbers{limit}, {length}"


def _describe_late(late: LateInteraction) -> str:
    """Describe what is done to queries and documents of a model with a vector per token."""
    lines = [f"queries of {late.query_tokens} tokens, documents of {late.document_tokens}"]
    expansion = late.expansion
    if expansion is not None:
        seen = "seen" if expansion.is_attended else "not seen"
        lines.append(
            f"queries filled up to {expansion.min_tokens} tokens with {expansion.token}, which the "
            f"others have {seen}"
        )
    if late.skipped_words:
        lines.append(f"no vector for {' '.join(late.skipped_words)}")
    return "\n".join([*lines, f"compared by {late.similarity}"])


def _describe_role(prompts: Prompts, role: Role) -> str:
    """Describe the prompt of a role and where it comes from."""
    name = prompts.role_name(role)
    if name is None:
        return "nothing"
    text = prompts.by_name[name]
    lines = [f"{_quote(text)}, {_ORIGINS[prompts.origin(name)]}" if text else "nothing"]
    if "{task}" in text and prompts.default_task is not None:
        lines.append(f"{{task}} is {_quote(prompts.default_task)} by default")
    return "\n".join(lines)


def _describe_tasks(prompts: Prompts) -> str:
    lines = list(prompts.tasks)
    if prompts.takes_task_in_words:
        lines.append("for queries, any task in your own words")
    if prompts.takes_examples:
        lines.append("few-shot examples are possible")
    return "\n".join(lines) or "none"


def _list_prompts(prompts: Prompts) -> str:
    lines = [
        f"{name}: {_quote(text)}" + (" (default)" * (name == prompts.default_name))
        for name, text in prompts.by_name.items()
    ]
    return "\n".join(lines) or "none"


def _quote(text: str) -> str:
    shown = json.dumps(text, ensure_ascii=False)
    return shown if len(shown) <= _MAX_SHOWN_PROMPT else shown[:_MAX_SHOWN_PROMPT] + "…"


def _prompts_as_json(prompts: Prompts) -> dict[str, Any]:
    return {
        **prompts.settings(),
        "prompt_origins": {name: prompts.origin(name) for name in prompts.by_name},
        "query_prompt_name": prompts.role_name("query"),
        "document_prompt_name": prompts.role_name("document"),
        "tasks": list(prompts.tasks),
        "takes_task_in_words": prompts.takes_task_in_words,
        "takes_examples": prompts.takes_examples,
    }
