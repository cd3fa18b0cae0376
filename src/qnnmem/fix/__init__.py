"""Remedies carried out and proven: a model that does not fit becomes one that does.

remedy            what a change is, what a judge says of it, what a remedy must be able to do
run               remedies in turn, each on top of the best before it
bench             judges and compares, and remembers what took long
prove             runs both models and compares all outputs bit by bit, or measures how far off
planned, lpai     the planner as judge, and the remedies for LPAI
settings, order   in place, and another order of ops
tile, tiling      computes a region of a model in bands of rows; `search` finds which
partition, chain  cuts a model into parts, and runs them after each other
lossy             what changes results and must be allowed: precision, batch, resolution
recipe            what was done, as JSON, to be done again
"""
