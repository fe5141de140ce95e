"""The GPU kit: kernels compiled here, then checked and timed on a machine that has a card and nothing installed.

``make gpu-kit`` prepares a folder (`build`; it needs a TVM and a CUDA compiler). ``python3 gpu_kit.py FOLDER`` runs it
on the other machine. There it needs the Python standard library, the card's driver and this package, but no TVM, numpy
or compiler.
"""
