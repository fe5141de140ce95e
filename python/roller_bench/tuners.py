"""Tuners by name: title, lines of TVM that have them, and number of kernels to measure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roller_tvm.errors import UsageError


@dataclass(frozen=True)
class Kind:
    """A kind of tuner.

    Parameters
    ----------
    title : str
        Title for readers.
    lines : tuple of str
        Lines of TVM that have the tuner.
    trials : int or None
        Default number of kernels to measure; None if the tuner measures none.
    kinds : tuple of str
        Kinds of devices that it supports.
    of : tuple of str
        'operator' if it takes single operators and a model's tasks, 'model' if it takes whole models.
    least : int
        Least number of kernels that it measures.
    """

    title: str
    lines: tuple[str, ...]
    trials: int | None = None
    kinds: tuple[str, ...] = ("cpu", "gpu")
    of: tuple[str, ...] = ("operator", "model")
    least: int = 1


_OPERATOR, _MODEL = ("operator",), ("model",)
KINDS = {
    "roller": Kind("Roller", ("relay", "relax"), 10),
    "untuned": Kind("TVM untuned", ("relay", "relax")),
    "dlight": Kind("dlight", ("relax",), None, ("gpu",), _OPERATOR),
    "autotvm": Kind("AutoTVM", ("relay",), 64, of=_OPERATOR),
    # Ansor takes one trial for none: TVM's SketchPolicy then returns a schedule that nothing has measured.
    "ansor": Kind("Ansor", ("relay",), 64, least=2),
    "metaschedule": Kind("MetaSchedule", ("relax",), 64),
    "xgboost": Kind("XGBoost over Roller's plans", ("relay", "relax"), 64, ("cpu",), _OPERATOR),
    "ranked": Kind("Roller ranked by XGBoost", ("relay", "relax"), None, ("cpu",), _OPERATOR),
    "onnxruntime": Kind("onnxruntime", ("relay", "relax"), None, ("cpu",), _MODEL),
}


@dataclass(frozen=True)
class Tuner:
    """A tuner with its number of trials.

    Examples
    --------
    >>> Tuner.parse("ansor:1000").label, Tuner.parse("roller").label, Tuner.parse("roller:1").title
    ('ansor:1000', 'roller:10', 'Roller top-1')
    """

    name: str
    trials: int = 0

    @classmethod
    def parse(cls, text: str, trials: int | None = None) -> Tuner:
        """Return the tuner written as ``NAME`` or ``NAME:TRIALS``; `trials` is the default of searching tuners.

        Raises
        ------
        UsageError
            The name is unknown, or the number of trials does not fit the tuner.
        """
        match = re.fullmatch(r"([a-z]+)(?::(\d+))?", text.strip())
        if match is None or match[1] not in KINDS:
            known = ", ".join(KINDS)
            raise UsageError(f"no tuner {text.strip()!r}", "--tuners", f"choose from {known}, with :TRIALS if need be")
        name, kind = match[1], KINDS[match[1]]
        if kind.trials is None:
            if match[2]:
                raise UsageError(f"'{name}' measures nothing", "--tuners", f"write {name}")
            return cls(name)
        usual = kind.trials if trials is None or name == "roller" else trials
        count = int(match[2]) if match[2] else usual
        if count < kind.least:
            raise UsageError(f"{name} needs {kind.least} or more trials", "--tuners", f"write {name}:{kind.trials}")
        return cls(name, count)

    @property
    def label(self) -> str:
        return f"{self.name}:{self.trials}" if self.trials else self.name

    @property
    def title(self) -> str:
        if self.name == "roller":
            return f"Roller top-{self.trials}"
        return f"{KINDS[self.name].title}, {self.trials} trials" if self.trials else KINDS[self.name].title

    @property
    def searches(self) -> bool:
        """True if the tuner measures kernels to learn which to measure next."""
        return self.name in ("autotvm", "ansor", "metaschedule", "xgboost")

    def refusal(self, line: str, device: str, of: str = "operator") -> str:
        """Return the reason that the tuner cannot be used; '' if it can.

        `of` is 'operator' or 'model'.
        """
        kind = KINDS[self.name]
        if line not in kind.lines:
            return f"{kind.title} exists on TVM's {' and '.join(kind.lines)} line only"
        if device not in kind.kinds:
            return f"{kind.title} supports {' and '.join(kind.kinds)} only"
        if of not in kind.of:
            return f"{kind.title} takes {'single operators' if 'operator' in kind.of else 'whole models'} only"
        return ""


def parse_tuners(text: str, trials: int | None = None) -> tuple[Tuner, ...]:
    """Return the tuners of a comma-separated list, each once.

    Examples
    --------
    >>> [t.label for t in parse_tuners("roller:1,roller,ansor", 1000)]
    ['roller:1', 'roller:10', 'ansor:1000']
    """
    found = tuple(dict.fromkeys(Tuner.parse(word, trials) for word in text.split(",") if word.strip()))
    if not found:
        raise UsageError("no tuner is named", "--tuners", "name tuners, such as roller,ansor")
    return found


def default_tuners(line: str, device: str, of: str = "operator") -> str:
    """Return the default list of tuners; for whole models, whose tuning takes hours, without those that search."""
    wanted = ["roller:1", "roller", "dlight", "autotvm", "ansor", "metaschedule"]
    if of == "model":
        wanted = ["roller:1", "roller", "onnxruntime"]
    if Tuner.parse("dlight").refusal(line, device, of):  # else that is what TVM does untuned
        wanted.insert(2, "untuned")
    return ",".join(t for t in wanted if not Tuner.parse(t).refusal(line, device, of))
