"""Recurrences as values: LSTM, GRU and RNN cells by ONNX's definitions, and a layer of one of them over its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import UnsupportedOperator, must_be

#: Kind of a cell -> its gates, in ONNX's order, and its activations by default.
GATES = {"LSTM": "iofc", "GRU": "zrh", "RNN": "h"}
DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
#: Activation -> alpha and beta by default; None: it takes none.
ACTIVATIONS: dict[str, tuple[float | None, float | None]] = {
    "Affine": (1.0, 0.0),
    "Elu": (1.0, None),
    "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01, None),
    "Relu": (None, None),
    "ScaledTanh": (1.0, 1.0),
    "Sigmoid": (None, None),
    "Softplus": (None, None),
    "Softsign": (None, None),
    "Tanh": (None, None),
    "ThresholdedRelu": (1.0, None),
}
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@dataclass(frozen=True)
class Activation:
    """An activation function of ONNX's recurrent operators.

    Examples
    --------
    >>> Activation("Tanh")
    Activation(name='Tanh', alpha=0.0, beta=0.0)
    """

    name: str
    alpha: float = 0.0
    beta: float = 0.0


def activations(
    kind: str, directions: int, names: list[str], alphas: list[float], betas: list[float]
) -> tuple[tuple[Activation, ...], ...]:
    """Return the activations of each direction, as a node's attributes tell them.

    Parameters
    ----------
    kind : {'LSTM', 'GRU', 'RNN'}
    names, alphas, betas : lists
        As ONNX has them: `alphas` and `betas` hold a number for each function that takes one, in order, or fewer.

    Raises
    ------
    UnsupportedOperator
        A function is none of ONNX's; too few or too many are named.

    Examples
    --------
    >>> activations("RNN", 1, ["LeakyRelu"], [0.5], [])
    ((Activation(name='LeakyRelu', alpha=0.5, beta=0.0),),)
    """
    each = DEFAULTS[kind]
    given = list(names) or [*each] * directions
    if len(given) != len(each) * directions:
        what = f"{kind} of {directions} direction(s) has {len(each) * directions} activations, not {len(given)}"
        raise UnsupportedOperator(what, remedy="name them all, or leave the attribute out")
    known = {name.lower(): name for name in ACTIVATIONS}
    left, right, found = list(alphas), list(betas), []
    for name in given:
        if name.lower() not in known:
            what = must_be("an activation", f"one of {', '.join(ACTIVATIONS)}", name)
            raise UnsupportedOperator(what, remedy="write the recurrence with another one")
        proper = known[name.lower()]
        alpha, beta = ACTIVATIONS[proper]
        alpha = alpha if alpha is None or not left else left.pop(0)
        beta = beta if beta is None or not right else right.pop(0)
        found.append(Activation(proper, alpha or 0.0, beta or 0.0))
    return tuple(tuple(found[d * len(each) : (d + 1) * len(each)]) for d in range(directions))


@dataclass(frozen=True)
class Cell:
    """The computation of one step, by ONNX's equations.

    Parameters
    ----------
    kind : {'LSTM', 'GRU', 'RNN'}
    activations : tuple, for each direction, of tuples of Activation
    clip : float
        Bound of what goes into an activation; 0: none.
    linear_before_reset : bool
        GRU: the reset gate is applied to the product, as torch does, not to the state.
    input_forget : bool
        LSTM: the forget gate is 1 minus the input gate.
    peepholes : bool
        LSTM: gates see the cell's state.

    Examples
    --------
    >>> Cell("GRU", activations("GRU", 1, [], [], [])).gates
    'zrh'
    """

    kind: str
    activations: tuple[tuple[Activation, ...], ...]
    clip: float = 0.0
    linear_before_reset: bool = False
    input_forget: bool = False
    peepholes: bool = False

    @property
    def gates(self) -> str:
        """A letter for each gate, in the order of the weights."""
        return GATES[self.kind]

    @property
    def two_phases(self) -> bool:
        """True if a step has two products, the second of which reads the result of the first one."""
        return self.kind == "GRU" and not self.linear_before_reset


@dataclass(frozen=True)
class Recurrence:
    """A layer: a cell over its steps.

    Parameters
    ----------
    steps, batch, hidden : int
    backward : tuple of bool
        For each direction, whether it goes from the last step to the first.
    lengths : bool
        Whether each row has a number of steps of its own.
    rows_first : bool
        Whether the outputs of a step stand as [batch, direction, hidden] (torch), not [direction, batch, hidden].

    Examples
    --------
    >>> cell = Cell("RNN", activations("RNN", 1, [], [], []))
    >>> Recurrence(cell, steps=10, batch=1, hidden=32).directions
    1
    """

    cell: Cell
    steps: int
    batch: int
    hidden: int
    backward: tuple[bool, ...] = (False,)
    lengths: bool = False
    rows_first: bool = False

    @property
    def directions(self) -> int:
        """1, or 2 if it goes both ways."""
        return len(self.backward)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, from which `from_json` makes the same layer."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Recurrence:
        """Return the layer that `to_json` wrote."""
        own = dict(given["cell"])
        own["activations"] = tuple(tuple(Activation(**one) for one in each) for each in own["activations"])
        rest = {key: value for key, value in given.items() if key not in ("cell", "backward")}
        return cls(Cell(**own), backward=tuple(given["backward"]), **rest)
