"""Remedies that make a model fit, applied and proven.

remedy          the types of a fix: case, change, need, and the interface of a remedy
remedy_search   tries remedies in turn, each on top of the best change so far
bench           judges, compares and caches results, with wrappers for lossy baselines and time
recipe          the steps of a change as JSON, for repetition; proven changes of earlier runs
lpai            the planner as judge, and the search for LPAI
library, htp    the real library as judge, and the search for HTP
proof           runs both models and compares every output, also in planned memory

graph           remedies that plan in place, reorder, fuse, recompute or replace operators
tiling          the remedy that computes regions of a model in bands of rows
parts           remedies that cut a model into parts, which run in sequence
lossy           remedies that change results and need permission: batch, precision, resolution

from_log        budget and remedies derived from a failure in a log
fixed_model     the JSON result and the files of a change
"""
