"""Compiled models: a model folder in another precision, on disk.

From the bytes up: `tensor_blocks` reads and writes safetensors a few rows at a time; `fp8_file` and
`int8_file` make files with it, of the numbers that `engines.fp8` and `engines.int8` give;
`checkpoint` makes a whole one, which other programs open as well; `jobs` writes several tensors at
a time. `engine_folder` says what an engine directory holds and checks it, `new_folder` lets it
appear at once or not at all, `compile` does all of it. `cache` finds engine directories again, with
what `fidelity_report` says of them.
"""
