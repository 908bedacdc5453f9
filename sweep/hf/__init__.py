"""A model's shape from a Hugging Face `config.json`.

Every key of the file is either read by the architecture's own function, or stands in `IRRELEVANT` because it cannot
change a shape, or is refused by name. A key that the architecture needs and the file lacks is refused by name too,
except where the model's configuration class defines what its absence means (`head_dim`: width over heads); those
definitions stand beside the reader that uses them. Nothing is guessed.

Source of the key names and their meaning: the configuration and modelling classes of transformers 5.24 and the
models' own remote code (grok, kimi, nemotron, step, minimax, ling, arctic).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sweep.errors import BadInput, closest
from sweep.hf import attention, hybrid, latent
from sweep.hf.keys import BESIDE_TEXT, IRRELEVANT, Keys, Shape

WRAPPERS = (
    "gemma3",
    "gemma4",
    "kimi_k25",
    "kimi_k3",
    "llama4",
    "minimax_m3_vl",
    "mistral3",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_vl",
    "qwen3_vl_moe",
    "step3_vl",
    "step3p7",
)
ARCHITECTURES: dict[str, Callable[[Keys], Shape]] = {**attention.READERS, **latent.READERS, **hybrid.READERS}
# Files whose `model_type` does not tell: what their `architectures` say.
BY_CLASS = {
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "Grok1ForCausalLM": "grok-2",
    "Grok1ModelForCausalLM": "grok-1",
    "HunYuanMoEV1ForCausalLM": "hunyuan_v1_moe",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "MiniMaxM3SparseForCausalLM": "minimax_m3",
    "Step3TextForCausalLM": "step3_text",
}


def _architecture(found: Mapping[str, Any], where: str) -> str:
    """The name under which an architecture is known here."""
    classes = found.get("architectures")
    for name in classes if isinstance(classes, list) else []:
        if name in BY_CLASS:
            return BY_CLASS[name]
    kind = found.get("model_type")
    if not isinstance(kind, str):
        raise BadInput(f"{where}: model_type: missing; known: {', '.join(ARCHITECTURES)}")
    if kind in ARCHITECTURES:
        return kind
    raise BadInput(
        f"{where}: model_type={kind}: an architecture that cannot be read; {closest(kind, ARCHITECTURES)}; "
        f"known: {', '.join(ARCHITECTURES)}"
    )


def read_config(found: Mapping[str, Any], where: str = "config.json") -> dict[str, Any]:
    """The fields of `sweep.point.Model` that the content of a `config.json` gives. Raises: `BadInput`."""
    prefix = ""
    inner = found.get("text_config")
    if isinstance(inner, dict):
        outer = found.get("model_type")
        if outer not in WRAPPERS:
            raise BadInput(
                f"{where}: model_type={outer}: an architecture around a text model that cannot be read; "
                f"known: {', '.join(WRAPPERS)}"
            )
        around = Keys(found, where)
        around.read.update({"text_config", "tie_word_embeddings"})
        around.check_rest(str(outer), IRRELEVANT | BESIDE_TEXT)
        if "tie_word_embeddings" in found and "tie_word_embeddings" not in inner:
            inner = {**inner, "tie_word_embeddings": found["tie_word_embeddings"]}
        found, prefix = inner, "text_config."
    if "model_type" not in found and "dim" in found and "n_layers" in found:
        keys = Keys(found, where)
        shape = latent.mistral_params(keys)
        keys.check_rest("Mistral's params.json")
        return shape
    name = _architecture(found, where)
    keys = Keys(found, where, prefix)
    shape = ARCHITECTURES[name](keys)
    keys.check_rest(name)
    return shape


def _content(path: Path) -> tuple[Path, dict[str, Any]]:
    """The file of a path, which may be the directory that holds one, and what it says."""
    path = Path(path)
    if path.is_dir():
        path = path / ("config.json" if (path / "config.json").is_file() else "params.json")
        path = path if path.is_file() else path.with_name("config.json")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"model.path={path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"model.path={path}: cannot be read ({error.__class__.__name__})") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"model.path={path}: not JSON (line {error.lineno}: {error.msg})") from None
    if not isinstance(found, dict):
        raise BadInput(f"model.path={path}: must hold a JSON object")
    return path, found


def hf_name(path: Path) -> str:
    """What to call the model of a file.

    Its `_name_or_path` if that is a name; else that of its directory in the Hugging Face cache or elsewhere, or of the
    file where it is not called config.json; else the first of its `architectures`.
    """
    path, found = _content(path)
    named = str(found.get("_name_or_path") or "")
    cached = [p.name.split("--")[-1] for p in path.absolute().parents if p.name.startswith("models--")]
    folder = path.absolute().parent.name
    classes = found.get("architectures")
    candidates = [
        named.split("/")[-1] if named and not named.startswith((".", "/", "~")) else "",
        *cached[:1],
        path.stem if path.name not in ("config.json", "params.json") else folder,
        str(classes[0]) if isinstance(classes, list) and classes else "",
        "model",
    ]
    slugs = (re.sub(r"[^a-z0-9]+", "_", c.lower()).strip("_") for c in candidates)
    return next(s for s in slugs if s)


def model_from_hf(path: Path) -> dict[str, Any]:
    """The fields of `sweep.point.Model` that a `config.json` gives, or the directory that holds one.

    Raises: `BadInput`, in one line with the field that is missing or not understood.
    """
    path, found = _content(path)
    return read_config(found, f"model.path={path}")
