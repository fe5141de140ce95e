"""CUDA C++ for a C++ compiler: shared arrays per block, PTX as calls."""

from __future__ import annotations

import re

from roller_tvm.codegen.cuda_text import CudaSource, blanked
from roller_tvm.codegen.errors import NotEmulated
from roller_tvm.emulate.ptx import translate_asm

_SHARED = re.compile(r"(?P<extern>\bextern\s+)?\b__shared__\b(?P<rest>[^;]*);")
_DECLARED = re.compile(
    r"\s*(?:(?:alignas|__align__)\s*\((?P<align>[^)]*)\)\s*)?(?P<type>.*?[\s*&>])(?P<name>\w+)\s*(?P<extents>(?:\[[^\]]*\]\s*)*)$",
    re.S,
)


def translated(source: CudaSource) -> str:
    """Return the text for a C++ compiler; line numbers are unchanged."""
    return translate_asm(_shared_arrays(source.text))


def _shared_arrays(text: str) -> str:
    """Turn ``__shared__ float A[64];`` into a reference to the running block's memory."""
    plain = blanked(text)
    result, done, number = [], 0, 0
    for match in _SHARED.finditer(plain):
        declared = _DECLARED.match(text[match.start("rest") : match.end("rest")])
        line = text.count("\n", 0, match.start()) + 1
        if not declared or "," in blanked(declared["type"]).split(">")[-1]:
            raise NotEmulated(f"a declaration of shared memory: {match.group()!r}", where=f"line {line}")
        kind, name, extents = declared["type"].strip(), declared["name"], declared["extents"].strip()
        # __align__ may also stand after the type.
        later = re.search(r"(?:alignas|__align__)\s*\(([^)]*)\)", kind)
        align = declared["align"] or (later.group(1) if later else "1")
        kind = re.sub(r"(?:alignas|__align__)\s*\([^)]*\)", " ", kind).strip()
        if match["extern"]:
            if extents != "[]":
                raise NotEmulated(f"a declaration of dynamic shared memory: {match.group()!r}", where=f"line {line}")
            code = f'{kind}* {name} = ({kind}*)emu_shared_dynamic("{name}");'
        else:
            own = f"emu_shared_{number}"
            code = (
                f"typedef {kind} {own}{extents}; auto& {name} = *({own}*)emu_shared("
                f'{number}, sizeof({own}), alignof({own}) > ({align}) ? alignof({own}) : ({align}), "{name}");'
            )
            number += 1
        result += [text[done : match.start()], code, "\n" * match.group().count("\n")]
        done = match.end()
    return "".join([*result, text[done:]])
