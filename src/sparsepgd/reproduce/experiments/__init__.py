"""One module for each kind of table or figure of the paper."""
