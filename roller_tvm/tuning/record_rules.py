"""Records are programs: a schedule's steps may name code to link. Only what tuners emit is let through. Imports no TVM.

A record of a stranger, in Ansor's format or MetaSchedule's, can make a kernel slow. With an annotation such as
``pragma_import_llvm`` it could make the model run code of his own.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any

from .. import foreign

#: MetaSchedule's files of a database, and our own beside them.
WORKLOADS, RECORDS, NOTES = "database_workload.json", "database_tuning_record.json", "roller_tvm.jsonl"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Instructions of a MetaSchedule trace that our lowering and MetaSchedule's own rules emit.
INSTRUCTIONS = _words(
    "AddUnitLoop Annotate Bind Blockize CacheIndex CacheInplace CacheRead CacheWrite ComputeAt ComputeInline "
    "DecomposePadding DecomposeReduction EnterPostproc Fuse FuseReductionEpilogue GetBlock GetChildBlocks GetConsumers "
    "GetLoops GetOutputBlocks GetProducers GetSBlock Merge PadEinsum Parallel RFactor ReIndex ReadAt ReindexCacheRead "
    "ReindexCacheWrite Reorder ReorderBlockIterVar ReverseComputeAt ReverseComputeInline RollingBuffer "
    "SampleCategorical SampleComputeLocation SamplePartitionedTile SamplePerfectTile SetScope Split StorageAlign "
    "Tensorize TransformBlockLayout TransformLayout Unannotate Unroll Vectorize WriteAt"
)
#: Annotations of theirs; none names code.
ANNOTATIONS = _words(
    "pragma_auto_unroll_max_step pragma_unroll_explicit software_pipeline_stage software_pipeline_order "
    "software_pipeline_async_stages buffer_dim_align double_buffer_scope layout_free_buffers warp_execution "
    "permuted_layout"
)
#: And those that MetaSchedule takes off again after its search.
OWN_ANNOTATIONS = re.compile(r"meta_schedule\.[a-z_]+")
#: Objects of TVM within a trace: the index maps of layouts, and their arithmetic.
NODES = re.compile(
    r"None|bool|int|float|DataType|ffi\.(String|SmallStr|Array|Map|Shape)|(ir|prim|tir|tirx|s_tir)\.(Type|PrimType|Var|"
    r"SizeVar|IntImm|FloatImm|Range|IndexMap|Add|Sub|Mul|Div|Mod|FloorDiv|FloorMod|Min|Max|Cast|And|Or|Not|EQ|NE|LT|LE|"
    r"GT|GE|Select)"
)
#: Names of blocks, loops, memory scopes and threads.
_NAME = re.compile(r"[\w.\-$/\[\],:*+ ]{0,400}")
#: Steps of an Ansor record, and the one pragma of Ansor's rules.
STEPS = _words("AN FU PR RE SP FSP FFSP SA CA CI CR CHR CHW RF")
PRAGMA = re.compile(r"(auto_unroll_max_step|unroll_explicit)\$?\d{0,9}")
#: Deepest reference from object to object in a workload: TVM's reader takes a stack frame or more each.
NODE_DEPTH = 1000


def check_trace(record: Any) -> None:
    """Raise ``ValueError`` unless a MetaSchedule record holds instructions and annotations of tuners alone.

    Parameters
    ----------
    record : list
        ``[[instructions, decisions], seconds, target, arguments]``, parsed.

    Examples
    --------
    >>> check_trace([[[["Annotate", ["l1", '"x"'], ["pragma_import_llvm"], []]], []], [1.0], {}, []])
    Traceback (most recent call last):
    ValueError: its trace annotates 'pragma_import_llvm', which no tuner does
    """
    try:
        (instructions, decisions), *_ = record
        for kind, inputs, attributes, outputs in instructions:
            if kind not in INSTRUCTIONS:
                raise ValueError(f"its trace has the instruction {kind!r}, which no tuner emits")
            if kind in ("Annotate", "Unannotate"):
                (key,) = attributes
                if key not in ANNOTATIONS and not OWN_ANNOTATIONS.fullmatch(key):
                    raise ValueError(f"its trace annotates {key!r}, which no tuner does")
            for value in _leaves([inputs, attributes, outputs]):
                _check_word(value)
        for number, _ in decisions:
            if not 0 <= number < len(instructions):
                raise ValueError("its trace decides for an instruction that is not there")
    except (TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"no trace of MetaSchedule ({error})") from None


def _leaves(value: Any) -> Iterator[str]:
    """Yield all texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _leaves(one)
    elif isinstance(value, dict):
        yield from _leaves([*value, *value.values()])


