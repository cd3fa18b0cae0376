"""Remedies carried out and proven: a model that does not fit becomes one that does.

remedy           what a change is, what a judge says of it, what a remedy must be able to do
run              remedies in turn, each on top of the best before it
bench            judges and compares, and remembers what took long; `bench_around` stands around one
proven           changes that earlier runs proved, whatever budget they were for
planned, lpai    the planner as judge, and the remedies for LPAI
library, htp     the real library as judge, and the remedies for HTP
proof            runs both models and compares every output, in planned memory, too

graph            in place, another order, fewer nodes, tensors computed again, other operators
tiling           regions in bands of rows
parts            a model cut into parts that run one after the other
lossy            what changes results and must be allowed: batch, precision, resolution

from_log         what a failure in a log asks for
recipe, outputs  what was done, as JSON, to be done again; the files that a change becomes
"""
