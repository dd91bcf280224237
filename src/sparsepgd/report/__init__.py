"""Show runs on one self-contained page, and write its figures as files."""

from sparsepgd.report.entries import Entry, collect, entry_of
from sparsepgd.report.page import PAGE, refresh_page, write_figures, write_page

__all__ = ["PAGE", "Entry", "collect", "entry_of", "refresh_page", "write_figures", "write_page"]
