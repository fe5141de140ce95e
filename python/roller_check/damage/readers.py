"""The readers of the product, each with a whole file and what must hold of a damaged one. No TVM.

A reader returns its reading of the file; it may raise a ``RollerError``, and nothing else. `Wrong` stands for a reading
other than the file that was written, without a word of it.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roller_tvm.codegen.built_kernels import BuiltKernels
from roller_tvm.device import load_device
from roller_tvm.device.cpu_measure import CpuProfile
from roller_tvm.device.load import load_file
from roller_tvm.errors import RecordWarning
from roller_tvm.foreign import checksum
from roller_tvm.ir.operators import matmul
from roller_tvm.models.shapes import parse_buckets, parse_shapes
from roller_tvm.package_members import add_members, check_seal, seal
from roller_tvm.planner.plan_cache import PlanCache
from roller_tvm.tuning.model_report import KernelPlan, ModelReport, report_of
from roller_tvm.tuning.record_rules import parsed_record

from .rules import Rule


class Wrong(Exception):
    """A damaged file was taken for another whole one, or a part of it was lost without a word."""


@dataclass(frozen=True)
class Reader:
    """A reader and a whole file for it.

    Parameters
    ----------
    suffix : str
        Ending of the file.
    whole : function
        Returns the bytes of a whole file.
    read : function of Path
        Reads a damaged one.
    more : sequence of rules
        Rules for this kind of file.
    """

    suffix: str
    whole: Callable[[], bytes]
    read: Callable[[Path], object]
    more: tuple[Rule, ...] = ()


#: Workload key, target, steps and times as Ansor writes them.
STEPS = [["CHW", 2, "local"], ["SP", 2, 0, 64, [2, 2, 8], 1], ["RE", 2, [0, 1, 2]], ["FU", 2, [0, 1]], ["AN", 2, 0, 3],
         ["PR", 2, 0, "auto_unroll_max_step$16"]]  # fmt: skip


def ansor_records() -> bytes:
    """Return four records of Ansor's with our notes, and a note of a kernel that stays TVM's."""
    from roller_tvm.relay.records import Note, kept_line, note_line

    lines = []
    for n in range(4):
        key, target = f'["k{n}", [64, 64, 64]]', "llvm -keys=cpu -num-cores=2"
        record = {"i": [[key, target, [2, 64, 64, 0, 0, 0, 0, 0], "", 1, []], [[], STEPS]],
                  "r": [[1e-3 * (n + 1)], 0, 0.5, 1700000000], "v": "v0.6"}  # fmt: skip
        line = json.dumps(record)
        note = Note(f"plan{n}", predicted_s=1e-3, measured_s=1e-3 * (n + 1), trials=3, checked=True)
        lines += [note_line(note, checksum(line)), line]
    return ("\n".join(lines) + "\n" + kept_line("k9", "llvm", "TVM's own is faster", 3)).encode()


def _read_ansor(path: Path) -> object:
    from roller_tvm.errors import RecordError
    from roller_tvm.relay.records import best_notes, read_kept, read_records

    written = {line for line in ansor_records().decode().splitlines() if not line.startswith("#")}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        records = read_records(path, strict=False)
    said = sum(issubclass(one.category, RecordWarning) for one in caught)
    for record in records:
        if record.note is not None and record.line not in written and "sum" in path.read_text("utf-8", "replace"):
            noted = [line for line in path.read_text("utf-8", "replace").split("\n") if '"sum": "' in line]
            if any(f'"sum": "{checksum(line)}"' in note for note in noted for line in (record.line,)):
                continue
            if _note_above_has_sum(path, record.number):
                raise Wrong(f"line {record.number} is not what was written, and was read")
    lines = path.read_bytes().split(b"\n")
    maybe = sum(1 for line in lines if line[:1] not in (b"", b"#", b" "))
    if len(records) + said < maybe:
        raise Wrong(f"{maybe} lines, {len(records)} read, {said} told")
    best_notes(records)
    read_kept(path)
    with contextlib.suppress(RecordError):
        read_records(path)
    return len(records)


def _note_above_has_sum(path: Path, number: int) -> bool:
    """Return whether the line above is a note that can be read and has a checksum."""
    lines = path.read_text("utf-8", "replace").split("\n")
    try:
        return bool(json.loads(lines[number - 2].partition("# roller-tvm ")[2]).get("sum"))
    except (ValueError, AttributeError):
        return False


def _device() -> bytes:
    from importlib import resources

    return (resources.files("roller_tvm.device") / "data" / "a100.toml").read_bytes()


def _own_device() -> bytes:
    return b'base = "h200"\nname = "mine"\nunits = 100\n\n[level.dram]\nbandwidth = {value = 3000, unit = "GB/s"}\n'


def _report() -> bytes:
    plans = tuple(KernelPlan(f"k{n}", "planned", "cpu.tiled register(i=4 j=8)", 1e-6) for n in range(5))
    return _sealed(ModelReport("llvm", plans).members(), ".so")


def _sealed(members: dict[str, bytes], suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"m{suffix}")
        if suffix == ".so":
            path.write_bytes(b"\x7fELF" + bytes(range(256)) * 8)
        else:
            import tarfile

            with tarfile.open(path, "w") as tar:
                entry = tarfile.TarInfo("mod.json")
                entry.size = 2
                tar.addfile(entry, io.BytesIO(b"{}"))
        add_members(path, members)
        seal(path)
        return path.read_bytes()


def _read_model(whole: Callable[[], bytes]) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        check_seal(path)
        data, before = path.read_bytes(), whole()
        if len(data) == len(before) and data[:-90] != before[:-90] and data[-90:] == before[-90:]:
            raise Wrong("a changed model passes its seal")
        report_of(path)
        return BuiltKernels.of_package(path)

    return read


@dataclass
class _Plans:
    """A plan cache of one operator."""

    bytes_: bytes = b""
    best: Any = None

    def whole(self) -> bytes:
        if not self.bytes_:
            with tempfile.TemporaryDirectory() as folder:
                cache = PlanCache(Path(folder))
                for m in (32, 64):
                    self.best = cache.construct(matmul(m=m, n=64, k=64), load_device("v100"), 1).best
                self.bytes_ = cache.disk.path.read_bytes()
                cache.disk.close()
        return self.bytes_

    def read(self, path: Path) -> object:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cache = PlanCache(Path(folder))
            cache.disk.path.write_bytes(path.read_bytes())
            found = cache.construct(matmul(m=64, n=64, k=64), load_device("v100"), 1).best
            cache.disk.close()
        if found != self.best:
            raise Wrong("the cache gives another plan")
        return found


def _arrays() -> bytes:
    kept = io.BytesIO()
    np.savez(kept, x=np.arange(24, dtype="float32").reshape(4, 6), y=np.ones(3, "int64"))
    return kept.getvalue()


def _read_arrays(path: Path) -> object:
    from roller_tvm.cli.arrays import read_arrays

    return read_arrays(path)


def _database() -> bytes:
    trace = [["GetSBlock", [], ["b", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2"]],
             ["Split", ["l1", "None", 4], [1, 0], ["l3", "l4"]],
             ["Annotate", ["l3", 16], ["pragma_auto_unroll_max_step"], []],
             ["Vectorize", ["l4"], [], []]]  # fmt: skip
    rows = [[n, [[trace, [[2, [4]]]], [1e-3], {"kind": "llvm"}, [["TENSOR", "float32", [8, 8]]]]] for n in range(4)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _read_database(path: Path) -> object:
    """Read each line as a MetaSchedule record; what names code must not pass."""
    read = 0
    for line in path.read_bytes().split(b"\n"):
        try:
            _, record = parsed_record(line.decode("utf-8", "replace"))
        except ValueError:  # the caller says file, line and reason
            continue
        read += 1
        for kind, _, attributes, _ in record[0][0]:
            if kind.startswith("Unsafe") or (kind == "Annotate" and "import" in str(attributes)):
                raise Wrong(f"the trace has {kind} {attributes}")
    return read


def _replay(path: Path) -> object:
    from importlib import import_module

    for name in ("roller_tvm.replay.records", "roller_bench.replay.records"):  # wherever it stands
        try:
            return import_module(name).read_file(path)
        except ModuleNotFoundError:
            continue
    return None


def _profile() -> bytes:
    from roller_tvm.device.cpu_measure import estimated_profile

    return json.dumps({"format": 1, "profile": estimated_profile(_facts()).to_dict()}).encode()


def _facts() -> Any:
    from roller_tvm.device.cpu_detect import detect_cpu

    global _FACTS
    if _FACTS is None:
        _FACTS = detect_cpu()
    return _FACTS


_FACTS: Any = None


def _read_profile(path: Path) -> object:
    from roller_tvm.device.cpu_profile import _load

    loaded = _load(path, _facts(), [])
    assert loaded is None or isinstance(loaded, CpuProfile)
    return loaded


def _words(path: Path) -> object:
    text = path.read_bytes().decode("utf-8", "replace")
    parse_shapes(text.partition("\n")[0])
    return parse_buckets(text.partition("\n")[2])


_PLANS = _Plans()
_KERNELS = BuiltKernels('extern "C" __global__ void f(float* a) { a[0] = 1; }', "sm_80", {}, {"g": "not emulated"})
READERS: dict[str, Reader] = {
    "ansor": Reader(".json", ansor_records, _read_ansor),
    "replay": Reader(".json", ansor_records, _replay),
    "metaschedule": Reader(".json", _database, _read_database),
    "device": Reader(".toml", _device, lambda path: load_file(path)),
    "own-device": Reader(".toml", _own_device, lambda path: load_file(path)),
    "model-so": Reader(".so", _report, _read_model(_report)),
    "model-tar": Reader(".tar", lambda: _sealed(_KERNELS.members(), ".tar"),
                        _read_model(lambda: _sealed(_KERNELS.members(), ".tar"))),
    "plan-cache": Reader(".sqlite", _PLANS.whole, _PLANS.read),
    "cpu-profile": Reader(".json", _profile, _read_profile),
    "arrays": Reader(".npz", _arrays, _read_arrays),
    "shapes": Reader(".txt", lambda: b"x:[1,3,224,224] y:[4]\nn=1,8 m=4", _words),
}  # fmt: skip
