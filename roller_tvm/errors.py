"""Errors for users: each names the fault, its place and the remedy, and has an exit code.

Exit codes of ``roller-tvm``: 0 done, 1 failed, 2 wrong command line or bad input, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Any


class RollerError(Exception):
    """Base of every error of this package.

    Parameters
    ----------
    what : str
        The fault: names the thing and, if there is one, the limit.
    where : str
        The place to look at: file, line, operator or axis.
    remedy : str
        The user's next step, preferably one command.

    Examples
    --------
    >>> str(RollerError("'K' must be >= 1 (got 0)", where="conv1", remedy="give K an extent"))
    "conv1: 'K' must be >= 1 (got 0)\\n  remedy: give K an extent"
    """

    exit_code = 1

    def __init__(self, what: str, where: str = "", remedy: str = "") -> None:
        if not remedy:  # TVM hands an error on as its text alone
            what, _, remedy = what.partition("\n  remedy: ")
        super().__init__(what)
        self.what = what
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  remedy: {self.remedy}" if self.remedy else text

    def one_line(self) -> str:
        """Return the error as the command line prints it.

        Examples
        --------
        >>> RollerError("cannot be read:\\n  no such file", "m.onnx", "give another").one_line()
        'm.onnx: cannot be read: no such file; remedy: give another'
        """
        text = joined_lines(f"{self.where}: {self.what}" if self.where else self.what)
        return plain(f"{text}; remedy: {joined_lines(self.remedy)}" if self.remedy else text)

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes send errors back; keep every field.
        return _restore, (type(self), self.args, self.__dict__.copy())


def _restore(cls: type[RollerError], args: tuple[Any, ...], fields: dict[str, Any]) -> RollerError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(fields)
    return error


def must_be(name: str, expected: str, got: object) -> str:
    """Return the message `'name' must be expected (got value that is a type)`, the form of every check here.

    Examples
    --------
    >>> must_be("padding", "an int >= 0", "same")
    "'padding' must be an int >= 0 (got 'same' that is a str)"
    """
    return f"{name!r} must be {expected} (got {got!r} that is a {type(got).__name__})"


def joined_lines(text: str) -> str:
    """Return the lines of a text as one line, with ``; `` between those that no other mark ends.

    Examples
    --------
    >>> joined_lines("two faults:\\n  no name\\n  no shape\\n")
    'two faults: no name; no shape'
    """
    return re.sub(r"\s*\n\s*", "; ", re.sub(r"(?<=[:;,(])\s*\n\s*", " ", text.strip()))


def plain(text: str) -> str:
    """Return a text with what a terminal would obey, as ESC in a tensor's name, made visible.

    Examples
    --------
    >>> plain("red \\x1b[31m")
    'red \\\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def last_line(text: object) -> str:
    """Return the last non-empty line of a message, up to 300 characters; for an exception without one, its type's name.

    Examples
    --------
    >>> last_line(ValueError("a trace\\n  of calls\\nno such thing"))
    'no such thing'
    """
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    if lines:
        return lines[-1][:300]
    return type(text).__name__ if isinstance(text, BaseException) else ""


class UsageError(RollerError):
    """The command line or the arguments of a call make no sense."""

    exit_code = 2


class BadInput(RollerError):
    """Something the user gave (a model, a file, a value) cannot be used."""

    exit_code = 2


class Untrusted(BadInput):
    """A file is a program, or would make one run, and nobody said that it is trusted."""


class UnknownDevice(BadInput):
    """No device specification goes by that name."""


class SpecError(BadInput):
    """A device specification has an unknown key, a wrong unit or an impossible value."""


class ProfileError(RollerError):
    """A device could not be profiled: no compiler, benchmarks that do not run, numbers that cannot be true."""


class TargetError(BadInput):
    """A compilation target is incomplete or contradicts the device."""


class UnsupportedOperator(BadInput):
    """An operator, or a form of it, that cannot be imported or planned."""


class RecordError(BadInput):
    """A record file is corrupt, or was written for something else."""


class RecordWarning(UserWarning):
    """Part of a record file could not be read and was left out."""


class NoTvm(RollerError):
    """TVM is needed and cannot be imported."""


class TvmLineError(NoTvm):
    """The TVM found is of a version or line that cannot do what was asked."""


class MeasureError(RollerError):
    """A candidate could not be built or measured; ``kind`` groups failures in the summary."""

    def __init__(self, what: str, where: str = "", remedy: str = "", kind: str = "measure") -> None:
        super().__init__(what, where, remedy)
        self.kind = kind


class ToolchainError(RollerError):
    """A compiler is missing, or refused the source or its architecture."""


class NothingTuned(RollerError):
    """Not one task got a working plan."""


class NotPlanned(RollerError):
    """Kernels are not Roller's, where only Roller's are wanted (``strict``)."""


class UnplannedWarning(UserWarning):
    """Kernels are left to TVM's own schedules; the message is a table of them."""


class RefutedKernel(RollerError):
    """A kernel is proven to be wrong; the message has the witness."""


class WrongAnswer(RollerError):
    """A kernel ran and its result differs from the reference."""


class DiskFull(RollerError):
    """A file could not be written because no space is left."""


def cannot_write(
    error: OSError,
    path: str | os.PathLike[str],
    full: str = "no space left to write it",
    remedy: str = "free some space, then run it again",
    other: str = "give another file",
) -> RollerError:
    """Return the system's error of a write as `DiskFull` or `BadInput`, naming the path.

    Parameters
    ----------
    full, remedy : str
        Message and remedy if no space is left.
    other : str
        Remedy if the path cannot be written for another reason.

    Examples
    --------
    >>> cannot_write(OSError(errno.ENOSPC, "No space left on device"), "m.so").one_line()
    'm.so: no space left to write it; remedy: free some space, then run it again'
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull(full, os.fspath(path), remedy)
    return BadInput(f"cannot be written: {error.strerror or error}", os.fspath(path), other)
