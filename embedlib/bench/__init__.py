"""`embedlib bench`: embedlib and its peers side by side, on the same texts and the same cores.

`run.py` and `rerank.py` are the order of events, `race.py` what they share: each contestant lives
in a child process (`worker.py`), so that memory, thread pools and start-up are its own.
`result.py` is what comes out, and `table.py` renders it. `write.py` is `embedlib bench-write`.
"""
