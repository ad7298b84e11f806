"""`embedlib drop-old`: remove the rows that a destination keeps since its model was changed."""

from __future__ import annotations

import click

from embedlib.errors import count_of


@click.command()
@click.argument("url")
def drop_old(url: str) -> None:
    """Remove the rows of an earlier model from URL.

    `embedlib index --replace` keeps them for searches that were opened before it ended. Those that
    still use them fail afterwards: open them again first, and start servers again.

    \b
    Example:
      embedlib drop-old 'postgresql://localhost/shop?table=tickets'
    """
    from embedlib.indexing.replacing import drop_old
    from embedlib.indexing.sinks.urls import without_password

    num_rows = drop_old(url)
    name = without_password(url)
    if num_rows:
        click.echo(f"Removed {count_of(num_rows, 'old row')} from {name}")
    else:
        click.echo(f"{name} keeps no old rows")
