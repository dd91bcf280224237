"""Speed beside the bare model and beside other implementations."""
