"""Lowered functions run in Python, each access checked: threads take turns at barriers. Independent of the prover."""

import math

import numpy as np

from roller_tvm.codegen.flat import access_of, called, is_load, kind_of, number_of

CALLS = {"exp": math.exp, "tanh": math.tanh, "sqrt": math.sqrt}
BINARY = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b, "Div": lambda a, b: a / b,
    "FloorDiv": lambda a, b: a // b, "FloorMod": lambda a, b: a % b,
    "LT": lambda a, b: a < b, "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b, "GE": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b, "NE": lambda a, b: a != b, "And": lambda a, b: a and b, "Or": lambda a, b: a or b,
    # As hardware: what is no number stays none.
    "Max": lambda a, b: math.nan if a != a or b != b else max(a, b),
    "Min": lambda a, b: math.nan if a != a or b != b else min(a, b),
}  # fmt: skip


class Wrong(Exception):
    """An access out of bounds."""


class Run:
    def __init__(self, func, arrays, backwards=False):
        self.memory = {hash(p): a for p, a in zip(func.params, arrays, strict=True)}
        self.backwards = backwards
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
            return self.value(node.value, env, memory)
        if is_load(node):
            buffer, indices = access_of(node)
            return float(self.element(buffer, indices, env, memory))
        if kind == "Select" or called(node) == "if_then_else":
            parts = (node.condition, node.true_value, node.false_value) if kind == "Select" else node.args
            return self.value(parts[1] if self.value(parts[0], env, memory) else parts[2], env, memory)
        return CALLS[called(node)](*(self.value(a, env, memory) for a in node.args))

    def at(self, buffer, indices, env, memory):
        array, place = memory[hash(buffer)], tuple(int(self.value(i, env, memory)) for i in indices)
        if not all(0 <= p < e for p, e in zip(place, array.shape, strict=True)):
            raise Wrong(f"{buffer.name}{list(place)} of {list(array.shape)}")
        return array, place

    def element(self, buffer, indices, env, memory):
        array, place = self.at(buffer, indices, env, memory)
        return array[place]

    def visit(self, stmt, env, memory):
        kind = kind_of(stmt)
        if kind == "SeqStmt":
            for part in stmt.seq:
                yield from self.visit(part, env, memory)
        elif kind == "For":
            trips = range(int(self.value(stmt.extent, env, memory)))
            for n in reversed(trips) if self.backwards and int(stmt.kind) in (1, 2) else trips:
                yield from self.visit(stmt.body, {**env, hash(stmt.loop_var): n}, memory)
        elif kind == "IfThenElse":
            body = stmt.then_case if self.value(stmt.condition, env, memory) else stmt.else_case
            if body is not None:
                yield from self.visit(body, env, memory)
        elif kind == "AttrStmt" and str(stmt.attr_key) == "thread_extent":
            yield from self.launch(stmt, env, memory)
        elif kind == "AllocBuffer":
            self.allocate(stmt.buffer, memory)
        elif kind == "BufferStore":
            value = self.value(stmt.value, env, memory)
            array, place = self.at(stmt.buffer, stmt.indices, env, memory)
            array[place] = value
        elif kind == "Evaluate":
            if called(stmt.value) == "tvm_storage_sync":
                yield "barrier"
            elif number_of(stmt.value) is None:
                raise NotImplementedError(str(stmt))
        if kind in ("AttrStmt", "AllocBuffer", "DeclBuffer") and getattr(stmt, "body", None) is not None and not (
            kind == "AttrStmt" and str(stmt.attr_key) == "thread_extent"
        ):
            yield from self.visit(stmt.body, env, memory)

    def allocate(self, buffer, memory):
        scope = buffer.scope
        scope = str(scope() if callable(scope) else scope)
        home = memory["block"] if scope.startswith("shared") else memory
        if home is memory or hash(buffer) not in home:
            home[hash(buffer)] = np.full([int(e) for e in buffer.shape], math.nan)
        memory[hash(buffer)] = home[hash(buffer)]

    def launch(self, stmt, env, memory):
        """Run a block's threads up to the next barrier, one after the other."""
        if str(stmt.node.thread_tag).startswith("blockIdx"):
            for n in range(int(stmt.value.value)):
                yield from self.visit(stmt.body, {**env, hash(stmt.node.var): n}, {**memory, "block": {}})
            return
        envs = [env]
        while kind_of(stmt) == "AttrStmt" and str(stmt.attr_key) == "thread_extent":
            envs = [{**e, hash(stmt.node.var): n} for e in envs for n in range(int(stmt.value.value))]
            stmt = stmt.body
        shared = memory if "block" in memory else {**memory, "block": {}}
        threads = [self.visit(stmt, e, dict(shared)) for e in (envs[::-1] if self.backwards else envs)]
        while threads:
            threads = [t for t in threads if next(t, None) is not None]
        yield from ()
