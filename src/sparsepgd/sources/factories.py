"""Call a function in a Python file of the user, which returns a model."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from sparsepgd.errors import MissingPackageError, SourceError, SparsePGDError, first_line

_beside: set[str] = set()  # modules that were imported from the folders of such files


def call(path: Path, factory: str) -> Any:
    """``FILE.py:FACTORY`` -> FACTORY(). While the file and the function run, files beside it can be imported."""
    if not path.is_file():
        raise SourceError(f"no file {str(path)!r}; use FILE.py:FACTORY")
    with _importable(path.resolve().parent), _in_words(path):
        module = load_module(path.resolve())
        return _function(module, path, factory)()


def load_module(path: Path) -> ModuleType:
    """Register the module under a unique name, because dataclasses and pickle look modules up by name."""
    name = f"{path.stem}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _function(module: ModuleType, path: Path, factory: str) -> Any:
    make = getattr(module, factory, None)
    if make is None:
        public = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
        defined = sorted(
            name for name, value in public.items() if getattr(value, "__module__", None) == module.__name__
        )
        raise SourceError(f"{path} has no function {factory!r}; it has {', '.join(defined) or 'none'}")
    if not callable(make) or isinstance(make, nn.Module):
        raise SourceError(f"{path}:{factory} is a {type(make).__name__}; expected a function that returns the model")
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise SourceError(
            f"{path}:{factory} must be callable without arguments: {error}; give its arguments defaults"
        ) from None
    except ValueError:  # not written in Python, so it has no signature
        pass
    return make


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Make the files in a folder importable. Those of earlier folders are forgotten, because names may recur."""
    for name in _beside:
        sys.modules.pop(name, None)
    _beside.clear()
    importlib.invalidate_caches()
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            top = name.partition(".")[0]
            origin = getattr(sys.modules.get(top), "__file__", None)
            if origin in (str(folder / f"{top}.py"), str(folder / top / "__init__.py")):
                _beside.add(name)


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    """Report an error in the user's code in one line, with its file and line."""
    try:
        yield
    except SparsePGDError:
        raise
    except SyntaxError as error:
        raise SourceError(f"{error.filename or path}, line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        folder = path.resolve().parent
        frames = [one for one in traceback.extract_tb(error.__traceback__) if Path(one.filename).parent == folder]
        where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else str(path)  # the innermost
        kind = MissingPackageError if isinstance(error, ImportError) else SourceError
        raise kind(f"{where}: {type(error).__name__}: {first_line(error)}") from error
