"""What the pipelines share: composing a configuration, one-line errors, several jobs.

A single run composes the configuration without creating a directory, so bad input leaves nothing behind. With `-m`
Hydra takes over and runs one job per combination, on its launchers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from hydra import compose, initialize_config_dir
from hydra import main as hydra_main
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Sweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sweep.config import ABOUT, OPTIONS, Library, Study, conf_dir, plain, root_schema, study
from sweep.errors import BadInput, closest
from sweep.family import check_settings, prepared
from sweep.point import RECORDS, names

GROUPS = (*RECORDS, "efficiency", "placement", "serving", "accuracy", "grid", "experiment")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a pipeline."""

    study: Study
    options: dict[str, Any]  # resume, output, progress, report, against
    directory: Path | None  # where Hydra put a multirun job; None: the pipeline chooses
    overrides: list[str]
    config_yaml: str
    name: str


Task = Callable[[Job], int | None]


# Hydra's logging would print JAX's remarks about hardware that is not there
logging.getLogger("jax").setLevel(logging.WARNING)


def register() -> None:
    """Give Hydra the typed base configuration; as often as one likes."""
    ConfigStore.instance().store(name="base", node=root_schema())


def processor() -> str:
    """A short name of this machine's kind of processor: what it is called and can do."""
    about = [platform.system(), platform.machine(), platform.processor()]
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as info:
        kinds = {
            line.strip() for line in info if line.partition("\t")[0].strip() in ("model name", "flags", "Features")
        }
        about += sorted(kinds)
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:12]


