"""``python -m sparsepgd`` is ``spgd``; torchrun starts its workers this way."""

from sparsepgd.cli import main

if __name__ == "__main__":
    main()
