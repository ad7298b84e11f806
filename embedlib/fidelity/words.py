"""The words, sentences with gaps, and odd texts from which the built-in texts are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Topic:
    """Words of one subject, by what they can fill: noun, verb or adjective gaps."""

    nouns: tuple[str, ...]
    verbs: tuple[str, ...]
    kinds: tuple[str, ...]


def _topic(nouns: str, verbs: str, kinds: str) -> Topic:
    return Topic(tuple(nouns.split()), tuple(verbs.split()), tuple(kinds.split()))


TOPICS: Final = (
    _topic(
        "bread dough oven flour soup onion garlic butter pepper sauce recipe kitchen lentils salt",
        "bakes boils burns smells softens rises cools thickens",
        "fresh bitter crisp tender salty Italian raw warm",
    ),
    _topic(
        "planet telescope orbit comet galaxy moon spectrum mission crater star antenna probe dust",
        "rotates glows approaches collapses drifts transmits vanishes cools",
        "distant icy bright lunar magnetic dense early infrared",
    ),
    _topic(
        "contract court tenant lawyer appeal statute verdict licence witness clause damages notary",
        "expires applies lapses binds fails prevails changes",
        "civil void written criminal federal liable joint regional",
    ),
    _topic(
        "patient fever vaccine nurse kidney dose trial symptom infection artery therapy insulin",
        "improves spreads recovers worsens responds subsides returns",
        "chronic acute clinical sterile rare elderly mild genetic",
    ),
    _topic(
        "server thread cache socket compiler pointer database query kernel packet token loop index",
        "crashes restarts returns overflows waits compiles hangs blocks",
        "idle recursive encrypted stale parallel binary empty local",
    ),
    _topic(
        "bond dividend loan inflation broker tariff budget invoice pension audit currency reserve",
        "falls matures doubles recovers depreciates accrues slows",
        "fiscal quarterly risky annual unpaid public overdue foreign",
    ),
    _topic(
        "ferry border hostel passport luggage harbour train ticket museum bridge valley market",
        "departs closes opens arrives stops reopens crowds",
        "narrow remote crowded coastal scenic delayed medieval cheap",
    ),
    _topic(
        "rose soil compost beetle hedge bulb seedling frost pond orchard pruning root fern bee",
        "blooms wilts germinates spreads dries grows flowers",
        "shady perennial dry wild fertile evergreen late muddy",
    ),
    _topic(
        "goalkeeper coach season stadium referee relay injury league sprint medal fan penalty",
        "wins trains collapses scores retires qualifies limps",
        "national unbeaten young exhausted junior fast narrow final",
    ),
    _topic(
        "violin choir novel poet gallery sculpture stage opera rhythm painter film melody critic",
        "fades begins moves repeats astonishes travels ends",
        "baroque abstract quiet lyrical modern famous lost comic",
    ),
)

SENTENCES: Final = (
    "The {kind} {noun} {verb} before the {noun} {verb}.",
    "When a {noun} {verb}, every {kind} {noun} nearby {verb} too.",
    "Most people think of the {noun} first, but the {noun} matters more.",
    "In {number} cases out of {number} the {noun} {verb} without any warning.",
    "According to the report, the {kind} {noun} {verb} because nobody checked the {noun}.",
    "There is no {noun} without a {kind} {noun}.",
    "She looked at the {noun} for {number} minutes and wrote down what the {noun} does.",
    "If your {noun} {verb}, replace the {noun}, clean the {noun} and try again.",
    "Neither the {kind} {noun} nor the {noun} has changed since {number} .",
    "A good {noun} costs about {number} euros; a {kind} one costs twice as much.",
    "Why the {noun} {verb} is still disputed (see the chapter on {noun} and {noun} ).",
    "It was not the {noun} that failed: the {kind} {noun} had never been tested.",
    "Compared with last year, the {noun} {verb} later and the {noun} {verb} sooner.",
)

QUESTIONS: Final = (
    "what is a {kind} {noun}",
    "why does my {noun} stop working",
    "how to choose a {noun} for a {kind} {noun}",
    "{kind} {noun} near me",
    "difference between {noun} and {noun}",
    "how much does a {noun} cost in {number}",
    "{noun} {noun} {noun}",
    "is a {kind} {noun} dangerous?",
    "Who invented the {noun}?",
    "best {noun} when the {noun} {verb}",
    "{noun}",
)

ODD_TEXTS: Final = (
    "a",
    "42",
    "?!",
    "OK OK OK OK OK OK OK OK OK OK OK OK OK OK OK OK",
    "https://example.org/path/to/page?query=text&lang=en#section-2",
    "def mean(values):\n    return sum(values) / len(values) if values else 0.0\n",
    '{"id": 17, "name": "Ada", "tags": ["a", "b"], "active": true, "score": null}',
    "SELECT name, COUNT(*) FROM orders WHERE total > 99.5 GROUP BY name HAVING COUNT(*) > 3;",
    "<ul><li class='item'>First</li><li>Second &amp; last</li></ul>",
    "Error 0x80070005: access is denied (thread 11, line 3042)",
    "tel. +49 30 1234567, Mon-Fri 9:00-17:30, fax on request",
    "Der Zug nach Hamburg hat heute wegen einer Weichenstörung zwanzig Minuten Verspätung.",
    "Le boulanger ouvre sa boutique avant l'aube, même en plein hiver.",
    "El puente viejo cruza el río donde los niños pescan en verano.",
    "Поезд прибывает на третий путь через пять минут.",
    "今日は天気がいいので、公園まで歩きます。",
    "这家餐厅的汤很好喝,价格也不贵。",
    "السفينة تغادر الميناء عند الفجر.",
)
