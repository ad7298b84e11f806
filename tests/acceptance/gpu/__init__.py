"""The acceptance run: the CUDA engine and its peers on one GPU, checked and measured in minutes.

The models are seeded numbers in the sizes of real ones, the texts are random token ids, the same
for everybody. Each contestant has a process of its own, which can be ended when it hangs or when a
kernel fails; what was measured until then is written already.

- `options`: what is asked for. `models`: the sizes. `texts`: ids, and a tokenizer that reads them.
- In the processes, which `worker` serves: `chip` (what the GPU can do), `contestant` (the engine,
  with `seeded` weights, `traffic`, `clients` and the checks of `gate`), `reference`, `peers`,
  `starts`. `folder` writes a seeded model for those who read files.
- In the parent: `run` (the order), `session`, `blocks`, `gate_block`, `variants_block` and
  `peers_block` (what is asked), `children`, `budget`, `gpu_state`, `verdicts`, `table`.
"""
