"""Simulate loads of many machines, and draw the picture of scale.md.

No such cluster was there to measure, so machines, failures and a database are played, from a seed,
with rates that were measured on one machine. Run it from the repository's root after a change of a
number, and commit picture and page:

    python docs/simulate_scale.py

tests/test_scale.py fails if the page is out of date.
"""

from __future__ import annotations

import heapq
import random
import re
from dataclasses import dataclass, replace
from math import log10
from pathlib import Path

PAGE = Path(__file__).with_name("scale.md")
PICTURE = Path(__file__).with_name("images") / "scale.svg"

SHARD_ROWS = 512
"""Source: `embedlib_ray.shards.MAX_ROWS`."""
CALLS = 2
"""Shards in a worker. Source: `embedlib_ray.worker.CALLS`."""
MACHINES = (1, 2, 4, 8, 16, 32, 64, 100, 128)
HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One cluster. Rates are rows a second; docs/scale.md says where they were measured."""

    num_machines: int = 1
    embed_rate: float = 690.0
    """Of a machine of 16 cores: MiniLM in float32, 100 tokens a text."""
    read_rate: float = 6_000.0
    """Of the driver, which reads, chunks and cuts."""
    write_rate: float = 28_000.0
    """Of the destination."""
    hours_between_failures: float = 6.0
    """Of a machine: a spot instance."""
    restart_seconds: float = 120.0
    """Until another machine has loaded the model."""
    seconds: float = 600.0
    """That are simulated."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a simulated load did."""

    rows_per_second: float
    share_again: float
    """Rows that were embedded and lost, of those stored."""
    num_failures: int
    limit: str
    """What was busy all the time: workers, driver or database."""


def simulate(scenario: Scenario) -> Outcome:
    """Play a load: a driver gives shards out, workers embed and write, machines fail."""
    dice = random.Random(scenario.seed)
    end = scenario.seconds
    read_s, write_s = SHARD_ROWS / scenario.read_rate, SHARD_ROWS / scenario.write_rate
    embed_s = SHARD_ROWS / scenario.embed_rate
    mean_life = scenario.hours_between_failures * HOUR
    dies = [dice.expovariate(1 / mean_life) for _ in range(scenario.num_machines)]
    # A machine embeds one shard after the other; a second one is looked up or written meanwhile.
    free = [(0.0, machine) for machine in range(scenario.num_machines)]
    heapq.heapify(free)
    pending: list[list[float]] = [[] for _ in range(scenario.num_machines)]
    read_at = written_at = 0.0
    num_stored = num_lost = num_failures = 0
    while free[0][0] < end:
        now, machine = heapq.heappop(free)
        begun = max(now, read_at)
        # The driver reads ahead, by as much as is on its way.
        read_at = max(read_at, begun - CALLS * scenario.num_machines * read_s) + read_s
        done = begun + embed_s * dice.lognormvariate(0.0, 0.15)
        if done > dies[machine]:  # the shards in it are lost, and another worker takes them
            num_failures += 1
            num_lost += CALLS
            again = dies[machine] + scenario.restart_seconds
            dies[machine] = again + dice.expovariate(1 / mean_life)
            heapq.heappush(free, (again, machine))
            continue
        written_at = max(written_at, done) + write_s
        num_stored += written_at < end
        # A worker takes the next shard only when the one before the last is stored.
        waiting = pending[machine]
        waiting.append(written_at)
        next_at = max(done, waiting.pop(0)) if len(waiting) >= CALLS else done
        heapq.heappush(free, (next_at, machine))
    rate = num_stored * SHARD_ROWS / end
    return Outcome(
        rows_per_second=rate,
        share_again=num_lost / max(1, num_stored),
        num_failures=num_failures,
        limit=_limit(scenario, rate),
    )


def _limit(scenario: Scenario, rate: float) -> str:
    shares = {
        "workers": rate / (scenario.embed_rate * scenario.num_machines),
        "driver": rate / scenario.read_rate,
        "database": rate / scenario.write_rate,
    }
    return max(shares, key=lambda name: shares[name])


CURVES = {
    "one Postgres": Scenario(),
    "eight drivers, eight Qdrant nodes": Scenario(read_rate=8 * 6_000, write_rate=8 * 22_000),
    "a model ten times as large": Scenario(embed_rate=69.0),
}


def curve(scenario: Scenario) -> list[Outcome]:
    """Return the outcomes for growing numbers of machines."""
    return [simulate(replace(scenario, num_machines=number)) for number in MACHINES]


def table(outcomes: dict[str, list[Outcome]]) -> str:
    """Return the outcomes as a table."""
    lines = [f"| machines | {' | '.join(outcomes)} |", f"|---:|{'---|' * len(outcomes)}"]
    for index, number in enumerate(MACHINES):
        cells = [
            f"{each[index].rows_per_second:,.0f} rows/s, {each[index].limit}; "
            f"{each[index].num_failures} failed, {each[index].share_again:.2%} again"
            for each in outcomes.values()
        ]
        lines.append(f"| {number} | {' | '.join(cells)} |")
    return "\n".join(lines)


_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 400, 70, 20, 50
_COLOURS = ("#1f6feb", "#2da44e", "#bf3989")


def picture(outcomes: dict[str, list[Outcome]]) -> str:
    """Return the outcomes as an SVG with two logarithmic axes."""
    right, bottom = _WIDTH - 20, _HEIGHT - _BOTTOM
    top_rate, low_rate = 200_000, 50

    def x(number: float) -> float:
        return _LEFT + (right - _LEFT) * log10(number) / log10(MACHINES[-1])

    def y(rate: float) -> float:
        share = (log10(rate) - log10(low_rate)) / (log10(top_rate) - log10(low_rate))
        return bottom - (bottom - _TOP) * share

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for rate in (100, 1_000, 10_000, 100_000):
        parts.append(
            f'<path d="M{_LEFT} {y(rate):.1f}H{right}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 6}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate:,}</text>'
        )
    for number in MACHINES:
        if number != 128:
            parts.append(
                f'<text x="{x(number):.1f}" y="{bottom + 18}" text-anchor="middle">{number}</text>'
            )
    parts.append(
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">'
        "machines of 16 cores</text>"
        f'<text x="16" y="{bottom / 2}" transform="rotate(-90 16 {bottom / 2})" '
        'text-anchor="middle">rows a second</text>'
    )
    for colour, (name, each) in zip(_COLOURS, outcomes.items(), strict=True):
        points = " ".join(
            f"{x(number):.1f},{y(outcome.rows_per_second):.1f}"
            for number, outcome in zip(MACHINES, each, strict=True)
        )
        last = y(each[-1].rows_per_second)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{right}" y="{last - 6:.1f}" text-anchor="end" fill="{colour}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def page(text: str, outcomes: dict[str, list[Outcome]]) -> str:
    """Return the page with the table of the outcomes in its place."""
    begin, end = "<!-- simulated -->\n", "<!-- end -->"
    found = re.search(f"{begin}.*?{end}", text, re.DOTALL)
    assert found is not None, "the page has no place for the table"
    return text[: found.start()] + f"{begin}{table(outcomes)}\n{end}" + text[found.end() :]


def main() -> None:
    """Write picture and page."""
    outcomes = {name: curve(scenario) for name, scenario in CURVES.items()}
    PICTURE.write_text(picture(outcomes), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