def _check_word(word: str) -> None:
    """Refuse a text in a trace that is neither a name nor an index map."""
    text = word.strip()
    if text.startswith("{"):
        for node in nodes_of(text):
            if not NODES.fullmatch(str(node["type"])):
                raise ValueError(f"its trace holds a {node['type']!r}, which no tuner emits")
    elif not _NAME.fullmatch(text.strip('"')) and not text.startswith("lambda "):
        raise ValueError(f"its trace holds the text {text[:40]!r}, which no tuner emits")


def nodes_of(text: str) -> list[dict[str, Any]]:
    """Return the objects of a JSON text of TVM, no deeper than it can read them.

    Raises
    ------
    ValueError
        It is none, or deeper.
    """
    data = foreign.loads(text)
    nodes = data.get("nodes") if isinstance(data, dict) else None
    root = data.get("root_index") if isinstance(data, dict) else None
    if not isinstance(nodes, list) or not isinstance(root, int) or not 0 <= root < len(nodes):
        raise ValueError("no objects of TVM")
    if not all(isinstance(node, dict) and isinstance(node.get("type"), str) for node in nodes):
        raise ValueError("no objects of TVM")
    depth = [0] * len(nodes)
    for number, node in enumerate(nodes):  # an object comes behind those that it refers to
        for at in _references(node.get("data")):
            if 0 <= at < number:  # else a number that stands for itself
                depth[number] = max(depth[number], depth[at] + 1)
        if depth[number] > NODE_DEPTH:
            raise ValueError(f"objects deeper than {NODE_DEPTH}")
    return nodes


def _references(data: Any) -> Iterator[int]:
    values = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    for value in values:
        if isinstance(value, int) and not isinstance(value, bool):
            yield value
        elif isinstance(value, (list, dict)):
            yield from _references(value)


def check_workload(line: Any) -> None:
    """Raise ``ValueError`` unless a line of MetaSchedule's workloads is whole, as far as that is seen without TVM.

    Parameters
    ----------
    line : list
        ``[hash, base64 of a module]``, parsed.
    """
    if not isinstance(line, list) or len(line) != 2 or not all(isinstance(one, str) for one in line):
        raise ValueError("no workload of MetaSchedule")
    if not line[0].lstrip("-").isdigit():
        raise ValueError("its hash is no number")
    try:
        data = base64.b64decode(line[1], validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"its module is no base64 ({error})") from None
    size, text = int.from_bytes(data[:8], "little"), data[8:]
    if size != len(text):
        raise ValueError(f"its module has {len(text)} bytes, not {size}")
    try:
        nodes_of(text.decode())
    except UnicodeDecodeError:
        raise ValueError("its module is not UTF-8") from None


def check_steps(record: Any) -> None:
    """Raise ``ValueError`` unless the steps of an Ansor record are those of Ansor's rules.

    Examples
    --------
    >>> check_steps({"i": [["k", "llvm"], [[], [["PR", 0, 0, "import_llvm$/tmp/x.ll"]]]]})
    Traceback (most recent call last):
    ValueError: its steps set the pragma 'import_llvm$/tmp/x.ll', which no tuner does
    """
    try:
        for kind, *words in record["i"][1][1]:
            if kind not in STEPS:
                raise ValueError(f"its steps have {kind!r}, which no tuner emits")
            for word in _leaves(words):
                if kind == "PR" and not PRAGMA.fullmatch(word):
                    raise ValueError(f"its steps set the pragma {word!r}, which no tuner does")
                if not _NAME.fullmatch(word):
                    raise ValueError(f"its steps hold the text {word[:40]!r}, which no tuner emits")
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"no steps of auto_scheduler ({type(error).__name__}: {error})") from None


def parsed_record(text: str) -> tuple[int, Any]:
    """Return the workload's number and the record of a line of MetaSchedule's records, checked.

    Raises
    ------
    ValueError
    """
    data = foreign.loads(text)
    if not isinstance(data, list) or len(data) != 2 or not isinstance(data[0], int) or not isinstance(data[1], list):
        raise ValueError("no record of MetaSchedule")
    check_trace(data[1])
    if len(data[1]) != 4:
        raise ValueError("no record of MetaSchedule")
    return data[0], data[1]


def renumbered(text: str, number: int) -> str:
    """Return a record's line for another place of its workload.

    Examples
    --------
    >>> renumbered('[12,[[[], []], [0.1], {}, []]]', 3)
    '[3,[[[], []], [0.1], {}, []]]'
    """
    return re.sub(r"^\s*\[\s*-?\d+", f"[{number}", text, count=1)
