"""Remedies carried out and proven: a model that does not fit becomes one that does.

remedy            what a change is, what a judge says of it, what a remedy must be able to do
run               remedies in turn, each on top of the best before it
bench             judges and compares, and remembers what took long
prove             runs both models and compares every output bit by bit
planned, lpai     the planner as judge, and the remedies for LPAI
settings, order   in place, and another order of ops
tile, tiling      computes a region of a model in bands of rows; `search` finds which
compiled, htp     the real library as judge, and the remedies for HTP
trials, trial     compiles and loads each model once, and remembers what was said
settings_htp      VTCM and optimisation level; `placement` orders contexts, one at a time if need be
partition, chain  cuts a model into parts, and runs them after each other; `parts` are the remedies
outputs           the files that a change becomes
covers            regions that were found, kept for the next run
from_log          what a failure in a log asks for
recipe            what was done, as JSON, to be done again
"""
