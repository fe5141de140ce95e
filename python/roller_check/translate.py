"""Translate CUDA C++ to C++ for the CPU: shared arrays become the block's memory, inline PTX becomes calls.

For instance, ``asm volatile("cp.async...")`` becomes a call of the emulated instruction.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass

from roller_tvm.codegen.cuda_text import OPAQUE, blanked, matching, split_top
from roller_tvm.codegen.errors import NotEmulated

_SHARED = re.compile(r"(?P<extern>\bextern\s+)?\b__shared__\b(?P<rest>[^;]*);")
_DECLARED = re.compile(
    r"\s*(?:(?:alignas|__align__)\s*\((?P<align>[^)]*)\)\s*)?(?P<type>.*?[\s*&>])(?P<name>\w+)\s*(?P<extents>(?:\[[^\]]*\]\s*)*)$",
    re.S,
)
_ASM = re.compile(r"\b(?:asm|__asm__|__asm)\b(?:\s+(?:volatile|__volatile__|__volatile))*\s*\(")
_TYPES = {"f16": "EMU_F16", "bf16": "EMU_BF16", "tf32": "EMU_TF32", "f32": "EMU_F32", "s8": "EMU_S8", "u8": "EMU_U8",
          "s32": "EMU_S32", "f64": "EMU_F64"}  # fmt: skip
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "s8": 8, "u8": 8, "s32": 32, "f64": 64}
# A register of PTX in C++; b8 does not exist as a register but loads into wider ones.
_C_TYPES = {"8": "uint8_t", "16": "uint16_t", "32": "uint32_t", "64": "uint64_t"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@dataclass(frozen=True)
class _Operand:
    """An operand of the asm statement: its constraint and the C++ expression."""

    constraint: str
    expression: str


def translated(source: str) -> str:
    """Return the source for a C++ compiler; line numbers stay the same.

    Raises
    ------
    NotEmulated
        An instruction of inline PTX or a declaration of shared memory is not understood.
    """
    return translate_asm(_shared_arrays(source))


def translate_asm(source: str) -> str:
    """Return the source with inline PTX replaced by C++; line numbers stay the same.

    Raises
    ------
    NotEmulated
        An instruction is unknown; the message names it and its line.

    Examples
    --------
    >>> translate_asm('asm volatile("cp.async.commit_group;" : : );')
    '{ emu_cp_async_commit(); };'
    """
    plain = blanked(source)
    result, done = [], 0
    for found in _ASM.finditer(plain):
        # `#define __asm__ asm` and its like are no statements.
        line_start = source.rfind("\n", 0, found.start()) + 1
        if found.start() < done or source[line_start : found.start()].lstrip().startswith("#"):
            continue
        opened = found.end() - 1
        closed = matching(plain, opened)
        line = source.count("\n", 0, found.start()) + 1
        if closed < 0:
            raise NotEmulated("inline PTX without a closing bracket", where=f"line {line}")
        statement = _statement(source[opened + 1 : closed], line)
        result += [source[done : found.start()], statement, "\n" * source.count("\n", found.start(), closed + 1)]
        done = closed + 1
    return "".join([*result, source[done:]])


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


def _statement(inside: str, line: int) -> str:
    parts = split_top(inside, ":")  # `::` between operands is two colons; that of a name stands within brackets
    template = "".join(ast.literal_eval(s) for s in re.findall(r'"(?:\\.|[^"\\\n])*"', parts[0]))
    outputs = _operands(parts[1]) if len(parts) > 1 else []
    inputs = _operands(parts[2]) if len(parts) > 2 else []
    operands = [*outputs, *inputs]
    code = []
    for number, operand in enumerate(operands):
        kind = operand.constraint.strip("=+&")
        name = f"emu_o{number}"
        if number < len(outputs):
            initial = f" = {_read(kind, operand.expression)}" if "+" in operand.constraint else " = 0"
            code.append(f"{_width(kind, line)} {name}{initial};")
        elif kind.isdigit():  # the same register as an output
            code.append(f"emu_o{kind} = {_read(operands[int(kind)].constraint.strip('=+&'), operand.expression)};")
            code.append(f"auto& {name} = emu_o{kind};")
        else:
            code.append(f"auto {name} = {_read(kind, operand.expression)};")
    code += _instructions(template, line)
    code += [f"emu_ptx::out({o.expression}, emu_o{n});" for n, o in enumerate(outputs)]
    # Everything on one line, so that the lines after it keep their numbers.
    return "{ " + " ".join(re.sub(r"\s+", " ", c) for c in code) + " }"


def _operands(text: str) -> list[_Operand]:
    result = []
    for part in split_top(text, ","):
        found = re.match(r'\s*(?:\[\w+\]\s*)?"([^"]*)"\s*\((.*)\)\s*$', part, re.S)
        if found:
            result.append(_Operand(found.group(1), OPAQUE.sub(_no_comment, found.group(2))))
    return result


def _no_comment(found: re.Match[str]) -> str:
    return " " if found.group().startswith("/") else found.group()


def _width(kind: str, line: int) -> str:
    names = {"h": "uint16_t", "r": "uint32_t", "f": "uint32_t", "l": "uint64_t", "d": "uint64_t"}
    if kind not in names:
        raise NotEmulated(f"inline PTX with an output of constraint {kind!r}", where=f"line {line}")
    return names[kind]


def _read(kind: str, expression: str) -> str:
    if kind == "f":
        return f"emu_ptx::in32((float)({expression}))"
    if kind == "d":
        return f"emu_ptx::in64((double)({expression}))"
    if kind == "l":
        return f"emu_ptx::in64({expression})"
    if kind == "n":
        return f"(uint64_t)({expression})"
    return f"{'(uint16_t)' if kind == 'h' else ''}emu_ptx::in_r({expression})"


def _instructions(template: str, line: int) -> list[str]:
    """Return the C++ statements of a PTX text."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", template, flags=re.S).replace("%%", "%")
    code, rest = [], text.strip()
    while rest:
        if rest[0] in "{};":  # a scope, when it stands where an instruction begins
            code.append("" if rest[0] == ";" else rest[0])
            rest = rest[1:].lstrip()
            continue
        instruction, _, rest = rest.partition(";")
        rest = rest.lstrip()
        code.append(_instruction(instruction.strip(), line))
    return code


