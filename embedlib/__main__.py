"""The `embedlib` command, also as `python -m embedlib`."""

import sys


def run() -> None:
    """Run the command; Ctrl-C ends it quietly from its first import on."""
    try:
        from embedlib.cli import main
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
    main()


if __name__ == "__main__":
    run()
