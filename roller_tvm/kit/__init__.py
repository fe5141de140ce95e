"""The GPU kit: kernels compiled here, proven and measured on a machine with a card and nothing installed.

``make gpu-kit`` prepares a folder (`build`, which needs a TVM and a CUDA compiler); ``python3 gpu_kit.py FOLDER`` runs
it there: the Python standard library, the card's driver, and this package without TVM, numpy or a compiler.
"""
