"""Lowered functions run in Python, each access checked: threads take turns at barriers. Independent of the prover."""

import math
from dataclasses import dataclass

import numpy as np

from roller_tvm.codegen.flat import access_of, called, is_load, kind_of, number_of, parts_of
from roller_tvm.te.numbering import dtype_of_node

# As hardware: what is too large is infinite, what is no number stays none.
CALLS = {"exp": np.exp, "tanh": np.tanh, "sqrt": np.sqrt, "rsqrt": lambda a: 1 / np.sqrt(a)}
CASTS = {"float16": lambda a: float(np.float16(a)), **dict.fromkeys(("int32", "int64"), int)}
BINARY = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b,
    "Div": lambda a, b: int(a / b) if isinstance(a, int) and isinstance(b, int) else np.float64(a) / b,
    "FloorDiv": lambda a, b: a // b, "FloorMod": lambda a, b: a % b, "Mod": math.fmod,
    "LT": lambda a, b: a < b, "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b, "GE": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b, "NE": lambda a, b: a != b, "And": lambda a, b: a and b, "Or": lambda a, b: a or b,
    "Max": lambda a, b: math.nan if a != a or b != b else max(a, b),
    "Min": lambda a, b: math.nan if a != a or b != b else min(a, b),
}  # fmt: skip


#: A thread waits there for all others; names of what an environment has beside the values of variables.
BARRIER, REDUCER, THREADS = "barrier", "reducer", "threads"


@dataclass
class Part:
    """What a thread gives to a reduction over threads; afterwards, what the group makes of it."""

    group: tuple
    value: float
    reducer: object


