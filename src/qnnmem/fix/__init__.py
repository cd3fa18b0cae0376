"""Remedies carried out and proven: a model that does not fit becomes one that does.

remedy            what a change is, and what a remedy must be able to do
prove             runs both models and compares every output bit by bit
settings, order   in place, and another order of ops
tile, tiling      computes a region of a model in bands of rows
search            which regions in how many bands, the planner as judge
lpai              all remedies in turn
recipe            what was done, as JSON, to be done again
"""
