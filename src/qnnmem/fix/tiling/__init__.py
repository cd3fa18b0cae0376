"""Tiling: compute a region of a model in bands of rows, each from region input to output.

tiled_graph     the model as tiling needs it: nodes in order, shapes, stored numbers
needed_rows     ranges of rows, and the input rows that a node needs for rows of its output
bands           rows of every tensor for each band, and the steps in order
cost            live bytes meanwhile
region_search   regions worth computing in bands
tiling_remedy   the new nodes, and all of it as a remedy
"""
