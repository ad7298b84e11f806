"""Draw the plots of the docs from the stored results of `embedlib bench` and `embedlib verify`.

Run it after a change of a result, and commit the pictures:

    embedlib bench MODEL --vs ... --json docs/results/NAME.json
    python docs/make_plots.py

tests/test_docs.py fails if a picture is out of date. The pictures take the colours of the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).parent
RESULTS: Final = DOCS / "results"
IMAGES: Final = DOCS / "images"

STYLE: Final = """\
  <style>
    .fig { --ink: var(--md-default-fg-color, #1b1f24); --soft: var(--md-default-fg-color--light, #5d6672);
      --line: var(--md-default-fg-color--lighter, #d5dae0); --accent: var(--md-typeset-a-color, #0b63c5);
      --warm: #d9822b; font: 13px system-ui, sans-serif; }
    @media (prefers-color-scheme: dark) {
      .fig { --ink: var(--md-default-fg-color, #e4e7eb); --soft: var(--md-default-fg-color--light, #9aa4b1);
        --line: var(--md-default-fg-color--lighter, #343b44); --accent: var(--md-typeset-a-color, #6cb0ff); } }
    .fig text { fill: var(--ink); } .fig .s { fill: var(--soft); font-size: 11.5px; } .fig .b { font-weight: 600; }
    .fig .m { text-anchor: middle; } .fig .e { text-anchor: end; } .fig .df { fill: var(--accent); }
    .fig .pf { fill: var(--soft); opacity: 0.45; } .fig .grid { stroke: var(--line); opacity: 0.6; } .fig .curve { fill: none;
      stroke: var(--accent); stroke-width: 2; } .fig .gate { stroke: var(--warm); stroke-width: 1.5; stroke-dasharray: 4 3; }
  </style>
"""  # noqa: E501 - the lines of a style sheet

WIDTH: Final = 720
LEFT: Final = 240
BAR: Final = 20


def picture(height: float, title: str, body: str) -> str:
    """Return a picture of SVG with a title, which is what screen readers say."""
    return (
        f'<svg class="fig" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
        f'role="img">\n  <title>{title}</title>\n{STYLE}{body}</svg>\n'
    )


def bars(title: str, rows: Sequence[tuple[str, float]], unit: str, top: float) -> str:
    """Return horizontal bars from `top` on, the first of them ours."""
    room, most = WIDTH - LEFT - 130, max(value for _, value in rows)
    lines = [f'  <text class="b" x="{LEFT}" y="{top + 14:g}">{title}</text>']
    for number, (name, value) in enumerate(rows):
        y = top + 26 + number * (BAR + 6)
        length = room * value / most
        kind, weight = ("df", "b") if number == 0 else ("pf", "")
        lines += [
            f'  <text class="e {weight}" x="{LEFT - 10}" y="{y + 14:g}">{name}</text>',
            f'  <rect class="{kind}" x="{LEFT}" y="{y:g}" width="{length:.1f}" height="{BAR}" '
            'rx="3"/>',
            f'  <text class="{weight}" x="{LEFT + length + 8:.1f}" y="{y + 14:g}">'
            f"{value:,g} {unit}</text>",
        ]
    return "\n".join(lines) + "\n"


def draw_speed(result: Mapping[str, Any]) -> str:
    """Return the rates, the query and the start of all contestants of `embedlib bench --json`."""
    parts = (
        ("in bulk: longer is better", "tokens_per_s", "median", "tokens/s"),
        ("one short query, p50: shorter is better", "query", "p50_ms", "ms"),
        ("from starting Python to the first vector", "cold_start", "first_vector_s", "s"),
    )
    contestants, body, top = result["contestants"], "", 0.0
    for title, part, key, unit in parts:
        rows = [(each["name"], each[part][key]) for each in contestants]
        body += bars(title, rows, unit, top)
        top += 26 + len(rows) * (BAR + 6) + 18
    return picture(top - 8, f"Speed of {result['model']} beside peers", body)


def draw_fidelity(report: Mapping[str, Any]) -> str:
    """Return the share of texts at or below each cosine, with the gate that has to be passed."""
    cosines = report["cosines"]
    low, left, right, top, bottom = min(0.996, *cosines), 70, WIDTH - 20, 16, 226
    gates = ((0.998, "gate: 99 of 100 texts"), (0.999, "gate: mean"))

    def x(cosine: float) -> float:
        return left + (cosine - low) / (1 - low) * (right - left)

    def y(share: float) -> float:
        return bottom - share * (bottom - top)

    def lines() -> Iterator[str]:
        for share in (0, 0.25, 0.5, 0.75, 1):
            yield f'<path class="grid" d="M{left} {y(share):g}H{right}"/>'
            yield f'<text class="s e" x="{left - 8}" y="{y(share) + 4:g}">{share:.0%}</text>'
        for cosine, name in gates:
            yield f'<path class="gate" d="M{x(cosine):.1f} {top}V{bottom}"/>'
            left_of = f"{x(cosine) - 6:.1f}"
            yield f'<text class="s e" x="{left_of}" y="{top + 14}">{name}, {cosine}</text>'
        steps = (
            f"H{x(cosine):.1f}V{y(number / len(cosines)):.1f}"
            for number, cosine in enumerate(sorted(cosines), 1)
        )
        yield f'<path class="curve" d="M{left} {bottom}{"".join(steps)}"/>'
        for cosine in (low, (low + 1) / 2, 1):
            yield f'<text class="s m" x="{x(cosine):.1f}" y="{bottom + 18}">{cosine:.4f}</text>'
        told = f"cosine of the {report['precision']} vector of a text to its float32 vector"
        yield f'<text class="s m" x="{(left + right) / 2:g}" y="{bottom + 38}">{told}</text>'

    body = "".join(f"  {line}\n" for line in lines())
    return picture(bottom + 48, "Share of texts at or below each cosine", body)


def pictures() -> dict[str, str]:
    """Return every plot by the name of its file."""
    speed = json.loads((RESULTS / "minilm-epyc.json").read_text(encoding="utf-8"))
    fidelity = json.loads((RESULTS / "minilm-int8-fidelity.json").read_text(encoding="utf-8"))
    return {
        "speed-minilm.svg": draw_speed(speed),
        "fidelity-minilm.svg": draw_fidelity(fidelity),
    }


if __name__ == "__main__":
    for name, content in pictures().items():
        (IMAGES / name).write_text(content, encoding="utf-8")
