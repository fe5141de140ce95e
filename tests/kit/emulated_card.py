"""A card of the kit that is this CPU: what the cubins were made from is executed, every access checked."""

from __future__ import annotations

import re

import numpy as np

from roller_check import DeviceArray, compile_source
from roller_tvm.codegen.cuda_text import dtype_bytes

from ..device.made_up_card import facts


class EmulatedCard:
    """`sources`: cubin -> its CUDA C++. Timed launches are not executed again; each takes `US`."""

    US = 100.0

    def __init__(self, sources, units=2):
        self.facts = facts(units=units, l2_bytes=1 << 16)
        self.sources, self.memory, self.next, self.timing = sources, {}, 1 << 20, False
        self.launched = []

    def free_bytes(self):
        return 1 << 30

    def alloc(self, size):
        address, self.next = self.next, self.next + size + (1 << 20) & ~255
        self.memory[address] = bytearray(size)
        return address

    def free(self, address):
        del self.memory[address]

    def _at(self, address):
        base = max(b for b in self.memory if b <= address)
        assert address < base + len(self.memory[base]), "an address that is nobody's"
        return self.memory[base], address - base

    def set(self, address, byte, size):
        self.write(address, bytes([byte]) * size)

    def write(self, address, data):
        memory, at = self._at(address)
        assert at + len(data) <= len(memory)
        memory[at : at + len(data)] = data

    def read(self, address, size):
        memory, at = self._at(address)
        assert at + size <= len(memory)
        return bytes(memory[at : at + size])

    def load(self, image):
        # Types of parameters go by their names in C.
        return compile_source(re.sub(r"\bu64\b(?!;)", "unsigned long long", self.sources[image]))

    def unload(self, module):
        pass

    def launch(self, module, kernel, grid, block, args, dynamic_shared=0):
        if self.timing or kernel == "hold":  # the clock of the emulator stands still
            return
        given, arrays = [], []
        for parameter, arg in zip(module.source.kernel(kernel).parameters, args, strict=True):
            if not parameter.pointer:
                given.append(arg.value)
                continue
            memory, at = self._at(arg.value)
            kind = np.uint16 if parameter.dtype == "bfloat16" else np.dtype(parameter.dtype or np.uint16)
            size = dtype_bytes(parameter.dtype) if parameter.dtype else 2
            view = np.frombuffer(memory, kind, (len(memory) - at) // size, at)
            arrays.append((view, DeviceArray(view.shape, parameter.dtype or "uint16", parameter.name, view)))
            given.append(arrays[-1][1])
        module.run(kernel, grid, block, given, dynamic_shared=dynamic_shared)
        for view, array in arrays:
            view[...] = array.numpy(partly=True).view(view.dtype)
        self.launched.append(kernel)

    def wait(self):
        pass

    def start(self):
        self.timing = True

    def stop(self):
        self.timing = False
        return self.US
