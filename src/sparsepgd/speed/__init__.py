"""Speed relative to the bare model and to other implementations."""
