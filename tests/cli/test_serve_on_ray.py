"""What `embedlib serve --ray` refuses; a fleet itself is tested by .ci/ray."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from embedlib.cli import main


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--port", "0"), "--port 0 belongs to one server"),
        (("--search", "jsonl:x"), "--search belongs to one server"),
        (("--data-dir", "jobs"), "--data-dir belongs to one server"),
        (("--no-access-log",), "--no-access-log belongs to one server"),
        (("--ray-replicas", "3:1"), "it must be MIN:MAX"),
        (("--ray-replicas", "many"), "it must be MIN:MAX"),
        (("--ray-cpus", "0"), "it must be above 0"),
    ],
)
def test_what_a_fleet_cannot_do_is_refused(options: tuple[str, ...], told: str) -> None:
    done = CliRunner().invoke(main, ["serve", "model", "--ray", *options])
    assert done.exit_code == 2
    assert told in done.stderr
