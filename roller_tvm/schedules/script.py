"""A schedule as a text that people read and change: one command a line, `STAGE.COMMAND(ARGUMENTS)`.

Commands are of Tiramisu's four kinds, and each belongs to one of its levels: the computation (I), its order and place
(II), its data (III). A printed script says both behind each command, as a comment.
A script is the steps of `roller.steps` one by one, so from script to steps to script nothing changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from ..errors import BadInput
from ..roller import tensor_steps  # noqa: F401  (adds its steps to STEPS)
from ..roller.steps import STEPS, Step

#: Kinds of commands -> the commands of each.
KINDS = {
    "loops": ("split", "fuse", "reorder", "compute_at", "inline", "unroll", "unroll_limit", "unroll_compiled", "tile",
              "store_at", "reverse_compute_at", "reverse_inline", "merge"),
    "hardware": ("bind", "vectorize", "parallel", "tensorize", "store_vector"),
    "data": ("cache_read", "cache_write", "pack", "storage_align", "fragment", "rfactor", "matrices",
             "set_scope"),
    "synchronisation": ("pipeline",),
}  # fmt: skip
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}
#: Levels, and the commands that are not of the level of their kind.
LEVEL_OF = {name: {"data": "III", "synchronisation": "III"}.get(kind, "II") for name, kind in KIND_OF.items()} | {
    "rfactor": "I", "matrices": "I",
}  # fmt: skip
_PLAIN = re.compile(r"[\w.*+:@/-]+")
_LINE = re.compile(r"(?P<stage>\"(?:[^\"\\]|\\.)*\"|[^\s(\"]+)\.(?P<op>\w+)\((?P<args>.*)\)")
_CODE = re.compile(r"(?:\"(?:[^\"\\]|\\.)*\"|[^\"#]|\"(?!.*\"))*")
_TOKEN = re.compile(r"\s*(\[|\]|,|\"(?:[^\"\\]|\\.)*\"|[\w.*+:@/-]+)\s*")


class ScheduleError(BadInput):
    """A command of a script that cannot be read or does not apply: the command, the rule, the remedy."""


@dataclass(frozen=True)
class Script:
    """A schedule: its commands in the order in which they are carried out.

    Examples
    --------
    >>> script = Script.read("C.split(i, [8], [i.0, i.1])  # II  loops\\nC.parallel(i.0)")
    >>> print(script)
    C.split(i, [8], [i.0, i.1])  # II  loops
    C.parallel(i.0)              # II  hardware
    >>> Script.read(str(script)) == script
    True
    """

    steps: tuple[Step, ...]

    @classmethod
    def read(cls, text: str, where: str = "script") -> Script:
        """Return the script of a text.

        Raises
        ------
        ScheduleError
            Naming the line, what is wrong with it, and how it should look.
        """
        steps = []
        for number, line in enumerate(text.splitlines(), 1):
            if command := _without_comment(line).strip():
                steps.append(_step_of(command, f"{where}:{number}"))
        return cls(tuple(steps))

    def __str__(self) -> str:
        commands = [command_of(step) for step in self.steps]
        wide = max(map(len, commands), default=0)
        return "\n".join(
            f"{command:<{wide}}  # {LEVEL_OF[step.op]:<3} {KIND_OF[step.op]}"
            for command, step in zip(commands, self.steps, strict=True)
        )


def command_of(step: Step) -> str:
    """Return a step as a command.

    Examples
    --------
    >>> command_of(STEPS["bind"]("C", "i.0", "blockIdx.x"))
    'C.bind(i.0, blockIdx.x)'
    """
    values = [getattr(step, f.name) for f in fields(step)]
    return f"{_shown(values[0])}.{step.op}({', '.join(map(_shown, values[1:]))})"


def usage_of(op: str) -> str:
    """Return how a command is written.

    Examples
    --------
    >>> usage_of("split")
    'STAGE.split(AXIS, [LENGTHS, ...], [NAMES, ...])'
    """
    told = (f"[{f.name.upper()}, ...]" if "tuple" in str(f.type) else f.name.upper() for f in fields(STEPS[op])[1:])
    return f"STAGE.{op}({', '.join(told)})"


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    text = str(value)
    # A name that looks like a number, or has other characters, stands in quotes.
    plain = isinstance(value, int) or (_PLAIN.fullmatch(text) and not re.fullmatch(r"-?\d+", text))
    return text if plain else json.dumps(text)


def _without_comment(line: str) -> str:
    found = _CODE.match(line)
    return found[0] if found else ""


def _step_of(command: str, where: str) -> Step:
    found = _LINE.fullmatch(command)
    if found is None:
        raise ScheduleError(f"'{command}' is no command", where, "write STAGE.COMMAND(ARGUMENTS)")
    op = found["op"]
    if op not in STEPS:
        raise ScheduleError(f"'{command}': no command '{op}'", where, f"commands: {', '.join(STEPS)}")
    wanted = fields(STEPS[op])[1:]
    try:
        tokens = list(_tokens(found["args"]))
        values = _values(tokens)
        if tokens:
            raise ValueError(f"'{tokens[0]}' too many")
        least = sum(f.default is MISSING for f in wanted)
        if not least <= len(values) <= len(wanted):
            raise ValueError(f"{len(values)} arguments")
        for value, field in zip(values, wanted, strict=False):
            _check(value, str(field.type), field.name)
        return STEPS[op](_stage_name(found["stage"]), *values)
    except ValueError as error:
        raise ScheduleError(f"'{command}': {error}", where, f"write {usage_of(op)}") from None


def _stage_name(text: str) -> str:
    return str(json.loads(text)) if text.startswith('"') else text


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"cannot read '{text[at:]}'")
        yield found[1]
        at = found.end()


def _values(tokens: list[str], inside: bool = False) -> list[Any]:
    """Take a list of values with commas between them off the tokens, up to the bracket that ends it."""
    values: list[Any] = []
    while tokens and tokens[0] != "]":
        if values:
            if tokens.pop(0) != ",":
                raise ValueError("a comma is missing between two arguments")
            if not tokens or tokens[0] == "]":
                raise ValueError("an argument is missing after the last comma")
        token = tokens.pop(0)
        if token == "[":
            values.append(tuple(_values(tokens, inside=True)))
        elif token == ",":
            raise ValueError("an argument is missing before a comma")
        elif token.startswith('"'):
            values.append(json.loads(token))
        else:
            values.append(int(token) if re.fullmatch(r"-?\d+", token) else token)
    if inside:
        if not tokens:
            raise ValueError("a ']' is missing")
        tokens.pop(0)
    return values


def _check(value: Any, kind: str, name: str) -> None:
    """Raise ``ValueError`` for an argument of another type than its field's."""
    several, number = "tuple" in kind, "int" in kind
    given: Sequence[Any] = value if isinstance(value, tuple) else (value,)
    if isinstance(value, tuple) != several or not all(isinstance(v, int if number else str) for v in given):
        wanted = f"{'a list of ' if several else 'a '}{'number' if number else 'name'}{'s' * several}"
        raise ValueError(f"'{name}' must be {wanted} (got {_shown(value)})")
