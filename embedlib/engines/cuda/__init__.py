"""The CUDA engine: our own FP8 on torch and Triton, without TensorRT-LLM.

**State.** It has run on an H100 and an H200 (docs/measurements/gpu.md). Its tests run without
a GPU, too: every kernel under Triton's interpreter, every model on torch's CPU with FP8 emulated.
docs/cuda.md says which command checks and measures it on a GPU.

**What a GPU wants.** A transformer's time is in its linear layers. On a batch of documents they
are bound by the matrix units, which compute twice as much per second in FP8 as in bfloat16. On one
short query they are bound by memory, which reads twice as many FP8 weights as bfloat16 ones. So
FP8 helps both, and the rest of the engine is about not spending the gain: nothing is padded,
nothing is written to memory that could be kept in registers, nothing is launched one by one that
could be launched as one, and no batch waits for work that could wait for it.

**FP8 here.** e4m3 has 3 bits of mantissa and ends at 448. A product of two matrices in it needs
two scales: one for each row of activations, found as the kernel before writes the row, and one for
each row of weights, found once. Both divide the row's largest number to 448, so nothing is ever
clipped and a token with huge activations, of which trained models have some, takes no precision
from the others. Rounding is relative: some 2.6 % of a row's size for either side of a product,
whatever the scale. That is why a scale per tensor would be as good on most rows and bad on some,
why finer scales would gain nothing, and why a layer whose product hurts a model is left in
bfloat16 by name rather than scaled otherwise. So are, where wanted, the few rows that a vector is
made of, in every layer (`pooled_rows`). Residual, attention, norms and everything behind
pooling are never FP8.

**How to read it**, in the order of a batch:

- `plan`, `lowering`: a ModelSpec as launches on packed tokens, and what the last layer need not
  compute.
- `inputs`: a batch as one int32 array, and the tile table that lets one recording serve every mix
  of lengths.
- `device_weights`, `engine_directory`: fused matrices; FP8 from the files' pages or rounded at
  load.
- `reference`: the arithmetic of every step in plain torch, with its one rounding.
- `kernels`: the same on the GPU: `rows` (embedding, residual and norm, activation, each with the
  quantization of what it writes), `rotation`, `attention`, `pooling`, `few_rows` for the products
  of queries, and cuBLAS for all others.
- `buffers`, `executor`: memory taken once; a plan's steps on it.
- `attention`: where FlashAttention 3 computes attention in place of our kernel.
- `short_batches`: a CUDA graph per size for queries. `groups`, `turns`: bulk in groups of bounded
  work, so that a query waits for milliseconds. `device`: streams, copies, events.
- `loaded_model`: all of these, made of one model. `launcher`: launches a batch or a group of one.
  `engine`: the threads that take batches through it, `jobs`: what goes through them.
- `results`: vectors on their way to the host. `prefixes`, `prefix_keys`: a beginning that many
  sequences share is computed once.

**What it does not do.** Attention in FP8, weights alone in FP8, several GPUs for one model. Traits
that the plan cannot express are refused by name with `EngineUnsupportedError`.
"""
