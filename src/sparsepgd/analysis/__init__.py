"""What results say: summaries, curves, comparisons, and whether the numbers can be believed."""
