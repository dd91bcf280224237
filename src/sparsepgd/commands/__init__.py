"""The sub-commands of `spgd`, one per file: parsing and printing only."""
