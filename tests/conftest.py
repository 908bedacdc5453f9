"""What tests share: records as a user would get them, and how they are compiled and divided among processes."""

from __future__ import annotations

import functools
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
from sweep import evaluate
from sweep.config import Library, Study, conf_dir

# Files that take longest, longest first: whoever is free takes the next one, and the last ones are short.
LONG = (
    "test_against_oracle",
    "test_accuracy",
    "test_bench",
    "test_cli_stored",
    "test_sweep",
    "test_sensitivity",
    "test_doubt",
    "test_shard",
    "test_docs",
    "test_claims",
    "test_precision",
    "test_devices",
    "test_explain",
    "test_report",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first."""
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file is run by one process, so that what its tests share is made once; `--dist` says otherwise."""
    if config.option.dist != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # in the order above, not by the number of tests
    return LoadFileScheduling(config, log)


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


SHIPPED = evaluate.compiler_options
QUICK = {"xla_cpu_use_fusion_emitters": False}  # of the two ways to write loops, the one that is ready sooner


@functools.cache
def quick_options() -> dict[str, Any]:
    """Those options that this compiler knows."""
    try:
        jax.jit(lambda x: x + 1.0, compiler_options=QUICK)(np.float32(1.0))
    except Exception:
        return {}
    return QUICK


def compile_quickly(quickly: bool = True) -> None:
    """How the engine is compiled from here on: in a hurry, or as it is shipped."""
    jax.config.update("jax_disable_most_optimizations", quickly)
    evaluate.compiler_options = (lambda: {**(SHIPPED() or {}), **quick_options()} or None) if quickly else SHIPPED
    for known in (evaluate._stages, evaluate._filter_call, evaluate._own_call):
        known.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def quick_compiles() -> None:
    """Tests are about our formulas, not about the compiler: what it is told to leave out takes most of its time."""
    compile_quickly()


@pytest.fixture
def shipped_compiles() -> Iterator[None]:
    """Compiled as users get it."""
    compile_quickly(False)
    yield
    compile_quickly()


def close(a: Any, b: Any, rel: float = 1e-6) -> bool:
    """Equal within a relative tolerance, zeros and infinities included."""
    return bool(np.allclose(np.asarray(a, dtype=float), np.asarray(b, dtype=float), rtol=rel, atol=0, equal_nan=True))
