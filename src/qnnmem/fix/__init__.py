"""Remedies carried out and proven: a model that does not fit becomes one that does.

remedy              what a change is, what a judge says of it, what a remedy must be able to do
run                 remedies in turn, each on top of the best before it
bench               judges and compares, and remembers what took long
prove, validate     runs both models and compares every output, the second in planned memory, too
planned, lpai       the planner as judge, and the remedies for LPAI
compiled, htp       the real library as judge, and the remedies for HTP
trials, trial       compiles and loads each model once, and remembers what was said

settings, order     in place, and another order of ops
fusion, recompute   fewer nodes, and cheap tensors computed again instead of kept
tile, tiling        regions in bands of rows; `search` finds which, `covers` keeps what it found
partition, chain    a model cut into parts that run one after the other; `parts` are the remedies
settings_htp        VTCM and optimisation level; `placement` orders contexts, or one at a time
operators, shapes   operators said by others, and several shapes of one model
lossy               what changes results and must be allowed: batch, precision, resolution

from_log            what a failure in a log asks for
recipe, outputs     what was done, as JSON, to be done again; the files that a change becomes
"""
