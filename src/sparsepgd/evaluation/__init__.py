"""How sure we are: attacks over a data set, summarised."""
