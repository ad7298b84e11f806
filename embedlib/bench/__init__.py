"""`embedlib bench`: embedlib and its peers side by side, on the same texts and the same cores.

`run.py` is the order of events; each contestant lives in a child process (`process.py`,
`worker.py`) so that memory, thread pools and start-up are its own; `result.py` is what comes out,
`table.py` how it looks.
"""
