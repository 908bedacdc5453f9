"""What tests share: records as a user would get them, one point of them, and the independent scalar model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", "")  # no test reads what another run compiled

import jax
import numpy as np
import pytest

from pipelines import _app
from sweep.config import Library, Study, conf_dir


def make_study(*overrides: str) -> Study:
    """A study from overrides, as on the command line."""
    line = _app.parse(list(overrides))
    _app.check_overrides(line)
    config, choices = _app.compose_config(line.overrides, line.config_dirs, "test")
    return _app.make_job(config, choices, line.config_dirs, line.overrides, "test").study


@pytest.fixture(scope="session")
def library() -> Library:
    return Library([conf_dir()])


@pytest.fixture(scope="session")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture(scope="module")
def quick_compiles() -> Iterator[None]:
    """Rounding hardly depends on how hard the compiler works, its time does."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def close(a: Any, b: Any, rel: float = 1e-6) -> bool:
    """Equal within a relative tolerance, zeros and infinities included."""
    return bool(np.allclose(np.asarray(a, dtype=float), np.asarray(b, dtype=float), rtol=rel, atol=0, equal_nan=True))
