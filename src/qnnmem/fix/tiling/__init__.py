"""Tiling: a region of a model is computed in bands of rows, each band from its input to its end.

rows              ranges of rows
graph             the model as tiling sees it: nodes in order, shapes, stored numbers
facts             a node with what is known about it, and what it does for a band
rules             what of its inputs a node reads for some rows of its outputs
windows           the same for convolutions and pooling
scaling           the same for what makes pictures larger or smaller
bands             rows of every tensor for each band, from the last node back to the first
rounding          where fewer rows would be summed in another order
schedule          what is done band by band, in order
liveness, cost    bytes that are alive meanwhile
rewrite           the nodes that compute the bands
"""
