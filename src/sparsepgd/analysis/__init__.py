"""Analysis of results: summaries, curves, comparisons and sanity checks."""
