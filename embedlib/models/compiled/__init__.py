"""Engine directories: a model folder compiled to another precision, on disk.

From the bytes up: `tensor_blocks` reads and writes safetensors files a few rows at a time;
`fp8_file` and `int8_file` use it to write one file, with the numbers computed by `fp8` and `int8`;
`checkpoint` writes a complete FP8 or bfloat16 checkpoint, which other programs can open as well;
`jobs` writes several tensors in parallel. `engine_folder` defines what an engine directory contains
and checks it, `new_folder` publishes a folder atomically, and `compile` puts all of this together.
`cache` finds the engine directories of a model again, with their `fidelity_report`.
"""
