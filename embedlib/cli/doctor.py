"""`embedlib doctor`: show which engines this machine can run, and what the others lack."""

from __future__ import annotations

import json

import click

from embedlib.cli.table import print_table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Show what this machine can run, and why.

    Lists the hardware, the installed packages, the engines, and which of them `auto` picks. Please
    include the list in bug reports.

    \b
    Example:
      embedlib doctor --json
    """  # noqa: D301 - click takes \b as "keep these lines"
    from embedlib.config import Config
    from embedlib.engines.machine import Machine
    from embedlib.engines.registry import available_engines
    from embedlib.engines.select import choose_engine
    from embedlib.errors import EngineUnavailableError
    from embedlib.measuring.machine_facts import describe_machine, describe_packages

    machine = context.find_object(Machine) or Machine()  # a test hands one in
    facts = describe_machine(machine)
    packages = describe_packages(machine)
    engines = available_engines(machine=machine)
    try:
        chosen = choose_engine(Config(), machine)
        choice = f"{chosen.name}: {chosen.reason}"
    except EngineUnavailableError as error:
        choice = f"none: {error}"
    cache = str(Config().engine_cache_path)
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
