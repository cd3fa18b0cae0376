"""Tiling: compute a region of a model in bands of rows, one whole band after another.

tiled_graph     gives access to nodes in execution order, shapes and stored numbers
needed_rows     computes which input rows a node needs for given rows of its output
bands           computes the rows of every tensor for each band, and the order of steps
cost            counts the live bytes while the bands run
region_search   finds regions that are worth computing in bands
tiling_remedy   contains the remedy, which writes the new nodes
"""
