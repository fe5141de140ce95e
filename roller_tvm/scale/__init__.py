"""Several machines: a model in parts, one a node, and the messages between them.

The network is one more level of the memory hierarchy, outside of a node's memory. Its rTile is the part of an operator
that a node computes; what the tile reads and the node lacks is sent. Importing this imports neither TVM nor MPI.
"""
