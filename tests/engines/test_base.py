from __future__ import annotations

import numpy as np

from embedlib.engines.base import Batch, Lane


def test_a_batch_tells_its_sequences() -> None:
    batch = Batch(
        lane=Lane.BULK,
        token_ids=np.array([1, 2, 3, 4, 5, 6], np.int32),
        cu_seqlens=np.array([0, 1, 4, 6], np.int32),
        num_prompt_tokens=np.zeros(3, np.int32),
        num_type0_tokens=np.array([1, 3, 2], np.int32),
    )
    assert batch.num_seqs == 3
    assert batch.seq_lens.tolist() == [1, 3, 2]
    assert batch.seq_lens.dtype == np.int32
