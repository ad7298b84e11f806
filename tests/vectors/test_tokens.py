from __future__ import annotations

import numpy as np
import pytest

from embedlib.errors import InputError
from embedlib.vectors.tokens import lexical_weights, pool_spans

TEXT = "one two three"
OFFSETS = [(0, 0), (0, 3), (4, 7), (8, 13), (9, 9)]
VECTORS = np.array([[100, 100], [1, 2], [3, 4], [5, 6], [100, 100]], np.float32)


def test_a_span_gets_the_mean_of_its_tokens_and_no_special_one() -> None:
    spans = [(0, 13), (0, 3), (4, 13), (2, 5), (3, 5)]
    pooled = pool_spans(VECTORS, OFFSETS, spans, TEXT)
    assert pooled.dtype == np.float32
    assert pooled.tolist() == [[3, 4], [1, 2], [4, 5], [2, 3], [3, 4]]
    assert pool_spans(VECTORS, OFFSETS, [], TEXT).shape == (0, 2)


@pytest.mark.parametrize("span", [(0, 14), (-1, 3), (3, 3), (5, 4)])
def test_a_span_must_be_inside_the_text(span: tuple[int, int]) -> None:
    with pytest.raises(InputError, match=r"chunks\[1\] = \(.*characters 0 to 13"):
        pool_spans(VECTORS, OFFSETS, [(0, 3), span], TEXT)


def test_a_span_without_tokens_is_refused() -> None:
    with pytest.raises(InputError, match=r"chunks\[0\] = \(3, 4\) has no token: ' ' is blank"):
        pool_spans(VECTORS, OFFSETS, [(3, 4)], TEXT)
    with pytest.raises(InputError, match=r"'three' is blank, or after character 7"):
        pool_spans(VECTORS[:3], OFFSETS[:3], [(8, 13)], TEXT)
    with pytest.raises(InputError, match=r"'one' is blank, or after character 0"):
        pool_spans(VECTORS[:0], [], [(0, 3)], TEXT)


def test_a_repeated_token_keeps_its_greatest_weight() -> None:
    weights = np.array([[9], [0.5], [0.75], [0], [0.25], [9]], np.float32)
    assert lexical_weights(weights, [0, 7, 7, 8, 9, 2], {0, 2}) == {7: 0.75, 9: 0.25}
