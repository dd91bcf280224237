"""Run programs unchanged, and scripts in this process, so that torch is not imported again."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch

from sparsepgd.search import registry
from sparsepgd.sources import data

ROOT = Path(__file__).parents[2]


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a script of benchmarks/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec.loader.exec_module(module)
    return module


def output(file: Path, *words: str, cwd: Path, strict: bool = False) -> str:
    """What ``python file words`` prints; `strict`: warnings are errors."""
    out, known = io.StringIO(), set(sys.modules)
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        mock.patch.object(sys, "argv", [str(file), *words]),
        mock.patch.object(sys, "path", [str(file.parent), *sys.path]),
        mock.patch.dict(registry.ENTRIES),
        mock.patch.dict(data.KINDS),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error" if strict else "ignore")
        try:
            runpy.run_path(str(file), run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise AssertionError(f"{file.name}: {end.code}") from None
        finally:
            for name in set(sys.modules) - known:  # files beside it, whose names other programs may use too
                if str(file.parent) in str(getattr(sys.modules[name], "__file__", None)):
                    del sys.modules[name]
    return out.getvalue()


def without_gpu(code: str) -> str:
    """What code with Triton kernels prints in Triton's own interpreter, which needs no GPU."""
    pytest.importorskip("triton")
    here = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=here, capture_output=True, text=True, check=False)
    if "only 0-dimensional arrays can be converted to Python scalars" in done.stderr:
        pytest.skip("the interpreter of this Triton cannot run loops with this NumPy")  # 3.6 with 2.4
    assert done.returncode == 0, done.stderr
    return done.stdout
