"""Tiling: compute a region of a model in bands of rows, each from region input to output.

tiled_graph     the graph of a model for tiling: nodes in order, shapes, stored numbers
needed_rows     ranges of rows, and the input rows that a node needs for rows of its output
bands           rows of every tensor for each band, and the steps in order
cost            live bytes while the bands run
region_search   regions worth computing in bands
tiling_remedy   the remedy, which writes the new nodes
"""
