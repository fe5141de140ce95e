"""Tuners by name: what each is, on which line of TVM, and how many kernels it may measure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roller_tvm.errors import UsageError


@dataclass(frozen=True)
class Kind:
    """A sort of tuner.

    Parameters
    ----------
    title : str
        For people.
    lines : tuple of str
        Of TVM: those that have it.
    trials : int or None
        Kernels measured unless told; None where it measures none.
    kinds : tuple of str
        Of devices: those it knows.
    of : tuple of str
        'operator' where it takes single ones (and a model's tasks), 'model' where it takes whole models.
    """

    title: str
    lines: tuple[str, ...]
    trials: int | None = None
    kinds: tuple[str, ...] = ("cpu", "gpu")
    of: tuple[str, ...] = ("operator", "model")


#: Of the baseline's cost model: what each of its tuners learns (``baseline.online.OBJECTIVES``).
OBJECTIVE = {"xgboost": "rank", "xgbregression": "regression"}
_OPERATOR, _MODEL = ("operator",), ("model",)
KINDS = {
    "roller": Kind("Roller", ("relay", "relax"), 10),
    "untuned": Kind("TVM untuned", ("relay", "relax")),
    "dlight": Kind("dlight", ("relax",), None, ("gpu",), _OPERATOR),
    "autotvm": Kind("AutoTVM", ("relay",), 64, of=_OPERATOR),
    "ansor": Kind("Ansor", ("relay",), 64),
    "metaschedule": Kind("MetaSchedule", ("relax",), 64),
    "xgboost": Kind("XGBoost over rTiles", ("relay", "relax"), 64, ("cpu",), _OPERATOR),
    "xgbregression": Kind("XGBoost (regression) over rTiles", ("relay", "relax"), 64, ("cpu",), _OPERATOR),
    "ranked": Kind("Roller ranked by XGBoost", ("relay", "relax"), None, ("cpu",), _OPERATOR),
    "onnxruntime": Kind("onnxruntime", ("relay", "relax"), None, ("cpu",), _MODEL),
    "torch": Kind("PyTorch", ("relay", "relax"), None, ("cpu",), _MODEL),
    "torchcompile": Kind("torch.compile", ("relay", "relax"), None, ("cpu",), _MODEL),
}


@dataclass(frozen=True)
class Tuner:
    """A tuner with its trials.

    Examples
    --------
    >>> Tuner.parse("ansor:1000").label, Tuner.parse("roller").label, Tuner.parse("roller:1").title
    ('ansor:1000', 'roller:10', 'Roller top-1')
    """

    name: str
    trials: int = 0

    @classmethod
    def parse(cls, text: str, trials: int | None = None) -> Tuner:
        """``NAME`` or ``NAME:TRIALS``; `trials` is what searching tuners get unless told.

        Raises
        ------
        UsageError
        """
        match = re.fullmatch(r"([a-z]+)(?::(\d+))?", text.strip())
        if match is None or match[1] not in KINDS:
            known = ", ".join(KINDS)
            raise UsageError(f"no tuner {text.strip()!r}", "--tuners", f"of {known}, each with :TRIALS if need be")
        name, kind = match[1], KINDS[match[1]]
        if kind.trials is None:
            if match[2]:
                raise UsageError(f"'{name}' measures nothing", "--tuners", f"write {name}")
            return cls(name)
        usual = kind.trials if trials is None or name == "roller" else trials
        count = int(match[2]) if match[2] else usual
        if count < 1:
            raise UsageError(f"{name} needs a trial at least", "--tuners", f"write {name}:{kind.trials}")
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
        """Whether it measures kernels to learn which to measure next."""
        return self.name in ("autotvm", "ansor", "metaschedule", *OBJECTIVE)

    def refusal(self, line: str, device: str, of: str = "operator") -> str:
        """Why it cannot run on a line, a kind of device, and on an operator or a whole model, or ''."""
        kind = KINDS[self.name]
        if line not in kind.lines:
            return f"{kind.title} is of TVM's {' and '.join(kind.lines)} line"
        if device not in kind.kinds:
            return f"{kind.title} is for {' and '.join(kind.kinds)} alone"
        if of not in kind.of:
            return f"{kind.title} takes {'single operators' if 'operator' in kind.of else 'whole models'} alone"
        return ""


def parse_tuners(text: str, trials: int | None = None) -> tuple[Tuner, ...]:
    """A list with commas, each once.

    Examples
    --------
    >>> [t.label for t in parse_tuners("roller:1,roller,ansor", 1000)]
    ['roller:1', 'roller:10', 'ansor:1000']
    """
    found = tuple(dict.fromkeys(Tuner.parse(word, trials) for word in text.split(",") if word.strip()))
    if not found:
        raise UsageError("no tuner is named", "--tuners", "for instance roller,ansor")
    return found


def default_tuners(line: str, device: str, of: str = "operator") -> str:
    """What is compared unless told; on whole models, whose tuning takes hours, without those that search."""
    wanted = ["roller:1", "roller", "dlight", "autotvm", "ansor", "metaschedule"]
    if of == "model":
        wanted = ["roller:1", "roller", "onnxruntime", "torch", "torchcompile"]
    if Tuner.parse("dlight").refusal(line, device, of):  # else that is what TVM does untuned
        wanted.insert(2, "untuned")
    return ",".join(t for t in wanted if not Tuner.parse(t).refusal(line, device, of))
