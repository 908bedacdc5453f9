"""What jax compiled is kept for the next run, per kind of processor, and read back without a word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
from pipelines import _app
import jax

_app.keep_compiled()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
print(float(jax.jit(lambda x: jax.numpy.exp(x) * 3.0)(jax.numpy.arange(64.0)).sum()) > 0)
print("/jax/compilation_cache/cache_hits" in found)
"""


def test_what_was_compiled_comes_back_in_silence(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("JAX_COMPILATION_CACHE_DIR", "TF_CPP_MIN_LOG_LEVEL")}
    env |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    for hit in ("False", "True"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.split() == ["True", hit]
        assert done.stderr == ""
    (kind,) = (tmp_path / "codesign-sweep" / "jax").iterdir()
    assert any(kind.iterdir())
