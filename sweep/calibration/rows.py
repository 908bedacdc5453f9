"""From a measured row to a point of the cost model, or to the reason why there is none.

A row is a mapping of column names to text, as a CSV holds it: model, hardware, n_gpus, precision, tp, pp, ep, dp, isl,
osl, concurrency_or_batch, disaggregated, prefill_layout, decode_layout, mtp_speculative ... Any column may be missing.
No rule looks at a single row, a curve or a measured value: what decides is the kind of model, of machine, of source.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sweep.config import Library, Record
from sweep.point import Precision

Row = Mapping[str, str | None]

# Names that sources use for what the catalogue lists under another one; keys and values as `canonical` writes them.
MODEL_ALIASES = {
    "deepseek_r1_0528": "deepseek_r1",
    "deepseek_v3_0324": "deepseek_v3",
    "deepseek_v3_1": "deepseek_v3",  # the shape is V3's
    "deepseek_v3_1_terminus": "deepseek_v3",
    "deepseek_v3_2_exp": "deepseek_v3_2",
    "llama_3_3_70b": "llama_3_3_70b_instruct",
    "kimi_k2": "kimi_k2_instruct",
    "kimi_k2_thinking": "kimi_k2_instruct",
    "mistral_7b": "mistral_7b_v0_3",
    "mixtral_8x7b_v0_1": "mixtral_8x7b",
    "llama_4_maverick": "llama_4_maverick_17b_128e",
    "llama_4_scout": "llama_4_scout_17b_16e",
    "qwen2_72b": "qwen2_5_72b",  # Qwen2 and Qwen2.5 of these sizes have one shape
    "qwen2_7b": "qwen2_5_7b",
    "qwen2_1_5b": "qwen2_5_1_5b",
    "deepseek_r1_distill_qwen_14b": "qwen2_5_14b",
    "deepseek_r1_distill_qwen_32b": "qwen2_5_32b",
    "deepseek_r1_distill_llama_70b": "llama_3_3_70b_instruct",
    "deepseek_r1_distill_llama_8b": "llama_3_1_8b",
}
# What quantization, tuning and release dates add to a name without changing the shape.
MODEL_SUFFIXES = (
    "instruct", "chat", "it", "hf", "base", "thinking", "fp8", "fp4", "nvfp4", "mxfp4", "awq", "gptq", "int4", "int8",
    "bf16", "w4a16", "w8a8", "2507", "2512", "0528", "0324", "dynamic", "preview",
)  # fmt: skip
HARDWARE_ALIASES = {
    "a100": "a100_sxm_80gb",
    "a100_80gb": "a100_sxm_80gb",
    "a100_80gb_variant_not_stated": "a100_sxm_80gb",
    "a100_sxm": "a100_sxm_80gb",
    "a100_sxm4_80gb": "a100_sxm_80gb",
    "a100_sxm4_40gb": "a100_sxm_40gb",
    "a100_pcie": "a100_pcie_80gb",
    "h100": "h100_sxm_80gb",
    "h100_sxm": "h100_sxm_80gb",
    "h100_sxm5_80gb": "h100_sxm_80gb",
    "h100_pcie": "h100_pcie_80gb",
    "h100_nvl": "h100_nvl_94gb",
    "h200": "h200_sxm_141gb",
    "h200_sxm": "h200_sxm_141gb",
    "h800": "h800_sxm_80gb",
    "h800_sxm": "h800_sxm_80gb",
    "h20": "h20_96gb",
    "b200": "b200_sxm_180gb",
    "b200_sxm": "b200_sxm_180gb",
    "b300": "b300_sxm_288gb",
    "b300_sxm": "b300_sxm_288gb",
    "gb200": "gb200_nvl72",
    "gb300": "gb300_nvl72",
    "gh200": "gh200_96gb",
    "gh200_480gb": "gh200_96gb",  # 480 GB is the host's memory
    "ascend_910b": "huawei_ascend_910b3",
    "rubin": "rubin_vr200_nvl72_ex_nvl144",
    "vr200_nvl72": "rubin_vr200_nvl72_ex_nvl144",
    "rubin_vr200_nvl72": "rubin_vr200_nvl72_ex_nvl144",
    "dgx_spark": "dgx_spark_gb10",
    "rtx_pro_6000_bse": "rtx_pro_6000_blackwell_server",
    "rtx_pro_6000": "rtx_pro_6000_blackwell_server",
    "rtx_pro_6000_server": "rtx_pro_6000_blackwell_server",
}
FRAMEWORKS = {  # what a framework's name contains -> its family
    "trt": "trtllm", "tensorrt": "trtllm", "sglang": "sglang", "vllm": "vllm", "atom": "atom", "gpt-fast": "gpt-fast",
    "llama.cpp": "llama.cpp", "exllama": "exllama", "awq": "autoawq", "mlc": "mlc",
}  # fmt: skip

# Prompts and answers of these sources are drawn uniformly from 0.8 to 1.0 of the nominal length (InferenceX harness).
UNIFORM_LENGTHS = ("inferencex_db_fixture", "inferencex_blog", "inferencex_dashboard_csv", "inferencex_third_party")
UNIFORM_MEAN = 0.9
MTP_DEPTH = {"trtllm": 3.0}  # tokens drafted per step where a row says MTP and no depth; depths are not published
MTP_DEPTH_ELSEWHERE = 2.0
EAGLE_DEPTH = 3.0
# Rows that do not say whether tokens are drafted: TensorRT-LLM rows of these families are taken as drafted (most of
# them lie nearer to that, with constants fitted on labelled rows alone), all others as not.
MTP_UNSAID = ("deepseek", "glm", "kimi")


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How one worker cuts the work; the fields of `sweep.point.Layout` that occur in measured rows."""

    tpa: int
    dpa: int
    tpf: int
    ep: int
    pp: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of the worker."""
        return self.tpa * self.dpa * self.pp


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A measured row as a point of the cost model."""

    row_id: str
    model: str  # of the catalogue
    hardware: str
    precision: Precision
    decode: Cut  # of a worker that decodes; aggregated: of the replica
    prefill: Cut
    decode_workers: float
    prefill_workers: float  # 0: aggregated
    gpus: float  # all that throughput is divided by, per replica
    concurrency: float  # of the replica, or of the whole disaggregated service
    isl: float
    osl: float
    drafted: float  # tokens per step
    draft_kind: str  # none, mtp, eagle3
    labelled: bool  # whether the row says if tokens are drafted
    framework: str  # family
    date: str
    experts: bool = False  # whether the model has routed experts
    rate_known: bool = True  # false: the row's GPU count is not that of the replica, throughput per GPU means nothing
    assumed: tuple[str, ...] = field(default=())  # what the source implies and the row does not say

    @property
    def disaggregated(self) -> bool:
        """Whether prefill has GPUs of its own."""
        return self.prefill_workers > 0


