"""For all tests: one thread each, here and in what they start."""

from __future__ import annotations

import os

import torch

os.environ["OMP_NUM_THREADS"] = "1"  # test workers run side by side
torch.set_num_threads(1)
