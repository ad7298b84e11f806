"""`embedlib doctor`: show which engines this machine can run, and what the others lack."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import click

from embedlib.cli.options import MODEL_OPTIONS
from embedlib.cli.settings import setting
from embedlib.cli.table import print_table
from embedlib.config import Config, PrecisionName

if TYPE_CHECKING:
    from embedlib.engines.machine import Machine
    from embedlib.models.compiled.engine_folder import Manifest
    from embedlib.models.reading.files import ModelFiles


@click.command()
@click.argument("model", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.pass_context
def doctor(context: click.Context, model: str | None, as_json: bool) -> None:
    """Show what this machine can run, and why.

    Lists the hardware, the installed packages, the engines, and which of them `auto` picks. Please
    include the list in bug reports. With MODEL, also the memory that it needs in each precision. No
    weights are downloaded for it of a hub model that is not in the cache.

    \b
    Examples:
      embedlib doctor --json
      embedlib doctor BAAI/bge-m3
    """
    from embedlib.engines.machine import Machine
    from embedlib.engines.registry import available_engines, without_unusable
    from embedlib.engines.select import choose_engine
    from embedlib.errors import ConfigError, EngineUnavailableError
    from embedlib.measuring.machine_facts import describe_machine, describe_packages

    machine = context.find_object(Machine) or Machine()  # a test hands one in
    facts = describe_machine(machine)
    packages = describe_packages(machine)
    machine = without_unusable(machine)
    engines = available_engines(machine=machine)
    try:
        chosen = choose_engine(Config(), machine)
        choice = f"{chosen.name}: {chosen.reason}"
    except EngineUnavailableError as error:
        choice = f"none: {error}"
    config = Config(**_folders(context))
    try:
        cache = str(config.engine_cache_path)
    except ConfigError as error:
        cache = f"none: {error}"
    memory = {} if model is None else _memory(model, config, machine)
    if as_json:
        content = {
            "machine": facts,
            "packages": packages,
            "engines": [
                {
                    "name": engine.name,
                    "is_available": engine.is_available,
                    "reason": engine.reason,
                    "version": engine.version,
                }
                for engine in engines
            ],
            "auto": choice,
            "cache_folder": cache,
            "memory": memory,
        }
        click.echo(json.dumps(content, indent=2))
        return
    print_table(facts.items())
    click.echo()
    print_table((name, version or "not installed") for name, version in packages.items())
    click.echo()
    print_table(
        [
            *((e.name, f"{'yes' if e.is_available else 'no'}: {e.reason}") for e in engines),
            ("auto picks", choice),
            ("cache folder", cache),
        ]
    )
    if memory:
        click.echo()
        print_table(memory.items())


def _folders(context: click.Context) -> dict[str, Any]:
    """Return what is set of the places of models; what is set of engines is not asked here."""
    found = {name: setting(context, name) for name in (*MODEL_OPTIONS, "engine_cache_dir")}
    return {name: held.value for name, held in found.items() if held is not None}


def _memory(model: str, config: Config, machine: Machine) -> dict[str, str]:
    """Return the memory that a model needs, in one line for each engine and precision."""
    from embedlib.models.opening import OpenedModel

    with OpenedModel.described(model, config) as opened:
        files = opened.read_files(with_head=opened.has_head)
        return _memory_of(files, opened.manifest, config, machine)


def _memory_of(
    files: ModelFiles, manifest: Manifest | None, config: Config, machine: Machine
) -> dict[str, str]:
    from embedlib.engines.candidates import is_model
    from embedlib.engines.kind import ChosenPrecision
    from embedlib.engines.precision import REFERENCE
    from embedlib.engines.registry import OWN_KINDS, find_devices
    from embedlib.engines.select import plan_for
    from embedlib.engines.static.kind import NAME as STATIC
    from embedlib.system.memory import gib

    encoder = files.spec.encoder
    if encoder.is_table:
        table = gib(4 * encoder.vocab_size * encoder.hidden_size)
        return {f"{STATIC} {REFERENCE}": f"yes, a table of {table}, which is looked up"}
    given: str | None = None if manifest is None or is_model(manifest) else manifest.precision
    if files.spec.is_sparse or files.spec.late_interaction is not None:
        given = REFERENCE
    lines = {}
    for kind in OWN_KINDS:
        if kind.describe_memory is None or not find_devices(kind, config, machine).is_available:
            continue
        for name in kind.precisions:
            if given not in (None, name):
                continue
            asked = replace(config, precision=cast("PrecisionName", name))
            choice = find_devices(kind, asked, machine)
            if not choice.is_available:
                lines[f"{kind.name} {name}"] = f"no: {choice.reason}"
                continue
            plan = plan_for(kind, choice, ChosenPrecision(name=name))
            lines[f"{kind.name} {name}"] = kind.describe_memory(plan, files, config)
    return lines
