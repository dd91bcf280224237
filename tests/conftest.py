"""For all tests: one thread each and a terminal of 80 columns, here and in what they start."""

from __future__ import annotations

import os
import tempfile

import torch
from hypothesis import settings

os.environ["OMP_NUM_THREADS"] = "1"  # test workers run side by side
os.environ["COLUMNS"] = "80"
torch.set_num_threads(1)
os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.path.join(tempfile.gettempdir(), "hypothesis")  # not in the checkout
settings.register_profile("without a past", database=None)
settings.load_profile("without a past")
