"""Write what pytest makes of the tests' asserts, once and on all cores.

Each worker would do it again, since all start at the same time: 20 s of processor time for each, on
a checkout that has not run yet. What is here already is left alone, and workers read it as if they
had written it.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from _pytest.assertion import rewrite

TESTS = Path(__file__).parent


def write(path: Path) -> None:
    """Write the compiled module that pytest would import, unless it is there."""
    cache = rewrite.get_cache_dir(path)
    target = cache / (path.stem + rewrite.PYC_TAIL)
    if rewrite._read_pyc(path, target) is not None:
        return
    stat, code = rewrite._rewrite_test(path, None)  # type: ignore[arg-type]
    cache.mkdir(exist_ok=True)
    with target.open("wb") as file:
        rewrite._write_pyc_fp(file, stat, code)


if __name__ == "__main__":
    paths = [*TESTS.rglob("test_*.py"), *TESTS.rglob("conftest.py")]
    with ProcessPoolExecutor() as pool:
        list(pool.map(write, paths, chunksize=8))