def _instruction(text: str, line: int) -> str:
    if re.match(r"\w+\s*:(?!:)", text):
        raise NotEmulated(f"inline PTX with a label: {text!r}", where=f"line {line}", remedy=_REMEDY)
    if text.startswith(".reg"):
        return _registers(text)
    guard = re.match(r"@(!?)\s*%?(\w+)\s+", text)
    if guard:
        return f"if ({guard.group(1)}{guard.group(2)}) {{ {_instruction(text[guard.end():], line)} }}"
    found = re.match(r"([a-z][\w.:]*)\s*(.*)$", text, re.S)
    opcode, rest = (found.group(1), found.group(2)) if found else (text, "")
    arguments = [a.strip() for a in split_top(rest, ",")] if rest else []
    for pattern, make in _KNOWN:
        fits = re.fullmatch(pattern, opcode)
        if fits:
            return make(fits, arguments, line)
    raise NotEmulated(f"the instruction {opcode!r} of inline PTX", where=f"line {line}", remedy=_REMEDY)


_REMEDY = "emulate a kernel without it, or run this one on a GPU"


def _registers(text: str) -> str:
    _, kind, names = re.split(r"\s+", text, maxsplit=2)
    width = re.search(r"\d+", kind)
    c_type = "bool" if "pred" in kind else _C_TYPES[width.group()] if width else "uint32_t"
    return " ".join(f"{c_type} {name.strip().lstrip('%')} = 0;" for name in names.split(","))


def _value(operand: str) -> str:
    """Return the C++ of an operand that is read: %3, a register's name, a number."""
    operand = operand.strip()
    if re.fullmatch(r"%\d+", operand):
        return f"emu_o{operand[1:]}"
    if operand.startswith("0f"):
        return f"0x{operand[2:]}u"
    return operand.lstrip("%")


def _address(operand: str) -> str:
    """Return the C++ of an address: [%1] or [%1 + 16]."""
    inside = operand.strip().lstrip("[").rstrip("]")
    return " + ".join(_value(part) for part in inside.split("+"))


