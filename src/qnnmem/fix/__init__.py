"""Remedies that make a model fit, applied and proven.

remedy          a change, the need that a judge finds, and the interface of a remedy
remedy_search   remedies in turn, each on top of the best before it
bench           judges, compares and caches results, with wrappers for lossy baselines and time
recipe          the steps of a change as JSON, to be repeated; changes that earlier runs proved
lpai            the planner as judge, and the search for LPAI
library, htp    the real library as judge, and the search for HTP
proof           both models run, every output compared, in planned memory, too

graph           in place, another order, fewer nodes, recomputed tensors, other operators
tiling          regions in bands of rows
parts           a model cut into parts that run one after the other
lossy           changes of results that must be allowed: batch, precision, resolution

from_log        budget and remedies that follow from a failure in a log
fixed_model     the JSON result and the files of a change
"""
