"""`python -m embedlib` is the `embedlib` command."""

from embedlib.cli import main

main()