def _list(operand: str) -> list[str]:
    return [_value(v) for v in operand.strip().lstrip("{").rstrip("}").split(",")]


def _ldmatrix(found: re.Match[str], arguments: list[str], line: int) -> str:
    count, registers = int(found[1]), _list(arguments[0])
    writes = " ".join(f"{r} = emu_d[{n}];" for n, r in enumerate(registers))
    call = f"emu_ldmatrix(__LINE__, {count}, {int(bool(found[2]))}, {_address(arguments[1])}, emu_d);"
    return f"{{ uint32_t emu_d[{count}]; {call} {writes} }}"


def _mma(found: re.Match[str], arguments: list[str], line: int) -> str:
    m, n, k = (int(found[x]) for x in "mnk")
    types = {x: found[x] for x in ("d", "a", "b", "c")}
    # The layout of registers that emu_mma knows: 8 rows a register, neighbours along k packed.
    shapes = {"f16": {(16, 8, 8), (16, 8, 16)}, "bf16": {(16, 8, 8), (16, 8, 16)}, "tf32": {(16, 8, 4), (16, 8, 8)},
              "s8": {(8, 8, 16), (16, 8, 16), (16, 8, 32)}, "f64": {(8, 8, 4)}}  # fmt: skip
    shapes["u8"] = shapes["s8"]
    known = all(t in _TYPES for t in types.values()) and (m, n, k) in shapes.get(types["a"], set())
    if not known or found["layouts"] != "row.col" or types["c"] != types["d"]:
        raise NotEmulated(f"the instruction {found.group()!r} of inline PTX", where=f"line {line}", remedy=_REMEDY)
    code, names = [], {}
    for name, operand, elements in zip("dabc", arguments, (m * n, m * k, k * n, m * n), strict=True):
        registers = _list(operand)
        bits = _BITS[types[name]]
        needed = elements // 32 * bits // (64 if bits == 64 else 32)
        if len(registers) != needed:
            text = f"{found.group()!r} with {len(registers)} registers for {name} where {needed} are due"
            raise NotEmulated(text, where=f"line {line}")
        names[name] = registers
        word = "uint64_t" if bits == 64 else "uint32_t"
        if name == "d":
            code.append(f"{word} emu_d[{len(registers)}];")
        else:
            code.append(f"{word} emu_{name}[] = {{{', '.join(registers)}}};")
    kinds = ", ".join(_TYPES[types[x]] for x in "abc")
    code.append(f"emu_mma(__LINE__, {m}, {n}, {k}, {kinds}, {int(bool(found['saturate']))}, (uint32_t*)emu_d, "
                "(const uint32_t*)emu_a, (const uint32_t*)emu_b, (const uint32_t*)emu_c);")  # fmt: skip
    code += [f"{r} = emu_d[{n}];" for n, r in enumerate(names["d"])]
    return "{ " + " ".join(code) + " }"


def _cp_async(found: re.Match[str], arguments: list[str], line: int) -> str:
    to, source, size = _address(arguments[0]), _address(arguments[1]), _value(arguments[2])
    valid = _value(arguments[3]) if len(arguments) > 3 else size
    return f"emu_cp_async(__LINE__, {to}, (const void*)(uintptr_t)({source}), {size}, {valid});"


def _setp(found: re.Match[str], arguments: list[str], line: int) -> str:
    kind = f"int{found[3]}_t" if found[2] == "s" else f"uint{found[3]}_t"
    left, right = (f"({kind})({_value(a)})" for a in arguments[1:3])
    return f"{_value(arguments[0])} = {left} {_COMPARE[found[1]]} {right};"


def _load(found: re.Match[str], arguments: list[str], line: int) -> str:
    c_type, registers = _C_TYPES[found["bits"]], _list(arguments[0])
    shared, size = int(found["space"] == "shared"), int(found["bits"]) // 8
    address = _address(arguments[1])
    code = [f"emu_ptx::align({shared}, {address}, {size * len(registers)});"] if len(registers) > 1 else []
    code += [f"{r} = emu_ptx::load<{c_type}>({shared}, {address} + {n * size}, 0);" for n, r in enumerate(registers)]
    return " ".join(code)


