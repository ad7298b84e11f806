"""The acceptance run: the CUDA engine and its peers on one GPU, checked and measured in minutes.

The models are seeded numbers in the sizes of real ones, the texts are random token ids, the same
for all contestants. Each contestant has a process of its own, which can be ended when it hangs or
when a kernel fails; what was measured before is written already.

- `__main__`: the command. `options`: what to run. `models`: the sizes. `texts`: ids, and a
  tokenizer that reads them.
- In the processes, which `worker` serves: `chip` (what the GPU can do), `contestant` (the engine,
  with `seeded` weights, `traffic`, `clients` and the checks of `gate`), `reference`, `peers`,
  `starts`. `folder` writes a seeded model for contestants that read files.
- In the parent: `run` (the order), `session`, `blocks`, `gate_block`, `variants_block` and
  `peers_block` (what is measured), `children`, `budget`, `gpu_state`, `journal`, `verdicts`,
  `table`.
"""
