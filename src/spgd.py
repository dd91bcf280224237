"""The entry point of the command `spgd`. It is outside the package because that imports torch, which takes seconds."""

import sys


def main() -> None:
    """Run the command; an interrupt while it is imported ends it with one line, as later."""
    try:
        from sparsepgd.cli import main as command
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    command()