class Unanswered(Exception):
    """Why a row is no point: one short sentence."""


def canonical(name: str) -> str:
    """Lower case, every run of other characters an underscore: as files of the catalogue are named."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


@dataclass(frozen=True)
class Catalogue:
    """Models and machines by the names that sources use."""

    library: Library

    def __hash__(self) -> int:
        return id(self.library)

    @functools.cached_property
    def _models(self) -> dict[str, str]:
        return self._names("model", ("name", "hf_id"), skip=("dense", "moe"))

    @functools.cached_property
    def _hardware(self) -> dict[str, str]:
        return self._names("hardware", ("name",))

    def _names(self, group: str, keys: tuple[str, ...], skip: tuple[str, ...] = ()) -> dict[str, str]:
        known: dict[str, str] = {}
        choices = [c for c in self.library.choices(group) if c not in skip]
        for choice in choices:
            raw = self.library.raw(group, choice)
            for key in keys:
                if isinstance(raw.get(key), str):
                    known.setdefault(canonical(str(raw[key]).split("/")[-1]), choice)
        return {**known, **{c: c for c in choices}}

    def model(self, name: str) -> str | None:
        """The catalogue's model of a name; quantization, tuning and release date do not change a shape."""
        word = canonical(name.split("/")[-1])
        for prefix in ("", "nvidia_", "meta_"):
            at = word.removeprefix(prefix)
            while at:
                for candidate in (at, MODEL_ALIASES.get(at, "")):
                    if candidate in self._models:
                        return self._models[candidate]
                head, _, tail = at.rpartition("_")
                if tail not in MODEL_SUFFIXES:
                    break
                at = head
        return None

    def hardware(self, name: str) -> str | None:
        """The catalogue's machine of a name."""
        word = canonical(name)
        word = HARDWARE_ALIASES.get(word, word)
        return self._hardware.get(word)

    @functools.cached_property
    def _records(self) -> dict[tuple[str, str], Record]:
        return {}

    def record(self, group: str, name: str) -> Record:
        """A record, read once."""
        if (group, name) not in self._records:
            self._records[group, name] = self.library.record(group, name)
        return self._records[group, name]


