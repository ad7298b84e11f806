"""The `embedlib` command, also as `python -m embedlib`."""

import os
import sys
from contextlib import suppress


def run() -> None:
    """Run the command; Ctrl-C ends it quietly from its first import on."""
    try:
        _open_standard_descriptors()
        from embedlib.cli import main, report_unraisable

        # Also while the interpreter ends: Ctrl-C may be pressed again then.
        sys.unraisablehook = report_unraisable
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
    try:
        main()
    except KeyboardInterrupt:  # pressed again while the command said that it was interrupted
        os._exit(130)


def _open_standard_descriptors() -> None:
    """Let 0, 1 and 2 lead nowhere where the caller has closed them.

    A socket would take the number: native libraries would print into it, and libuv aborts when it
    closes one.
    """
    with suppress(OSError):  # a small root folder may not have the device
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest one that is free
            os.set_inheritable(descriptor, True)
        os.close(descriptor)


if __name__ == "__main__":
    run()