def _store(found: re.Match[str], arguments: list[str], line: int) -> str:
    c_type, values = _C_TYPES[found["bits"]], _list(arguments[1])
    shared, size = int(found["space"] == "shared"), int(found["bits"]) // 8
    address = _address(arguments[0])
    code = [f"emu_ptx::align({shared}, {address}, {size * len(values)});"] if len(values) > 1 else []
    for n, value in enumerate(values):
        code.append(f"emu_ptx::store<{c_type}>({shared}, {address} + {n * size}, ({c_type})({value}), 0);")
    return " ".join(code)


def _move(found: re.Match[str], arguments: list[str], line: int) -> str:
    return f"{_value(arguments[0])} = {_value(arguments[1])};"


def _to_tf32(found: re.Match[str], arguments: list[str], line: int) -> str:
    """Round to the nearest, ties away from zero; infinities and NaN are unchanged."""
    bits = f"(uint32_t)({_value(arguments[1])})"
    finite = f"({bits} & 0x7f800000u) != 0x7f800000u"
    return f"{_value(arguments[0])} = {finite} ? ({bits} + 0x1000u) & 0xffffe000u : {bits};"


def _to_shared(found: re.Match[str], arguments: list[str], line: int) -> str:
    return f"{_value(arguments[0])} = emu_shared_address((const void*)(uintptr_t)({_value(arguments[1])}));"


def _dp4a(found: re.Match[str], arguments: list[str], line: int) -> str:
    a, b = (f"{'u' if t == 'u' else ''}int8_t" for t in (found[1], found[2]))
    d, x, y, c = (_value(v) for v in arguments)
    return f"{d} = emu_::dp4a<{a}, {b}>({x}, {y}, {c});"


def _barrier(found: re.Match[str], arguments: list[str], line: int) -> str:
    if len(arguments) == 1:  # of all threads
        return "emu_barrier(__LINE__, 0, 0);"
    return f"emu_barrier_of(__LINE__, {_value(arguments[0])}, {_value(arguments[1])});"


_Maker = Callable[[re.Match[str], list[str], int], str]
_SPACE = r"\.(?P<space>global|shared)(?:::cta)?"
_HINTS = r"(?:\.(?:nc|ca|cg|cs|lu|cv|wb|wt|volatile|L1::\w+|L2::\w+))*"
_KNOWN: list[tuple[str, _Maker]] = [
    (r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16", _ldmatrix),
    (r"mma\.sync\.aligned\.m(?P<m>\d+)n(?P<n>\d+)k(?P<k>\d+)\.(?P<layouts>\w+\.\w+)(?P<saturate>\.satfinite)?"
     r"\.(?P<d>\w+)\.(?P<a>\w+)\.(?P<b>\w+)\.(?P<c>\w+)", _mma),
    (r"cp\.async\.(?:ca|cg)\.shared(?:::cta)?\.global(?:\.L2::\w+)*", _cp_async),
    (r"cp\.async\.commit_group", lambda *_: "emu_cp_async_commit();"),
    (r"cp\.async\.wait_group", lambda _, a, __: f"emu_cp_async_wait({_value(a[0])});"),
    (r"cp\.async\.wait_all", lambda *_: "emu_cp_async_wait_all();"),
    (r"setp\.(eq|ne|lt|le|gt|ge)\.([bsu])(16|32|64)", _setp),
    (rf"ld{_SPACE}{_HINTS}(?:\.v[24])?\.[bsuf](?P<bits>8|16|32|64)", _load),
    (rf"st{_SPACE}{_HINTS}(?:\.v[24])?\.[bsuf](?P<bits>8|16|32|64)", _store),
    (r"mov\.[bsuf](?:16|32|64)", _move),
    (r"cvta\.to\.shared\.u64", _to_shared),
    (r"cvt\.u32\.u64|cvt\.u64\.u32", _move),
    (r"cvt\.rna\.tf32\.f32", _to_tf32),
    (r"dp4a\.([su])32\.([su])32", _dp4a),
    (r"bar\.sync|barrier(?:\.cta)?\.sync(?:\.aligned)?", _barrier),
    (r"membar\.(?:gl|sys|cta)", lambda f, *_: "" if f.group().endswith("cta") else "emu_fence();"),
]  # fmt: skip