# --- fields of a row ---------------------------------------------------------------------------------------------


def text(row: Row, key: str) -> str:
    """A column's text, empty where missing."""
    value = row.get(key)
    return "" if value is None else str(value).strip()


def number(row: Row, key: str) -> float | None:
    """A column's number, None where there is none."""
    try:
        value = float(text(row, key).replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def whole(row: Row, key: str) -> int | None:
    """A column's positive whole number; 0 and nothing are None."""
    value = number(row, key)
    return int(value) if value is not None and value >= 1 else None


def framework_of(row: Row) -> str:
    """The family of the serving framework."""
    name = (text(row, "framework_family") or text(row, "framework")).lower()
    for part, family in FRAMEWORKS.items():
        if part in name:
            return family
    return name or "unknown"


def lengths(row: Row) -> tuple[float, float]:
    """Mean prompt and answer [tok].

    InferenceX draws both uniformly from 0.8 to 1.0 of the nominal length; rows that give measured means, and the
    silicon sample's internal runs (tagged `nv:`), stand as they are.
    """
    isl, osl = number(row, "isl"), number(row, "osl")
    if isl is None or isl <= 0:
        raise Unanswered("no prompt length")
    if osl is None or osl <= 0:
        raise Unanswered("no answer length")
    source, notes = text(row, "source_id"), text(row, "notes").lower()
    uniform = source in UNIFORM_LENGTHS or (source == "aiconfigurator_silicon_sample" and "nv:" not in notes)
    uniform = uniform or "uniform in [0.8" in notes
    if uniform and "mean lengths" not in notes:
        return UNIFORM_MEAN * isl, UNIFORM_MEAN * osl
    return isl, osl


def drafting(row: Row, framework: str, model: str) -> tuple[float, str, bool]:
    """Drafted tokens per step, how they are drafted, and whether the row says so.

    Depths that a row does not name: MTP 3 on TensorRT-LLM, 2 elsewhere; EAGLE3 3. Acceptance stands in the preset.
    """
    label = text(row, "mtp_speculative").lower()
    if label in ("", "null", "nan", "n", "no", "false", "off", "0"):
        return 0.0, "none", True
    if label.startswith("none"):
        return 0.0, "none", True
    if label.startswith("unknown"):
        if "likely none" in label:
            return 0.0, "none", True
        drafts = framework == "trtllm" and model.startswith(MTP_UNSAID)
        return (MTP_DEPTH["trtllm"], "mtp", False) if drafts else (0.0, "none", False)
    depth = re.search(r"(?:k\s*=\s*|mtp\s*-?\s*|x)(\d+)", label) or re.search(r"(\d+)\s*token", label)
    if "eagle" in label:
        return float(depth[1]) if depth and depth[0].startswith("k") else EAGLE_DEPTH, "eagle3", True
    if depth:
        return float(depth[1]), "mtp", True
    return MTP_DEPTH.get(framework, MTP_DEPTH_ELSEWHERE), "mtp", True


def narrow(label: str) -> str:
    """fp4, fp8, int8, int4 or bf16: the class of a precision label, "" where unknown."""
    word = label.lower()
    for key, name in (
        ("nvfp4", "fp4"), ("mxfp4", "fp4"), ("fp4", "fp4"), ("fp8", "fp8"), ("int4", "int4"), ("uint4", "int4"),
        ("w4", "int4"), ("awq", "int4"), ("q4", "int4"), ("int8", "int8"), ("w8", "int8"), ("q8", "int8"),
        ("bf16", "bf16"), ("fp16", "bf16"), ("f16", "bf16"), ("16bit", "bf16"),
    ):  # fmt: skip
        if key in word:
            return name
    return ""


def precision_of(row: Row, model: Record, hardware: Record, framework: str) -> Precision:
    """Formats of weights, activations and cache.

    fp8: block scales for models with experts, per tensor for dense ones. fp4: dense models everywhere; with experts,
    experts and FFN in fp4, attention in 8 bits. gpt-oss has mxfp4 experts whatever the label: 16-bit activations where
    the chip has no fp4 unit, else 8-bit. int4: weights only; of models with experts, the experts only.
    Cache: fp8 beside fp8 and fp4 weights on TensorRT-LLM, vLLM, Blackwell and CDNA4, else bf16.
    Source: launch scripts of InferenceX and model cards, as collected with the rows.
    """
    label = narrow(text(row, "precision")) or narrow(text(row, "precision_class"))
    if not label:
        raise Unanswered(f"precision unknown: {text(row, 'precision') or 'none given'}")
    experts = bool(model.values.get("n_experts"))
    generation = str(hardware.about.get("generation"))
    fp4_unit = bool(hardware.values.get("fp4_flops"))
    newest = generation.startswith("blackwell") or generation in ("cdna4", "cdna5", "rubin")
    nvidia = str(hardware.about.get("vendor")).upper() == "NVIDIA"
    four = "nvfp4" if nvidia else "mxfp4"
    narrow_cache = newest or framework in ("trtllm", "vllm", "atom")
    kv = "fp8" if label in ("fp8", "fp4") and narrow_cache and hardware.values.get("fp8_flops") else "bf16"
    if model.id.startswith("gpt_oss"):
        kv = "fp8" if newest else "bf16"
        act = "mxfp8" if fp4_unit else "bf16"
        formats = {"weights": "bf16", "weights_ffn": "mxfp4", "activations": act, "dispatch": "mxfp8"}
    elif label == "fp8":
        eight = "fp8_block" if experts else "fp8"
        formats = {"weights": eight, "activations": eight}
    elif label == "fp4" and experts:
        act = four if fp4_unit else "bf16"
        formats = {"weights": four, "weights_attn": "fp8", "activations": act, "dispatch": "fp8"}
    elif label == "fp4":
        formats = {"weights": four, "activations": four if fp4_unit else "bf16"}
    elif label == "int4" and experts:
        formats = {"weights": "bf16", "weights_ffn": "int4", "activations": "bf16"}
    elif label in ("int4", "int8"):
        formats = {"weights": label, "activations": "bf16"}
    else:
        formats = {"weights": "bf16", "activations": "bf16"}
    said = narrow(text(row, "kv_precision"))
    if said:
        kv = {"fp8": "fp8", "bf16": "bf16", "fp4": "nvfp4", "int8": "int8", "int4": "int4"}[said]
    return Precision(**formats, kv=kv)


# --- layouts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Workers of one kind as a layout string describes them."""

    workers: float | None
    tp: int | None
    ep: int | None
    dp: int | None
    moe_tp: int | None
    dp_attention: bool | None
    gpus: int | None


def parse_pool(layout: str) -> Pool:
    """`4x(tp8,ep8,dpa=False)`, `1.0x(tp1,dp4,moe_tp1,ep4)`, `32 GPU, EP=8`, `TP 4, EP 4`, `dp_attention=True`."""
    word = layout.lower()

    def after(key: str) -> int | None:
        found = re.search(rf"(?<![a-z_]){key}\s*=?\s*(\d+)", word)
        return int(found[1]) if found and int(found[1]) >= 1 else None

    count = re.match(r"\s*(\d+(?:\.\d+)?)\s*x", word)
    said = re.search(r"dp(?:a|_attention)\s*=\s*(true|false)", word)
    gpus = re.search(r"(\d+)\s*gpu", word)
    return Pool(
        workers=float(count[1]) if count and float(count[1]) > 0 else None,
        tp=after("tp"),
        ep=after("ep"),
        dp=after("dp"),
        moe_tp=after("moe_tp"),
        dp_attention=None if said is None else said[1] == "true",
        gpus=int(gpus[1]) if gpus else None,
    )


def cut_of(width: int, *, ep: int | None, groups: int, experts: bool, pp: int = 1) -> Cut:
    """A worker of `width` GPUs per stage: attention in `groups` groups, experts in `ep` of the width."""
    ep = min(ep or 1, width) if experts else 1
    while width % ep:
        ep -= 1
    while width % groups:
        groups -= 1
    return Cut(tpa=width // groups, dpa=groups, tpf=width // ep, ep=ep, pp=pp)


def pool_cut(pool: Pool, gpus: int | None, *, experts: bool, heads: int = 0) -> tuple[Cut, float]:
    """How a worker of a disaggregated pool is cut, and how many there are.

    A worker's width is its pool's GPUs over the number of workers: the string's own tp is that of the attention, and
    wrong for SGLang's wide EP (`1x(tp1,ep1,dpa=True)` on 48 GPUs is EP48). Without a number of workers the string's
    width says how many there are (`32 GPU, EP=8`: four). `heads`: query heads that tensor parallelism must divide; a
    width that does not (`12 GPU, TP=12`) is taken as several workers of the widest that does.
    """
    gpus = gpus or pool.gpus
    own = max(pool.tp or 1, pool.dp or 1, pool.ep or 1, (pool.tp or 1) * (pool.dp or 1))
    if pool.tp is None and pool.ep is None:
        raise Unanswered("no layout of a pool")
    if pool.workers is None and gpus is None:
        raise Unanswered("number of workers unknown")
    workers = pool.workers if pool.workers is not None else max(round((gpus or own) / own), 1)
    width = max(round(gpus / workers), 1) if gpus else own
    ep = pool.ep
    if heads and not pool.dp_attention and (pool.dp or 1) == 1 and heads % width and (ep or 1) == 1:
        whole_width = math.gcd(width, heads)
        width, workers = whole_width, workers * (width // whole_width)
    attention = bool(pool.dp_attention) or (pool.dp or 1) > 1
    if pool.dp_attention is None and pool.dp is None and pool.gpus and (pool.ep or 1) > 8:
        attention = True  # blogs name wide expert parallelism by its width alone
    if attention and width > own and (ep or 1) == (pool.tp or 1) == 1:
        ep = width
    if not attention or width == 1:
        groups = 1
    else:
        groups = pool.dp if pool.dp and 1 < pool.dp < width and (pool.tp or 1) > 1 else width
    return cut_of(width, ep=ep, groups=groups, experts=experts), float(workers)


def aggregated_cut(row: Row, *, experts: bool) -> tuple[Cut, float, bool, tuple[str, ...]]:
    """The cut of one replica, how many replicas the row's GPUs hold, whether its GPU count is right, assumptions.

    DP attention: said so, or dp = tp = N, or dp = ep with tp = 1. `ep = 16` on one GPU is a tp x ep artefact of
    4 GPUs. A single GPU needs no layout.
    """
    tp, pp, ep, dp, n_gpus = (whole(row, key) for key in ("tp", "pp", "ep", "dp", "n_gpus"))
    pool = parse_pool(text(row, "decode_layout"))
    tp, ep, dp = tp or pool.tp, ep or pool.ep, dp or pool.dp
    assumed: list[str] = []
    if n_gpus is None and tp is None:
        raise Unanswered("number of GPUs unknown")
    if tp is None and (dp or ep):
        tp = 1
    if tp is None:
        if n_gpus != 1:
            raise Unanswered("no layout")
        tp = 1
    pp, dp = pp or 1, dp or 1
    if n_gpus == 1 and tp == 1 and (ep or 1) > 1:
        side = math.isqrt(ep or 1)
        width = side if side * side == ep else int(ep or 1)
        return cut_of(width, ep=width, groups=1, experts=experts), 1.0, False, ("tp x ep artefact",)
    # SGLang's --dp counts attention groups inside tp, others multiply tp by it
    inside = pool.dp_attention or (dp > 1 and dp == tp) or (experts and dp > 1 and n_gpus == tp * pp)
    if inside:
        width = max(tp, dp)
        groups = dp if 1 < dp < width else width
    elif dp > 1 and experts and (ep or 1) >= dp:
        width, groups = tp * dp, dp
    else:
        width, groups = tp, 1  # dp replicas of their own
    cut = cut_of(width, ep=ep, groups=groups if width > 1 else 1, experts=experts, pp=pp)
    replicas = max((n_gpus or cut.gpus) / cut.gpus, 1.0)
    if n_gpus is not None and n_gpus < cut.gpus:
        assumed.append("GPUs from the layout")
    return cut, replicas, True, tuple(assumed)


def check_cut(cut: Cut, model: Record) -> None:
    """Refuse what no engine runs: heads that tp does not divide, more stages than layers, more groups than experts."""
    v = model.values
    heads = float(v["n_heads"])
    if heads % cut.tpa:
        raise Unanswered(f"tp {cut.tpa} does not divide {heads:.0f} heads")
    if cut.pp > float(v["n_layers"]):
        raise Unanswered(f"pp {cut.pp} exceeds {v['n_layers']:.0f} layers")
    if v.get("n_experts") and cut.ep > float(v["n_experts"]):
        raise Unanswered(f"ep {cut.ep} exceeds {v['n_experts']:.0f} experts")


def to_point(row: Row, catalogue: Catalogue) -> Measured:
    """The point of a measured row.

    Raises: `Unanswered`, with what is missing or unknown.
    """
    name, machine = text(row, "model"), text(row, "hardware")
    model_id = catalogue.model(name) if name else None
    if model_id is None:
        raise Unanswered(f"model not in the catalogue: {name or 'none given'}")
    hardware_id = catalogue.hardware(machine) if machine else None
    if hardware_id is None:
        raise Unanswered(f"hardware not in the catalogue: {machine or 'none given'}")
    model, hardware = catalogue.record("model", model_id), catalogue.record("hardware", hardware_id)
    experts = bool(model.values.get("n_experts"))
    framework = framework_of(row)
    precision = precision_of(row, model, hardware, framework)
    concurrency = number(row, "concurrency_or_batch")
    split = text(row, "disaggregated").lower() in ("y", "yes", "true", "1")
    rate_known = True
    assumed: tuple[str, ...] = ()
    if split:
        heads = int(model.values["n_heads"])
        prefill, n_prefill = pool_cut(
            parse_pool(text(row, "prefill_layout")), whole(row, "prefill_gpus"), experts=experts, heads=heads
        )
        decode, n_decode = pool_cut(
            parse_pool(text(row, "decode_layout")), whole(row, "decode_gpus"), experts=experts, heads=heads
        )
        gpus = prefill.gpus * n_prefill + decode.gpus * n_decode
    else:
        decode, replicas, rate_known, assumed = aggregated_cut(row, experts=experts)
        prefill, n_prefill, n_decode = decode, 0.0, 1.0
        gpus = float(decode.gpus)
        concurrency = None if concurrency is None else concurrency / replicas
    if concurrency is None or concurrency <= 0:
        raise Unanswered("no concurrency")
    isl, osl = lengths(row)
    for cut in (prefill, decode):
        check_cut(cut, model)
    drafted, kind, labelled = drafting(row, framework, model_id)
    return Measured(
        row_id=text(row, "row_id"),
        model=model_id,
        hardware=hardware_id,
        precision=precision,
        decode=decode,
        prefill=prefill,
        decode_workers=n_decode,
        prefill_workers=n_prefill,
        gpus=gpus,
        concurrency=max(concurrency, 1.0 if not split else concurrency),
        isl=isl,
        osl=osl,
        drafted=drafted,
        draft_kind=kind,
        labelled=labelled,
        framework=framework,
        date=text(row, "date"),
        experts=experts,
        rate_known=rate_known,
        assumed=assumed,
    )