def keep_compiled() -> None:
    """Let jax keep what it compiles under the user's cache directory: a second run starts without compiling.

    Each kind of processor has a directory of its own: homes are shared by machines, machine code is not.
    `JAX_COMPILATION_CACHE_DIR` overrules the place; an empty one switches it off.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    with contextlib.suppress(OSError):
        directory = home / "codesign-sweep" / "jax" / processor()
        directory.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(directory))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """A command line, taken apart."""

    overrides: list[str]
    config_dirs: list[Path]
    multirun: bool
    rest: list[str]  # Hydra's own flags


def parse(argv: Sequence[str]) -> CommandLine:
    """Overrides, the user's own configuration directories, and Hydra's flags."""
    overrides: list[str] = []
    dirs: list[Path] = []
    rest: list[str] = []
    multirun = False
    words = iter(argv)
    for word in words:
        if word in ("-m", "--multirun"):
            multirun = True
        elif word in ("--config-dir", "-cd"):
            dirs.append(Path(next(words, "")).resolve())
        elif word.startswith("--config-dir="):
            dirs.append(Path(word.partition("=")[2]).resolve())
        elif word.startswith("-"):
            rest.append(word)
        else:
            overrides.append(word)
    for directory in dirs:
        if not directory.is_dir():
            raise BadInput(f"--config-dir={directory}: no such directory")
    return CommandLine(overrides=overrides, config_dirs=dirs, multirun=multirun, rest=rest)


def _values(override: Override, library: Library) -> list[Any]:
    value = override.value()
    if isinstance(value, Sweep):
        with contextlib.suppress(Exception):
            return list(override.sweep_iterator())
        return []
    return [value]


def check_overrides(line: CommandLine) -> None:
    """Refuse unknown groups, choices and keys, each in one line with the nearest names."""
    library = Library([*line.config_dirs, conf_dir()])
    try:
        parsed = OverridesParser.create().parse_overrides(line.overrides)
    except HydraException as error:
        raise BadInput(f"{' '.join(line.overrides)}: {_first_line(error)}") from None
    fields = tuple(f.name for f in dataclasses.fields(root_schema()))
    for override in parsed:
        key = override.key_or_group.split("@")[0]
        if key.startswith("hydra") or override.is_delete():
            continue
        group, _, name = key.partition(".")
        if not name and group in GROUPS:
            for value in _values(override, library):
                if isinstance(value, str) and "*" not in value and value not in library.choices(group):
                    raise BadInput(f"{group}={value}: no such {group}; {closest(value, library.choices(group))}")
            continue
        if group not in (*fields, *GROUPS):
            raise BadInput(f"{key}: no such key; {closest(group, (*fields, *GROUPS))}")
        if group in RECORDS and name:
            known = (*names(RECORDS[group]), *ABOUT[group])
            if name.startswith("scale."):
                check_settings(group, {name: 1.0 if name.split(".")[1] not in ("hold", "solve") else None})
            if name.split(".")[0] not in known:
                raise BadInput(f"{key}: no such key; {closest(name, [f'{group}.{k}' for k in known])}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def as_bad_input(error: Exception) -> BadInput:
    """A composition error as one line: key, value, what is wrong."""
    text = f"{error}\n{error.__cause__ or ''}"
    key = re.search(r"full_key: (\S+)", text) or re.search(r"Error merging override (\S+?)=", text)
    value = re.search(r"Value '(.*?)' of type '\w+' could not be converted to (\w+)", text)
    if value:
        wanted = {"Float": "a number", "Boolean": "true or false", "Integer": "a whole number"}.get(value[2], value[2])
        return BadInput(f"{key[1] if key else 'value'}={value[1]}: must be {wanted}")
    missing = re.search(r"Key '(\S+)' (?:is not in struct|not in '\w+')", text)
    if missing:
        return BadInput(f"{key[1] if key else missing[1]}: no such key")
    return BadInput(_first_line(error))


# what a person may add to without a plus sign
FREE = ("grid.", "zip.", "model.scale.", "hardware.scale.", "serving.prefill")
ON_TOP = re.compile(r"grid\.(model|hardware)\.(scale|price|power)(\.|$)")  # axes over all records of a group


def free_keys(overrides: Sequence[str]) -> list[str]:
    """Overrides with axes and derived keys out of the way: Hydra would merge them into what a file says.

    `grid.workload.batch=[1,8]` travels as `++overlay.grid__workload__batch=[1,8]`, through the sweeper too, and comes
    back in `replace_axes`.
    """
    out = []
    for override in overrides:
        key, equals, value = override.partition("=")
        out.append(f"++overlay.{key.replace('.', '__')}{equals}{value}" if key.startswith(FREE) else override)
    return out


def said(overrides: Sequence[str]) -> list[str]:
    """Overrides as they were said: the inverse of `free_keys`."""
    out = []
    for override in overrides:
        key, equals, value = override.partition("=")
        prefix = "++overlay."
        out.append(
            f"{key.removeprefix(prefix).replace('__', '.')}{equals}{value}" if key.startswith(prefix) else override
        )
    return out


def replace_axes(data: dict[str, Any], overrides: Sequence[str]) -> None:
    """An axis given on the command line replaces that of a file; merged, `pow2` and `linear` would mix."""
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key = override.key_or_group
        if not key.startswith(FREE) or override.is_delete():
            continue
        *path, last = ["grid", key.partition(".")[2]] if ON_TOP.match(key) else key.split(".")
        at = data
        for name in path:
            inner = at.get(name)
            if not isinstance(inner, dict):
                inner = at[name] = {}
            at = inner
        at[last] = override.value()


def compose_config(
    overrides: Sequence[str], config_dirs: Sequence[Path], name: str
) -> tuple[DictConfig, dict[str, str]]:
    """The configuration of one run, and which file was chosen in each group."""
    register()
    GlobalHydra.instance().clear()
    extra = [f"hydra.job.name={name}"]
    if config_dirs:
        extra.append(f"hydra.searchpath=[{','.join(f'file://{d}' for d in config_dirs)}]")
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("sweep", overrides=[*free_keys(overrides), *extra], return_hydra_config=True)
    choices = {str(k): str(v) for k, v in plain(config.hydra.runtime.choices).items() if v is not None}
    with _open(config):
        del config["hydra"]
    return config, choices


@contextlib.contextmanager
def _open(config: DictConfig) -> Iterator[None]:
    OmegaConf.set_struct(config, False)
    yield
    OmegaConf.set_struct(config, True)


def make_job(
    config: DictConfig,
    choices: dict[str, str],
    config_dirs: Sequence[Path],
    overrides: Sequence[str],
    name: str,
    directory: Path | None = None,
) -> Job:
    """A job from a composed configuration, checked."""
    data = plain(config)
    data.pop("overlay", None)
    overrides = said(overrides)
    replace_axes(data, overrides)
    return Job(
        study=prepared(study(data, choices, [*config_dirs, conf_dir()], _named(overrides))),
        options={k: data.get(k) for k in OPTIONS},
        directory=directory,
        overrides=list(overrides),
        config_yaml=OmegaConf.to_yaml(OmegaConf.create({k: v for k, v in data.items() if k not in OPTIONS})),
        name=name,
    )


def _named(overrides: Sequence[str]) -> list[str]:
    """Keys of the records that the command line names."""
    return [override.partition("=")[0].lstrip("+~") for override in overrides]


def run(task: Task, name: str, doc: str, argv: Sequence[str] | None = None, *, multirun: bool = False) -> int:
    """Run a pipeline from a command line. Returns the exit code: 0, 1 for bad input, 2 for bad usage."""
    keep_compiled()
    words = list(sys.argv[1:] if argv is None else argv)
    if any(w in ("-h", "--help") for w in words):
        print(doc.strip())
        return 0
    try:
        line = parse(words)
        if line.multirun and not multirun:
            raise BadInput(f"-m: {name} runs one job; sweep takes -m")
        check_overrides(line)
        if line.multirun:
            return _multirun(task, name, line)
        try:
            config, choices = compose_config(line.overrides, line.config_dirs, name)
        except (HydraException, OmegaConfBaseException) as error:
            raise as_bad_input(error) from None
        return task(make_job(config, choices, line.config_dirs, line.overrides, name)) or 0
    except BadInput as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    except OSError as error:  # a disk that is full or gone
        print(f"{error.filename or name}: {error.strerror or error}", file=sys.stderr)
        return 1


@dataclass(frozen=True)
class OneOf:
    """One job of a multirun, as launchers call it: here, in another process or on another machine."""

    task: Task
    name: str
    config_dirs: tuple[Path, ...]
    launched_by: int  # process

    def __call__(self, config: DictConfig) -> None:
        """Run it. Raises: what went wrong, after saying it."""
        hydra = HydraConfig.get()
        if os.getpid() != self.launched_by:
            share_cores(plain(hydra.launcher))
        choices = {str(k): str(v) for k, v in plain(hydra.runtime.choices).items() if v is not None}
        overrides = list(hydra.overrides.task)
        try:
            job = make_job(config, choices, self.config_dirs, overrides, self.name, Path(hydra.runtime.output_dir))
            self.task(job)
        except (BadInput, OSError) as error:
            print(f"job {hydra.job.num} ({' '.join(said(overrides))}): {error}", file=sys.stderr)
            error.said_in = os.getpid()  # type: ignore[union-attr]
            raise


def out_directory(job: Job, command: str) -> Path:
    """The directory that `out=` names, or one of this moment.

    Raises: `BadInput` where a file of that name is in the way.
    """
    out = Path(job.options.get("out") or f"outputs/{command}/{time.strftime('%Y-%m-%d_%H-%M-%S')}").expanduser()
    if out.exists() and not out.is_dir():
        raise BadInput(f"out={out}: is a file, must be a directory")
    return out


def share_cores(launcher: Mapping[str, Any]) -> None:
    """Leave cores to the jobs beside this one: as many threads for the compiled loops as the launcher grants a job."""
    from sweep.run import cores

    if "n_jobs" in launcher:  # joblib: -1 is one job per core
        jobs, own = int(launcher["n_jobs"]), cores()
        threads = own // (jobs if jobs > 0 else max(own + 1 + jobs, 1))
    else:  # submitit and ray, which ask for one core unless told otherwise
        remote = ((launcher.get("ray") or {}).get("remote") or {}).get("num_cpus")
        threads = int(launcher.get("cpus_per_task") or remote or 1)
    os.environ.setdefault("NPROC", str(max(threads, 1)))  # read by XLA when its first computation starts


def _multirun(task: Task, name: str, line: CommandLine) -> int:
    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come back to us instead of a printed traceback
    one = OneOf(task, name, tuple(line.config_dirs), os.getpid())
    sys.argv = [sys.argv[0], "-m", *free_keys(line.overrides), f"hydra.job.name={name}", *line.rest]
    if line.config_dirs:
        sys.argv += ["--config-dir", str(line.config_dirs[0])]
    try:
        hydra_main(version_base="1.3", config_path=str(conf_dir()), config_name="sweep")(one)()
    except (BadInput, OSError) as error:
        if getattr(error, "said_in", None) != os.getpid():  # on another machine, or into another job's log
            print(error, file=sys.stderr)
        return 1
    except (HydraException, OmegaConfBaseException) as error:
        raise as_bad_input(error) from None
    return 0