class Run:
    """One run; `events` are the accesses that no kernel may have: (kind, buffer, element)."""

    def __init__(self, func, arrays, backwards=False):
        self.memory = {hash(p): a for p, a in zip(func.params, arrays, strict=True)}
        self.backwards = backwards
        self.events, self.kept, self.count = set(), list(arrays), 0
        self.given = {id(a) for a in arrays[:-1]}  # inputs
        self.touched = {}  # (array, element) -> (places of reads, places of writes)
        self.place = ()  # (loop, trip, barriers passed) of each parallel loop around
        with np.errstate(all="ignore"):
            for _ in self.visit(func.body, {}, self.memory):
                pass

    def value(self, node, env, memory):
        kind = kind_of(node)
        if kind in ("Var", "SizeVar"):
            return env[hash(node)]
        if kind in ("IntImm", "FloatImm"):
            return node.value
        if kind in BINARY:
            a = self.value(node.a, env, memory)
            if (kind == "And" and not a) or (kind == "Or" and a):
                return a
            return BINARY[kind](a, self.value(node.b, env, memory))
        if kind == "Not":
            return not self.value(node.a, env, memory)
        if kind == "Cast":
            value = self.value(node.value, env, memory)
            return CASTS[dtype_of_node(node)](value) if dtype_of_node(node) in CASTS else value
        if is_load(node):
            buffer, indices = access_of(node)
            return float(self.element(buffer, indices, env, memory))
        if kind == "Select" or called(node) == "if_then_else":
            parts = (node.condition, node.true_value, node.false_value) if kind == "Select" else node.args
            return self.value(parts[1] if self.value(parts[0], env, memory) else parts[2], env, memory)
        return CALLS[called(node)](*(self.value(a, env, memory) for a in node.args))

    def at(self, buffer, indices, env, memory, write):
        array, place = memory[hash(buffer)], tuple(int(self.value(i, env, memory)) for i in indices)
        name = str(buffer.name)
        if not all(0 <= p < e for p, e in zip(place, array.shape, strict=True)):
            self.events.add(("bounds", name, place))
            return array, None
        reads, writes = self.touched.setdefault((id(array), place), (set(), set()))
        if not write and not writes and id(array) not in self.given:
            self.events.add(("initialised", name, place))
        if any(at_once(self.place, other) for other in ((*reads, *writes) if write else writes)):
            self.events.add(("races", name, place))
        (writes if write else reads).add(self.place)
        return array, place

    def element(self, buffer, indices, env, memory):
        array, place = self.at(buffer, indices, env, memory, write=False)
        return math.nan if place is None else array[place]

    def visit(self, stmt, env, memory):
        kind = kind_of(stmt)
        if kind == "SeqStmt":
            for part in stmt.seq:
                yield from self.visit(part, env, memory)
        elif kind == "For":
            trips = range(int(self.value(stmt.extent, env, memory)))
            if int(stmt.kind) not in (1, 2):
                for n in trips:
                    yield from self.visit(stmt.body, {**env, hash(stmt.loop_var): n}, memory)
                return
            outer, self.count = self.place, self.count + 1
            own = self.count
            for n in reversed(trips) if self.backwards else trips:
                visited = self.visit(stmt.body, {**env, hash(stmt.loop_var): n}, memory)
                self.place = (*outer, (own, n, None))
                while (at := next(visited, None)) is not None:
                    yield at
                    outer = self.place  # the thread's, behind a barrier
                    self.place = (*outer, (own, n, None))
            self.place = outer
        elif kind == "IfThenElse":
            body = stmt.then_case if self.value(stmt.condition, env, memory) else stmt.else_case
            if body is not None:
                yield from self.visit(body, env, memory)
        elif kind == "AttrStmt" and str(stmt.attr_key) == "thread_extent":
            yield from self.launch(stmt, env, memory)
        elif kind == "AllocBuffer":
            self.allocate(stmt.buffer, memory)
        elif kind == "DeclBuffer":  # a view of other memory
            (seen,) = (hash(part) for part in parts_of(stmt.data) if kind_of(part) == "Var")
            memory[hash(stmt.buffer)] = memory[seen]
        elif kind == "BufferStore":
            value = self.value(stmt.value, env, memory)
            array, place = self.at(stmt.buffer, stmt.indices, env, memory, write=True)
            if place is not None:
                array[place] = value
        elif kind == "Evaluate":
            if called(stmt.value) == "tvm_storage_sync":
                yield BARRIER
            elif called(stmt.value) == "tvm_thread_allreduce":
                yield from self.reduced(stmt.value, env, memory)
            elif number_of(stmt.value) is None:
                raise NotImplementedError(str(stmt))
        if kind == "AttrStmt" and str(stmt.attr_key) == "reduce_scope":
            env = {**env, REDUCER: stmt.node}
        if kind in ("AttrStmt", "AllocBuffer", "DeclBuffer") and getattr(stmt, "body", None) is not None and not (
            kind == "AttrStmt" and str(stmt.attr_key) == "thread_extent"
        ):
            yield from self.visit(stmt.body, env, memory)

    def reduced(self, call, env, memory):
        """Take part in a reduction over threads: what each thread of the group gives is the same for all of them."""
        _, given, holds, result, *over = call.args
        reducer, own = env[REDUCER], {hash(var) for var in over}
        group = tuple(env[var] for var in env[THREADS] if var not in own)
        value = self.value(given if self.value(holds, env, memory) else reducer.identity_element[0], env, memory)
        part = Part((hash(call), group), value, reducer)
        yield part
        buffer, indices = access_of(result)
        array, place = self.at(buffer, indices, env, memory, write=True)
        if place is not None:
            array[place] = part.value

    def meet(self, parts):
        """Give all threads of each group what their parts make."""
        groups = {}
        for part in parts:
            groups.setdefault(part.group, []).append(part)
        for group in groups.values():
            found = group[0].value
            for part in group[1:]:
                names = {hash(part.reducer.lhs[0]): found, hash(part.reducer.rhs[0]): part.value}
                found = self.value(part.reducer.result[0], names, {})
            for part in group:
                part.value = found

    def allocate(self, buffer, memory):
        scope = buffer.scope
        scope = str(scope() if callable(scope) else scope)
        home = memory.get("block", memory) if scope.startswith("shared") else memory
        if home is memory or hash(buffer) not in home:
            home[hash(buffer)] = np.full([int(e) for e in buffer.shape], math.nan)
            self.kept.append(home[hash(buffer)])  # so that no other array gets its number
        memory[hash(buffer)] = home[hash(buffer)]

    def launch(self, stmt, env, memory):
        """Run a block's threads up to the next barrier, one after the other."""
        outer, self.count = self.place, self.count + 1
        own = self.count
        if str(stmt.node.thread_tag).startswith("blockIdx"):
            for n in range(int(stmt.value.value)):
                self.place = (*outer, (own, n, None))
                yield from self.visit(stmt.body, {**env, hash(stmt.node.var): n}, {**memory, "block": {}})
            self.place = outer
            return
        envs, names = [env], []
        while kind_of(stmt) == "AttrStmt" and str(stmt.attr_key) == "thread_extent":
            envs = [{**e, hash(stmt.node.var): n} for e in envs for n in range(int(stmt.value.value))]
            names.append(hash(stmt.node.var))
            stmt = stmt.body
        shared = memory if "block" in memory else {**memory, "block": {}}
        envs = [{**e, THREADS: names} for e in envs]
        threads = [(n, self.visit(stmt, e, dict(shared))) for n, e in enumerate(envs)]
        threads, passed = threads[::-1] if self.backwards else threads, 0
        while threads:
            waiting, met = [], []
            for n, thread in threads:
                self.place = (*outer, (own, n, passed))
                if (at := next(thread, None)) is not None:
                    waiting.append((n, thread))
                    met.append(at)
            places = {part if part == BARRIER else part.group[0] for part in met}
            if (waiting and len(waiting) < len(threads)) or len(places) > 1:
                self.events.add(("barriers", "", ()))
            self.meet([part for part in met if part != BARRIER])
            threads, passed = waiting, passed + (BARRIER in met)
        self.place = outer
        yield from ()


def at_once(one, other):
    """Return whether two places are of one parallel loop, with no barrier between its trips.

    Barriers do not order the trips of a parallel loop within a thread.
    """
    for (loop, trip, passed), (second, another, then) in zip(one, other, strict=False):
        if loop != second:
            return False
        if trip != another:
            return passed == then
    return False
