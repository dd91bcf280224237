"""The sub-commands of `spgd`, one a file: parsing and printing only."""
