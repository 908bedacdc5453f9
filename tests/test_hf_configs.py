"""Configurations as their makers publish them (`hf_configs/*.json`, each with its source) against what is published.

Those of catalogue entries must give the entry's shape field by field; those of models that are not in the catalogue
must give the published total of parameters. These totals are figures of cards and names as known; they were
not re-read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweep.complete import complete_model
from sweep.config import Library, conf_dir, make_record
from sweep.cost.arith import namespace
from sweep.cost.memory import count_params
from sweep.errors import BadInput
from sweep.hf import ARCHITECTURES, read_config
from sweep.point import Model, names
from tests.test_hf import CONFIGS

LIBRARY = Library([conf_dir()])
FILES = {
    p.stem: json.loads(p.read_text(encoding="utf-8"))
    for p in sorted((Path(__file__).parent / "hf_configs").glob("*.json"))
}
KNOWN = [stem for stem, c in FILES.items() if "_catalogue" in c]
OTHERS = [stem for stem, c in FILES.items() if "_published_params" in c]
DIFFERS = {"hunyuan_a13b": {"max_context"}}  # the file says 32K positions, the card 256K


def model_of(values: dict[str, Any]) -> Model:
    record = make_record("model", "x", values)
    return complete_model({k: np.nan if v is None else float(v) for k, v in record.values.items()})


@pytest.mark.parametrize("stem", KNOWN)
def test_as_in_the_catalogue(stem: str) -> None:
    read, held = model_of(read_config(FILES[stem])), model_of(LIBRARY.raw("model", FILES[stem]["_catalogue"]))
    for field in set(names(Model)) - DIFFERS.get(stem, set()):
        assert getattr(read, field)[0] == getattr(held, field)[0], field


@pytest.mark.parametrize("stem", OTHERS)
def test_published_total(stem: str) -> None:
    with namespace(np):
        total = float(count_params(model_of(read_config(FILES[stem]))).total[0])
    assert total == pytest.approx(FILES[stem]["_published_params"], rel=0.01)


def test_what_is_tried() -> None:
    assert len(OTHERS) >= 10 and all(FILES[stem]["_source"] for stem in FILES)
    assert not set(OTHERS) & set(LIBRARY.choices("model"))
    assert {FILES[s]["_catalogue"] for s in KNOWN} | set(CONFIGS) <= set(LIBRARY.choices("model"))


def kind(config: dict[str, Any]) -> str:
    inner: dict[str, Any] = config.get("text_config", config)
    return str(inner.get("model_type"))


def test_every_architecture_of_the_catalogue_is_read() -> None:
    """One entry of each published architecture stands here or in `test_hf.py`; the others share its class."""
    tried = {kind(c) for c in (*FILES.values(), *CONFIGS.values())}
    untried = set(ARCHITECTURES) - tried
    assert untried == {
        "bailing_moe", "cohere2", "deepseek_ref", "dots1", "ernie4_5", "glm4", "granite", "granitemoe", "grok-2",
        "hunyuan_v1_dense", "mimo", "minimax", "minimax_text_01", "ministral3", "olmo3", "qwen3_vl_text", "seed_oss",
        "step3p7_text",
    }  # fmt: skip


@pytest.mark.parametrize("stem", FILES)
def test_unknown_field_is_named(stem: str) -> None:
    config = FILES[stem]
    inner = config.get("text_config")
    changed = {**config, "text_config": {**inner, "n_towers": 3}} if inner else {**config, "n_towers": 3}
    with pytest.raises(BadInput, match="n_towers"):
        read_config(changed)


@pytest.mark.parametrize(
    ("stem", "change", "word"),
    [
        ("deepseek_v4_flash", {"compress_ratios": [0, 16] * 22}, "compress_ratios"),
        ("deepseek_v4_flash", {"compress_ratios": None}, "compress_ratios"),
        ("glm_5_2", {"indexer_types": None}, "indexer_types"),
        ("glm_5_2", {"mlp_layer_types": ["dense"] * 78}, "first_k_dense_replace"),
        ("nemotron_h_56b", {"hybrid_override_pattern": "MX" * 59}, "X"),
        ("nemotron_h_56b", {"num_hidden_layers": 7}, "118 entries"),
        ("hunyuan_a13b", {"moe_topk": [8, 4] * 16}, "moe_topk"),
        ("mimo_v2_flash", {"hybrid_layer_pattern": [2] * 48}, "hybrid_layer_pattern"),
        ("granite_4_0_h_small", {"layer_types": ["mamba"]}, "layer_types"),
        ("jamba_1_5_large", {"mamba_proj_bias": True}, "mamba_proj_bias"),
        ("longcat_flash", {"zero_expert_type": "copy"}, "zero_expert_type"),
        ("mistral_large_3_675b", {"hidden_dim": None}, "hidden_dim"),
    ],
)
def test_what_the_record_cannot_hold_is_named(stem: str, change: dict[str, Any], word: str) -> None:
    with pytest.raises(BadInput, match=word):
        read_config({**FILES[stem], **change})
