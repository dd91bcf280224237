"""Evaluation runs in folders, and their records."""
