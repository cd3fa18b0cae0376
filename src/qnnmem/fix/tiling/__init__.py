"""Tiling: compute a region of a model in bands of rows, each band from its input to its end.

graph         the model as tiling sees it: nodes in order, shapes, stored numbers
band_steps    ranges of rows, and what a node does for a band
needed_rows   input rows that a node needs for rows of its output
bands         rows of every tensor for each band, from the last node back to the first
schedule      the steps band by band, in order
cost          bytes alive meanwhile
search        regions worth computing in bands
rewrite       the nodes that compute the bands
remedy        all of it as a remedy
"""
